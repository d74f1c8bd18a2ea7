"""Errors that name the public function in which they occur.

A public function enters `naming` once, at its boundary. Whatever it calls raises
``error(text)``, and the text is put behind the name of the function that the user has
called, which is the outermost one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_called: ContextVar[str | None] = ContextVar("called", default=None)


@contextmanager
def naming(function: str) -> Iterator[None]:
    """Errors inside are those of ``function``, unless another one was called before."""
    if _called.get() is not None:
        yield
        return
    token = _called.set(function)
    try:
        yield
    finally:
        _called.reset(token)


@contextmanager
def user_code() -> Iterator[None]:
    """Errors inside are those of what the user's own function calls."""
    token = _called.set(None)
    try:
        yield
    finally:
        _called.reset(token)


def public(function: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for the functions that a user calls under the name ``function``."""

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with naming(function):
                return fn(*args, **kwargs)

        return call

    return decorate


def error(text: str) -> ValueError:
    """The error to raise, with the name of the public function in front."""
    function = _called.get()
    return ValueError(text if function is None else f"{function}: {text}")
