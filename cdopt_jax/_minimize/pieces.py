"""The pieces of a run, from look to look."""

import time
from collections.abc import Callable, Iterator

import jax

from .loop import Course

BRIEF = 1e-2
"""The seconds up to which the next piece is queued before this one is looked at. To
look takes the host 0.15 ms, which is nothing beside longer ones."""


def courses(
    advance: Callable[[Course, int], Course],
    course: Course,
    untils: Iterator[int],
    *,
    ahead: bool,
) -> Iterator[Course]:
    """The course at the start, and after each piece, when it is there.

    Args:
        advance: From a course to the one at a later step. It does not wait.
        course: The course at the start, which need not be there yet.
        untils: The steps to look at.
        ahead: Whether pieces may be queued, so that the device does not wait for the
            host. Of a run that is stopped, or has ended, one piece is then not used.
    """
    brief = ahead
    for until in untils:
        following = advance(course, until) if brief else None
        began = time.perf_counter()
        jax.block_until_ready(course)
        brief = ahead and time.perf_counter() - began < BRIEF
        yield course
        course = advance(course, until) if following is None else following
    yield jax.block_until_ready(course)
