"""Problems that the tests of the solver share."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import cdopt_jax as cdx

RNG = np.random.default_rng(0)
N, P = 20, 3
_Q = np.linalg.qr(RNG.normal(size=(N, N)))[0]
SPECTRUM = np.geomspace(1, 1e-2, N)
M = (_Q * SPECTRUM) @ _Q.T
_R = RNG.normal(size=(N, N))
METRIC = _R @ _R.T / N + np.eye(N)
BEST = -SPECTRUM[:P].sum() / 2


def start(seed=0, n=N, p=P, B=None):
    x = cdx.stiefel.random(jax.random.key(seed), (n, p), jnp.float64)
    return x if B is None else cdx.stiefel.project(x, B=B)


def quadratic(x):
    return -jnp.sum(x * (jnp.asarray(M) @ x)) / 2


def variance(x, data):
    """Less the variance that the columns of x explain."""
    return -jnp.sum((data @ x) ** 2) / data.shape[0]


_BASIS = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
PLANTED = _BASIS[:, :1]
POINTS = np.concatenate(
    [
        np.random.default_rng(2).normal(size=(150, 7)) @ _BASIS[:, 1:].T,
        np.random.default_rng(3).normal(size=(50, 8)),
    ]
)


def kinks(x):
    """Few points off the planted subspace, many on it."""
    return jnp.mean(jnp.sum(jnp.abs(jnp.asarray(POINTS) @ x), axis=1))


def farthest(x, g, weight, zero):
    """The least t for which some g + xs + weight·∂‖x‖₁ is within t, by an LP."""
    x, g = np.asarray(x), np.asarray(g)
    p = x.shape[1]
    columns = []
    for i in range(p):
        for j in range(i, p):
            s = np.zeros((p, p))
            s[i, j] = s[j, i] = 1
            columns.append((x @ s).ravel())
    normal, ones = np.stack(columns, 1), np.ones((x.size, 1))
    free = (np.abs(x) > zero).ravel()
    fixed = g.ravel() + weight * np.where(free, np.sign(x).ravel(), 0)
    room = np.where(free, 0, weight)
    return scipy.optimize.linprog(
        np.r_[np.zeros(len(columns)), 1],
        A_ub=np.block([[normal, -ones], [-normal, -ones]]),
        b_ub=np.concatenate([room - fixed, room + fixed]),
        bounds=[(None, None)] * len(columns) + [(0, None)],
    ).fun
