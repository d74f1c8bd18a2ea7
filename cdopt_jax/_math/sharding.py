"""Where the matrices of a leaf lie on a mesh of devices.

A step contracts rows and mixes columns. With its rows split, a matrix needs sums of p×p
matrices over the devices and nothing else; with its columns split, it would have to be
gathered in full on each of them. So steps are computed with split rows, whatever the
layout of the leaf, which is exchanged for it before and restored after. Batch axes stay
as they are.

A layout is a tuple with the names of the mesh axes that split each axis of the leaf. On
Explicit axes it is part of the leaf's type. On Auto axes it is not known when a program
is traced, and the compiler lays the step out, unless the layout is given. Inside
``shard_map`` it has to be given, since a device sees nothing but its own part.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

_NO_MESH = AbstractMesh((), ())

Names = tuple[str, ...]
Split = tuple[Names, ...]


class Layout(NamedTuple):
    """The two layouts of a leaf, and how to get from one to the other.

    Attributes:
        mesh: The mesh.
        manual: Whether this is the inside of a ``shard_map``.
        home: The leaf's own layout.
        away: That of the step.
        host: The axis of the rows that takes up what has split the columns.
        pad: How many rows of zeros, which change no product, make it divisible.
        over: The mapped axes over which a device has to sum what it contracts.
        shape: The shape of the leaf in the layout of the step.
        given: The shape of the leaf in its own layout, on a device inside
            ``shard_map``.
    """

    mesh: Any
    manual: bool
    home: Split
    away: Split
    host: int
    pad: int
    over: Names
    shape: tuple[int, ...]
    given: tuple[int, ...]

    def enter(self, leaf: Array) -> Array:
        """The leaf in the layout of the step."""
        if self.pad:
            width = [(0, 0)] * leaf.ndim
            width[self.host] = (0, self.pad)
            leaf = jnp.pad(leaf, width)
        if self.manual:
            for axis, names in self._moved:
                leaf = lax.all_to_all(leaf, names, self.host, axis, tiled=True)
            return leaf
        return self._place(leaf, self.away)

    def leave(self, leaf: Array) -> Array:
        """The leaf in its own layout again."""
        if self.manual:
            for axis, names in reversed(self._moved):
                leaf = lax.all_to_all(leaf, names, axis, self.host, tiled=True)
        else:
            # First where the products left it: else the compiler would rather gather
            # their factors than exchange the result.
            leaf = self._place(self._place(leaf, self.away), self.home)
        if self.pad:
            size = leaf.shape[self.host] - self.pad
            leaf = lax.slice_in_dim(leaf, 0, size, axis=self.host)
        return leaf

    @property
    def _moved(self):
        """The axes of the columns that are split at home, and by what."""
        pairs = zip(self.home, self.away, strict=True)
        return [(i, a) for i, (a, b) in enumerate(pairs) if a and not b]

    def _place(self, leaf, split):
        spec = PartitionSpec(*(names or None for names in split))
        sharding = NamedSharding(self.mesh, spec)
        if _kinds(self.mesh, "Explicit"):
            return jax.sharding.reshard(leaf, sharding)
        return lax.with_sharding_constraint(leaf, sharding)


def plan(
    leaf: Any,
    given: PartitionSpec | None,
    rows: Sequence[int],
    columns: Sequence[int],
    *,
    movable: bool = True,
) -> Layout | None:
    """The layout of a leaf whose matrices have these axes as rows and columns.

    Args:
        leaf: The leaf; shapes and dtypes alone have no layout.
        given: Its layout, where its type does not show it.
        rows: The axes of the rows.
        columns: The axes of the columns.
        movable: Whether the rows may change their order, so that any of them may come
            first and be split.

    Returns:
        None where there is nothing to do, or nothing known.
    """
    if not isinstance(leaf, Array):
        return None
    mesh, home = _home(leaf, given)
    if not any(home[a] for a in (*rows, *columns)):
        return None
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))

    def parts(names):
        return math.prod(sizes[name] for name in names)

    sized = list(enumerate(leaf.shape))
    held = sum((home[a] for a in rows), ())
    moved = sum((home[a] for a in columns), ())
    manual = _kinds(mesh, "Manual") >= {*held, *moved}
    if manual:
        # A device may hold any rows, in any order: only the columns are exchanged.
        host = max(rows, key=lambda a: leaf.shape[a])
        away = tuple(() if a in columns else names for a, names in enumerate(home))
        pad = -leaf.shape[host] % parts(moved)
        shape = [n * parts(home[a]) if a in columns else n for a, n in sized]
        shape[host] = (shape[host] + pad) // parts(moved)
        return Layout(
            mesh=mesh,
            manual=True,
            home=home,
            away=away,
            host=host,
            pad=pad,
            over=held + moved,
            shape=tuple(shape),
            given=tuple(leaf.shape),
        )
    names = held + moved
    hosts = list(rows) if movable else list(rows[:1])
    whole = [a for a in hosts if leaf.shape[a] % parts(names) == 0]
    bare = [a for a in hosts if not home[a]]
    # Where it is split already, or else where there is most to split.
    host = max(whole or bare or hosts, key=lambda a: (home[a], leaf.shape[a]))
    if not whole and not bare:
        names = home[host]
    away = [() if a in (*rows, *columns) else home[a] for a in range(leaf.ndim)]
    away[host] = home[host] + tuple(n for n in names if n not in home[host])
    pad = -leaf.shape[host] % parts(names)
    return Layout(
        mesh=mesh,
        manual=False,
        home=home,
        away=tuple(away),
        host=host,
        pad=pad,
        over=(),
        shape=tuple(n + pad if a == host else n for a, n in sized),
        given=tuple(leaf.shape),
    )


def whole_shape(leaf: Any, given: PartitionSpec) -> tuple[int, ...]:
    """The shape of the leaf of which a device holds a part, inside ``shard_map``."""
    if not isinstance(leaf, Array):
        return tuple(leaf.shape)
    mesh, home = _home(leaf, given)
    mapped = _kinds(mesh, "Manual")
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    parts = [math.prod(sizes[n] for n in names if n in mapped) for names in home]
    return tuple(n * k for n, k in zip(leaf.shape, parts, strict=True))


def unknown_axes(leaf: Any, given: PartitionSpec) -> set[str]:
    """The names in a layout that the leaf's mesh, if it has one, does not have."""
    if not isinstance(leaf, Array):
        return set()
    mesh, home = _home(leaf, given)
    return {n for names in home for n in names} - set(mesh.axis_names)


def mapped_axes(
    leaf: Any, given: PartitionSpec | None, axes: Sequence[int]
) -> tuple[str, ...]:
    """The names that split these axes inside ``shard_map``."""
    if given is None or not isinstance(leaf, Array):
        return ()
    mesh, home = _home(leaf, given)
    mapped = _kinds(mesh, "Manual")
    return tuple(name for a in axes for name in home[a] if name in mapped)


def on_one_device(leaf: Any) -> bool:
    """Whether a leaf is known not to be spread over a mesh."""
    mesh = getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", _NO_MESH)
    return mesh.empty


def on_auto_axes(leaf: Any) -> bool:
    """Whether a leaf lies on a mesh of several devices whose axes are all Auto."""
    mesh = getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", _NO_MESH)
    if mesh.empty or math.prod(mesh.axis_sizes) == 1:
        return False
    return _kinds(mesh, "Auto") == set(mesh.axis_names)


def contracted(a: Array) -> NamedSharding | None:
    """The layout of aᵀb, where the type of ``a`` says that its rows are split."""
    sharding = _typed(a)
    if sharding is None or not sharding.spec[-2]:
        return None
    return NamedSharding(
        sharding.mesh, PartitionSpec(*sharding.spec[:-2], None, sharding.spec[-1])
    )


def like(x: Array) -> NamedSharding | None:
    """The layout of ``x``, where its type says that its rows are split."""
    return None if contracted(x) is None else _typed(x)


def hidden(leaf: Any) -> PartitionSpec | None:
    """The layout of a concrete leaf on Auto axes, which no traced program will see."""
    if not isinstance(leaf, Array) or isinstance(leaf, Tracer):
        return None
    sharding = leaf.sharding
    if not isinstance(sharding, NamedSharding) or _typed(leaf) is not None:
        return None
    return sharding.spec


def _home(leaf, given):
    typed = _typed(leaf)
    spec = given or (typed.spec if typed else hidden(leaf)) or PartitionSpec()
    names = [(n,) if isinstance(n, str) else tuple(n or ()) for n in spec]
    names += [()] * (leaf.ndim - len(names))
    traced = isinstance(leaf, Tracer)
    sharding = jax.typeof(leaf).sharding if traced else leaf.sharding
    mesh = getattr(sharding, "mesh", _NO_MESH)
    if mesh.empty:  # one device
        return mesh, ((),) * leaf.ndim
    return mesh, tuple(names)


def _typed(leaf):
    """The sharding of a leaf on Explicit axes."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    return sharding if _kinds(sharding.mesh, "Explicit") else None


def _kinds(mesh, kind):
    """The names of the mesh axes of a kind."""
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, found in pairs if found.name == kind}
