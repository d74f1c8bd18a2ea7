"""Riemannian optimisation by retraction: the step is followed by a decomposition."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx


def qr(x: jax.Array) -> jax.Array:
    """The orthonormal factor with a positive diagonal of the triangular one."""
    q, r = jnp.linalg.qr(x)
    sign = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
    return q * jnp.where(sign == 0, 1, sign)[..., None, :]


def retracted(
    optimiser: optax.GradientTransformation, mask: Any
) -> optax.GradientTransformationExtraArgs:
    """An optimiser on projected gradients, its step brought back by QR.

    Leaves are read in the paper's way: the last axis is the columns, and wide matrices
    are transposed.
    """
    inner = optax.with_extra_args_support(optimiser)

    def matrix(leaf):
        m = leaf.reshape(-1, leaf.shape[-1])
        return m.T if m.shape[0] < m.shape[1] else m

    def back(m, leaf):
        wide = leaf.size // leaf.shape[-1] < leaf.shape[-1]
        return (m.T if wide else m).reshape(leaf.shape)

    def on_constrained(fn, params, *others):
        chosen = cdx.feasibility(params, mask)
        paths = [
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, _ in jax.tree_util.tree_leaves_with_path(params)
        ]
        leaves, treedef = jax.tree.flatten(params)
        columns = [treedef.flatten_up_to(o) for o in others]
        rows = zip(paths, leaves, *columns, strict=True)
        return treedef.unflatten(
            [
                back(fn(matrix(x), *map(matrix, rest)), x)
                if path in chosen
                else rest[0]
                for path, x, *rest in rows
            ]
        )

    def update(updates, state, params=None, **extra_args):
        updates = on_constrained(cdx.stiefel.tangent, params, updates)
        updates, state = inner.update(updates, state, params, **extra_args)
        return on_constrained(lambda x, u: qr(x + u) - x, params, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update)
