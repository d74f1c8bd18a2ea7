"""Leaves whose layout on a mesh a traced program cannot see.

On Auto mesh axes the layout of a leaf is no part of its type. A step that does not know
that a leaf is split along its columns gathers the leaf on every device. ``init``
refuses such a leaf where it sees the layout; otherwise the compiler is asked for it.
"""

import inspect
import warnings
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from cdopt_jax._errors import error
from cdopt_jax._math.sharding import on_auto_axes

from .masks import Mask
from .paths import describe_leaf
from .view import View


def first_view(params: Any, mask: Mask) -> View:
    """The view of parameters in an ``init``, which sees the layouts of leaves first."""
    view = View(params, mask)
    for i, r in enumerate(view.readings):
        if r.hidden_layout is not None:
            raise error(
                "a leaf on Auto mesh axes that is split along anything but its first "
                "row axis and its batch must say so, since a compiled step could not "
                "see it and would gather it in full; "
                f"{describe_leaf(view.paths[i], view.points[i])} and is laid out as "
                f"{r.hidden_layout}. Read it by Stiefel(…, "
                f"sharding={r.hidden_layout}), or make the mesh with Explicit axes."
            )
    return view


def warn_of_gathering(view: View) -> None:
    """Warn when a program is compiled that gathers a leaf it cannot see to be split.

    On Auto mesh axes a traced leaf does not tell its layout, and the compiler gathers a
    leaf that is split along anything but its first row axis and its batch. ``init``
    refuses such a leaf, if it sees it; where ``init`` is traced too, the compiler is
    asked for the layout.
    """
    for path, leaf, r in zip(view.paths, view.points, view.readings, strict=True):
        # Other tracers, as those of vmap, cannot be asked.
        traced = type(leaf).__name__ == "DynamicJaxprTracer"
        if traced and r.layout is None and on_auto_axes(leaf) and not _exporting():
            warn = partial(_warn_if_gathered, path, r)
            jax.debug.inspect_array_sharding(leaf, callback=warn)


def _exporting():
    """Whether this is traced by ``jax.export``, which cannot serialise the question."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("jax._src.export"):
            return True
        frame = frame.f_back
    return False


def _warn_if_gathered(path, reading, sharding):
    spec = tuple(getattr(sharding, "spec", ()))
    tall, short = reading.rows, reading.columns
    if reading.wide:
        tall, short = short, tall
    if any(a < len(spec) and spec[a] for a in (*tall[1:], *short)):
        warnings.warn(
            f"a step gathers {path!r} on every device: it is split as "
            f"{PartitionSpec(*spec)} on Auto mesh axes, which a traced step cannot "
            f"see. Read it by Stiefel(…, sharding={PartitionSpec(*spec)}), or make the "
            "mesh with Explicit axes.",
            stacklevel=2,
        )
