"""Leaves whose layout on a mesh a traced step cannot see.

On Auto mesh axes the layout of a leaf is no part of its type. A step that does not know
that a leaf is split along its columns gathers the leaf on every device. ``init``
refuses such a leaf where it sees the layout; otherwise the compiler is asked for it.
"""

import warnings
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from cdopt_jax._checks import indefinite_fault, is_known
from cdopt_jax._errors import error
from cdopt_jax._math.sharding import on_auto_axes

from .masks import Mask
from .paths import describe_leaf
from .view import View


def first_view(params: Any, mask: Mask) -> View:
    """The view of parameters in an ``init``, which sees layouts and values first."""
    view = View(params, mask)
    for path, leaf, r in zip(view.paths, view.points, view.readings, strict=True):
        if r.hidden_layout is not None:
            raise error(
                "a leaf on Auto mesh axes that is split along anything but its first "
                "row axis and its batch must say so, since a compiled step could not "
                f"see it and would gather it in full; {describe_leaf(path, leaf)} and "
                f"is laid out as {r.hidden_layout}. {_what_to_write(r.hidden_layout)}"
            )
        # A metric that is split among devices may need to be inside ``shard_map``.
        if callable(r.B) and r.layout is None and is_known(leaf):
            fault = indefinite_fault(r.B, r.read(leaf))
            if fault is not None:
                raise error(f"{fault}. {describe_leaf(path, leaf)}.")
    return view


def warn_of_gathering(view: View) -> None:
    """Warn when a program is compiled that gathers a leaf it cannot see to be split.

    ``init`` refuses such a leaf, if it sees it. Where ``init`` is traced too, the
    compiler is asked for the layout of each leaf on Auto axes whose mask does not tell
    it. A program with such a question in it cannot be exported.
    """
    for path, leaf, r in zip(view.paths, view.points, view.readings, strict=True):
        # Other tracers, as those of vmap, cannot be asked.
        traced = type(leaf).__name__ == "DynamicJaxprTracer"
        if traced and not r.told and on_auto_axes(leaf):
            warn = partial(_warn_if_gathered, path, r)
            jax.debug.inspect_array_sharding(leaf, callback=warn)


def _warn_if_gathered(path, reading, sharding):
    spec = PartitionSpec(*getattr(sharding, "spec", ()))
    tall, short = reading.rows, reading.columns
    if reading.wide:
        tall, short = short, tall
    if any(a < len(spec) and spec[a] for a in (*tall[1:], *short)):
        warnings.warn(
            f"a step gathers {path!r} on every device: it is split as {spec} on Auto "
            f"mesh axes, which a traced step cannot see. {_what_to_write(spec)}",
            stacklevel=2,
        )


def _what_to_write(spec):
    return (
        f"Read it by Stiefel(…, sharding={spec}), or make the mesh with Explicit axes."
    )
