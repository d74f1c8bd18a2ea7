"""Single-precision copies of half-precision parameters, for any optimiser.

In bf16 a step shorter than 1/256 of an entry is lost when it is added, and what is left
of orthonormality is what rounding leaves. With copies the optimiser moves numbers that
are finer, and the model gets them rounded.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike

from cdopt_jax._checks import check_optimizer, check_params
from cdopt_jax._errors import error, naming, public
from cdopt_jax._leaves.paths import (
    describe_leaf,
    is_array,
    leaf_paths,
    leaves_beside,
    listing,
)


class MasterState(NamedTuple):
    """The state of `master_copies`.

    Attributes:
        copies: The tree of the parameters, with a copy for each leaf of half precision
            and None for the others.
        optimizer: The state of the optimiser it was given, whose parameters are the
            copies.
    """

    copies: Any
    optimizer: Any


def master_copies(
    optimizer: optax.GradientTransformation, dtype: DTypeLike = jnp.float32
) -> optax.GradientTransformationExtraArgs:
    """Run an optimiser on float32 copies of half-precision parameters.

    The copies are in the state, the optimiser sees them in place of the parameters,
    together with gradients in their dtype, and after `optax.apply_updates` each
    parameter is its copy rounded, bit for bit. Leaves that have the precision already
    are the optimiser's as they are, and are not held twice. Where a parameter is not
    what its copy rounds to, because it was restored or set to something else, the copy
    is made anew of it, entry by entry. A constrained parameter is then as orthonormal
    as rounding leaves it, and its copy to single precision: store or evaluate the
    copies where that counts.

    Complex leaves have no half precision, and so no copies: they are the optimiser's as
    they are, whatever the dtype of the copies.

    Put it outermost, as in ``master_copies(constrain(optax.adam(1e-3), mask))``, and
    other wrappers inside, where all is in one dtype. The updates of copied leaves come
    out in the dtype of the copies, whatever that of the gradients: an update in half
    precision does not reach every number in half precision, such as from 1 to 1e-3.

    Args:
        optimizer: The optimiser; `constrain` and all of Optax's.
        dtype: That of the copies. Real floating-point leaves with fewer bits have one.

    Returns:
        A transformation whose ``update`` needs ``params``, with a `MasterState`. Extra
        arguments are passed on; ``grad`` with the dtype of the copies.

    Raises:
        ValueError: At once, on an object without ``init`` and ``update`` or a dtype
            that is not floating point; from ``update``, when ``params`` is missing or
            the state is that of other parameters.

    Examples:
        Steps too short for bf16 still add up:

        >>> import jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> x = jnp.ones(2, jnp.bfloat16)
        >>> def run(tx, x):
        ...     state = tx.init(x)
        ...     for _ in range(100):
        ...         updates, state = tx.update(jnp.ones_like(x), state, x)
        ...         x = optax.apply_updates(x, updates)
        ...     return x
        >>> print(run(optax.sgd(1e-3), x), run(cdx.master_copies(optax.sgd(1e-3)), x))
        [1 1] [0.898438 0.898438]
    """
    with naming("master_copies"):
        check_optimizer(optimizer)
        _check_dtype(dtype)
    inner = optax.with_extra_args_support(optimizer)

    @public("master_copies")
    def init(params):
        for path, leaf in zip(leaf_paths(params), jax.tree.leaves(params), strict=True):
            if not is_array(leaf):
                raise error(f"the leaves must be arrays; {describe_leaf(path, leaf)}.")
        copies = jax.tree.map(
            lambda x: jnp.astype(x, dtype) if _narrower(x, dtype) else None, params
        )
        points = jax.tree.map(_either, params, copies)
        return MasterState(copies=copies, optimizer=inner.init(points))

    def widened(label, grads, params):
        """Gradients in the dtype of what the optimiser takes for the parameters."""
        # Those of `optax.lookahead` are of one of its two sets.
        if isinstance(params, optax.LookaheadParams):
            params = params.fast
        leaves = leaves_beside(label, grads, params)
        return jax.tree.map(
            lambda x, g: jnp.astype(g, dtype) if _narrower(x, dtype) else g,
            params,
            jax.tree.structure(params).unflatten(leaves),
        )

    @public("master_copies")
    def update(updates, state, params=None, **extra_args):
        check_params(params)
        _check_state(state, params, dtype)
        points = jax.tree.map(_followed, params, state.copies)
        updates = widened("updates", updates, params)
        if "grad" in extra_args:
            extra_args["grad"] = widened("grad", extra_args["grad"], params)
        updates, inner_state = inner.update(
            updates, state.optimizer, points, **extra_args
        )
        updates = jax.tree.map(_move, params, state.copies, points, updates)
        copies = jax.tree.map(_reached, params, state.copies, updates)
        return updates, MasterState(copies=copies, optimizer=inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _narrower(x, dtype):
    """Whether a leaf is of lower precision than the copies, and so has one."""
    of = jnp.result_type(x)
    floating = jnp.issubdtype(of, jnp.floating)
    return floating and jnp.finfo(of).bits < jnp.finfo(dtype).bits


def _either(x, copy):
    return x if copy is None else copy


def _followed(x, copy):
    """The copy, but x where x is not the copy rounded."""
    if copy is None:
        return x
    same = _bits(copy.astype(x.dtype)) == _bits(x)
    return jnp.where(same, copy, x.astype(copy.dtype))


def _bits(x):
    # Of a number that is only compared, XLA may leave out the rounding, where it allows
    # excess precision: every entry would then differ from its copy.
    return lax.bitcast_convert_type(x, f"uint{jnp.finfo(x.dtype).bits}")


def _move(x, copy, at, u):
    """The update of the parameter for an update of its copy."""
    return u if copy is None else (at + u).astype(at.dtype) - x.astype(at.dtype)


def _reached(x, copy, u):
    """The new copy: where the update leads to, so that it rounds to the parameter."""
    return None if copy is None else x.astype(copy.dtype) + u


def _check_dtype(dtype):
    try:
        known = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    except TypeError:
        known = False
    if not known:
        raise error(
            "dtype must be a floating-point dtype, as in master_copies(optimizer, "
            f"jnp.float32); it is {dtype!r}."
        )
    if jax.dtypes.canonicalize_dtype(dtype) != jnp.dtype(dtype):
        raise error(
            f"dtype is {jnp.dtype(dtype)}, which JAX has switched off; write "
            'jax.config.update("jax_enable_x64", True) first.'
        )


def _check_state(state, params, dtype):
    """Raise unless a state holds the copies that these parameters need."""
    if not isinstance(state, MasterState):
        raise error(
            f"the state must be the MasterState that init made; it is a "
            f"{type(state).__name__}. Where it was restored from a checkpoint, restore "
            "it with init(params) as the target, which has the right structure."
        )
    leaves, treedef = jax.tree.flatten(params)
    try:
        copies = treedef.flatten_up_to(state.copies)
    except (ValueError, TypeError):
        copies = None
    wanted = [jnp.shape(x) if _narrower(x, dtype) else None for x in leaves]
    if copies is None or wanted != [c if c is None else jnp.shape(c) for c in copies]:
        rows = zip(leaf_paths(params), wanted, strict=True)
        halves = [path for path, shape in rows if shape is not None]
        raise error(
            "the state must be that of these parameters, with a copy of each leaf of "
            f"lower precision than {jnp.dtype(dtype)} and of no other; those leaves "
            f"are {listing(halves) or 'none'}. Write state = tx.init(params) for "
            "parameters in the dtype they are trained in."
        )
