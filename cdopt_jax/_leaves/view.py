"""The constrained leaves of a tree of parameters, as matrices, and the way back.

Every function on trees, every transformation and the solver look at parameters through
a `View`. A view hides how a leaf is read as matrices, that half precision is computed
in float32, where a leaf lies on a mesh, and that small leaves of one shape are computed
together: a model may have hundreds of small matrices of equal shape, each a leaf of its
own. One by one they would cost a program of many small kernels, and a second of
compilation for every few of them; as one stack, they are a program of the size of one.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from cdopt_jax._checks import check_params
from cdopt_jax._math.automatic_beta import weight
from cdopt_jax._math.products import Form, is_complex
from cdopt_jax._math.sharding import on_one_device
from cdopt_jax._math.stacks import split

from .masks import Mask, select
from .paths import leaf_paths, leaves_beside
from .reading import Reading
from .structure import Structure, attach_metrics, detach_metrics

SMALL = 2**13
"""The entries of the largest leaf to be stacked. Up to that size 64 leaves in one stack
step as quickly as one by one, and compile up to 7 times as quickly; beyond that size a
step of the stack takes 1.3 to 1.6 times as long."""


class Group(NamedTuple):
    """Constrained leaves that are computed together.

    Attributes:
        members: Their positions among the constrained leaves.
        readings: How each is read as matrices.
        x: Their matrices, of shape ``(members, *batch, n, p)``, or ``(n, p)`` if there
            is one. With a first axis of size one, products on CPU are up to 1.25 times
            as slow for one matrix, and three times as quick for a stack of them.
        form: The form in which they are orthonormal.
        dtype: The dtype of the leaves.
    """

    members: tuple[int, ...]
    readings: tuple[Reading, ...]
    x: Array
    form: Form
    dtype: Any

    @property
    def scale(self) -> float:
        """What the leaves are divided by to be the matrices."""
        return self.readings[0].scale

    def stack(self, leaves: Sequence[Any]) -> Array:
        """The matrices of other leaves, one for each constrained leaf, beside x."""
        chosen = [leaves[i] for i in self.members]
        return _stacked(chosen, self.readings).astype(self.x.dtype)

    def leaves(self, stack: Array) -> list[tuple[int, Array]]:
        """The leaves that a stack of matrices stands for, with their positions."""
        parts = _unstacked(stack, self.readings)
        rows = zip(self.members, self.readings, parts, strict=True)
        return [(i, r.write(part, part.dtype)) for i, r, part in rows]

    def largest(self, values: Array, trailing: int = 0) -> Array:
        """Of one number for each matrix, the largest of each leaf.

        Or of several numbers for each matrix, which then are ``trailing`` axes.
        """
        top = self._per_leaf(jnp.max, values, trailing)
        return lax.pmax(top, self.form.across) if self.form.across else top

    def total(self, values: Array) -> Array:
        """Of one number for each matrix, the sum for each leaf."""
        sums = self._per_leaf(jnp.sum, values)
        return lax.psum(sums, self.form.across) if self.form.across else sums

    def _per_leaf(self, reduce, values, trailing=0):
        # No axis of a batch is reshaped away: it may be split over devices.
        many = len(self.members) > 1
        last = values.ndim - trailing
        batch = tuple(range(1 if many else 0, last))
        return reduce(values, axis=batch).reshape(-1, *values.shape[last:])


@jax.tree_util.register_pytree_node_class
class View:
    """The constrained leaves of a tree, as matrices.

    A view passes into compiled functions; there it knows the constrained leaves alone,
    and not the tree they came from.

    Args:
        params: The tree of parameters.
        mask: Which leaves are constrained.
        together: Whether small leaves of one shape are computed together. A function
            that is differentiated takes them one by one: the derivative of taking a
            stack apart is a scatter.
    """

    def __init__(self, params: Any, mask: Mask, *, together: bool = True):
        check_params(params)
        self.together = together
        self.params = params
        self._every = select(params, mask)
        self.selected = [r is not None for r in self._every]
        pairs = zip(jax.tree.leaves(params), self._every, strict=True)
        self.points = [x for x, r in pairs if r]
        self.readings = [r for r in self._every if r]

    @cached_property
    def _detached(self):
        return detach_metrics(self._every)

    @cached_property
    def structure(self) -> Structure:
        """All that is known of the tree before values are, its free leaves included."""
        leaves, treedef = jax.tree.flatten(self.params)
        readings, slots, _ = self._detached
        return Structure(
            treedef=treedef,
            shapes=tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves),
            paths=tuple(leaf_paths(self.params)),
            readings=readings,
            slots=slots,
        )

    @property
    def metrics(self) -> list[Any]:
        """The metrics that are arrays, each once."""
        return self._detached[2]

    @cached_property
    def paths(self) -> list[str]:
        """The paths of the constrained leaves."""
        pairs = zip(leaf_paths(self.params), self.selected, strict=True)
        return [path for path, chosen in pairs if chosen]

    def select(self, tree: Any, label: str) -> list[Any]:
        """The constrained leaves of another tree, which is called ``label`` in errors.

        The tree must have the structure and the shapes of the parameters.
        """
        leaves = leaves_beside(label, tree, self.params)
        return [leaf for leaf, s in zip(leaves, self.selected, strict=True) if s]

    def merge(self, constrained: Sequence[Any], tree: Any) -> Any:
        """A tree with other constrained leaves and the same free ones."""
        treedef = jax.tree.structure(self.params)
        new = iter(constrained)
        pairs = zip(treedef.flatten_up_to(tree), self.selected, strict=True)
        return treedef.unflatten([next(new) if s else leaf for leaf, s in pairs])

    @cached_property
    def groups(self) -> list[Group]:
        """The constrained leaves, in groups of one shape where that pays."""
        found: dict[Any, list[int]] = {}
        for i, (leaf, r) in enumerate(zip(self.points, self.readings, strict=True)):
            small = math.prod(r.shape) <= SMALL and on_one_device(leaf)
            tall = sorted(r.matrix, reverse=True)
            kind = (r.stack, *tall, leaf.dtype, id(r.B), r.scale, r.layout, r.across)
            found.setdefault(kind if small and self.together else i, []).append(i)
        return [self._group(tuple(members)) for members in found.values()]

    def _group(self, members):
        points = [self.points[i] for i in members]
        readings = tuple(self.readings[i] for i in members)
        return Group(
            members=members,
            readings=readings,
            x=_stacked(points, readings),
            form=readings[0].form._replace(stacked=not _single(readings)),
            dtype=points[0].dtype,
        )

    def map(self, fn: Callable[..., Array], *columns: Sequence[Any]) -> list[Array]:
        """The leaves that ``fn`` makes of the matrices, in the dtype of the result.

        Args:
            fn: From a group, and the matrices of each column, to matrices.
            *columns: Other leaves, one for each constrained leaf.
        """
        # The last leaves first, whose gradients are there first.
        groups = self.groups[::-1]
        stacks = [fn(g, *(g.stack(column) for column in columns)) for g in groups]
        return self.leaves(stacks[::-1])

    def largest(self, fn: Callable[..., Array], *columns: Sequence[Any]) -> Array:
        """A vector with the largest number that ``fn`` makes of a leaf's matrices.

        Args:
            fn: From a group, and the matrices of each column, to a number for each
                matrix.
            *columns: Other leaves, one for each constrained leaf.
        """
        rows = [(g, fn(g, *(g.stack(c) for c in columns))) for g in self.groups]
        return self.vector([g.largest(values) for g, values in rows])

    def total(self, fn: Callable[..., Array], *columns: Sequence[Any]) -> Array:
        """A vector with the sum of the numbers that ``fn`` makes of a leaf's matrices.

        The arguments are those of `largest`.
        """
        rows = [(g, fn(g, *(g.stack(c) for c in columns))) for g in self.groups]
        return self.vector([g.total(values) for g, values in rows])

    def leaves(self, stacks: Sequence[Array]) -> list[Array]:
        """The constrained leaves that the matrices of all groups stand for."""
        pairs = zip(self.groups, stacks, strict=True)
        found = dict(row for group, stack in pairs for row in group.leaves(stack))
        return [found[i] for i in range(len(found))]

    def as_moves(self, moves: Sequence[Array], updates: Sequence[Any]) -> list[Array]:
        """Moves to chosen points, with the precision that is needed to reach them.

        That is the precision of the update or of the parameter, whichever is higher.
        """
        rows = zip(moves, updates, self.points, strict=True)
        return [m.astype(jnp.promote_types(u.dtype, x.dtype)) for m, u, x in rows]

    def vector(self, values: Sequence[Array]) -> Array:
        """One vector in the order of the leaves, from a vector for each group."""
        if len(self.groups) == 1:
            return values[0]
        if not values:
            return jnp.zeros(0)
        order = np.argsort([i for group in self.groups for i in group.members])
        dtype = np.result_type(*(v.dtype for v in values))
        found = jnp.concatenate([v.astype(dtype) for v in values])
        # The derivative of picking entries is a scatter.
        return found if (np.diff(order) == 1).all() else found[order]

    def tree_flatten(self):
        """The constrained leaves and their metrics, and all that is not an array."""
        bare, slots, metrics = detach_metrics(self.readings)
        return (self.points, metrics), (bare, slots, self.together)

    @classmethod
    def tree_unflatten(cls, static, children):
        """The view inside of a compiled function."""
        (bare, slots, together), (points, metrics) = static, children
        view = object.__new__(cls)
        view.together = together
        view.points = list(points)
        view.readings = [r for r in attach_metrics(bare, slots, metrics) if r]
        return view


def automatic_weight(group: Group, g: Array) -> Array:
    """The weight β that a gradient asks for, in the unit of the matrices."""
    return weight(g, group.form) * group.scale**2


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a view and arrays, compiled where it is called eagerly.

    Step by step, conditionals would be compiled anew at each call.
    """
    program = jax.jit(fn)

    def call(view: View, *arguments: Any) -> Any:
        traced = any(isinstance(a, Tracer) for a in jax.tree.leaves((view, arguments)))
        with _promotion(view):
            return (fn if traced else program)(view, *arguments)

    return call


def _promotion(view):
    """JAX's strict mode has no product of a real number and a complex matrix.

    Such products are meant here. Real matrices are computed in the mode of the user.
    """
    if any(is_complex(x) for x in view.points):
        return jax.numpy_dtype_promotion("standard")
    return nullcontext()


def _single(readings):
    return len(readings) == 1 and not readings[0].stack


def _stacked(leaves, readings):
    parts = [r.read(leaf) for leaf, r in zip(leaves, readings, strict=True)]
    if _single(readings):
        return parts[0]
    return parts[0][None] if len(parts) == 1 else jnp.stack(parts)


def _unstacked(stack, readings):
    count = len(readings)
    if count == 1:
        return [stack if _single(readings) else stack[0]]
    return split(stack, count)
