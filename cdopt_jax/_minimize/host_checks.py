"""Feasibility and projection by NumPy in double precision.

In single precision xᵀBx cannot be formed to better than the condition number of B times
the precision, and no projection can be better than that.
"""

import jax.numpy as jnp
import numpy as np
import optax

from cdopt_jax._checks import in_double_precision
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import Group, View


def feasibility_on_host(params: optax.Params, mask: Mask) -> float:
    """The largest ‖xᴴBx − I‖_F of the leaves whose metric is no function."""
    groups = View(params, mask, together=False).groups
    grams = [_gram(group)[1] for group in groups if not callable(group.form.B)]
    off = [np.linalg.norm(m - np.eye(m.shape[-1]), axis=(-2, -1)) for m in grams]
    return max(float(np.max(e)) for e in off)


def projected_on_host(params: optax.Params, mask: Mask) -> optax.Params:
    """The nearest point of the manifold; leaves whose metric is a function stay."""
    view = View(params, mask, together=False)

    def nearest(group):
        if callable(group.form.B):
            return group.x
        x, gram = _gram(group)
        values, vectors = np.linalg.eigh(gram)
        back = np.swapaxes(vectors, -1, -2).conj()
        root = (vectors / np.sqrt(values)[..., None, :]) @ back
        return jnp.asarray(x @ root, group.x.dtype)

    rows = zip(view.map(nearest), view.points, view.readings, strict=True)
    new = [leaf if callable(r.B) else a.astype(leaf.dtype) for a, leaf, r in rows]
    return view.merge(new, params)


def _gram(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """The matrices x of a leaf, and xᴴBx."""
    x, B = in_double_precision(group.x), group.form.B
    bx = x if B is None else in_double_precision(B) @ x
    return x, np.swapaxes(x, -1, -2).conj() @ bx
