"""Complex leaves through every transformation and every function of trees.

`test_stiefel`, `test_paper`, `test_bounds`, `test_radius` and `test_sharding` have the
identities, the theorems, the bounds and the layouts over the complex numbers; here is
what trees and transformations make of them, and which gradient they expect.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

import cdopt_jax as cdx
from cdopt_jax import stiefel
from tests.marks import mostly
from tests.oracles import (
    assert_close,
    double,
    gradient,
    gram_residual,
    inner,
    normal,
    polar,
    spd,
    symmetric,
    transpose,
)

TOL = 1e-12
N, P = 10, 3
H = np.asarray(symmetric(np.asarray(normal((N, N), 5, "complex128"))))
LEAST = np.linalg.eigvalsh(H)[:P].sum()
START = stiefel.random(jax.random.key(0), (N, P), jnp.complex128)


def energy(x):
    return jnp.sum((x.conj() * (H @ x)).real)


def falling(rate, steps=600):
    return optax.cosine_decay_schedule(rate, steps)


TRANSFORMS: dict[str, Any] = {
    "constrain, sgd": cdx.constrain(optax.sgd(0.1)),
    "constrain, momentum": cdx.constrain(optax.sgd(0.02, momentum=0.9)),
    "constrain, adam": cdx.constrain(optax.adam(falling(0.1))),
    "constrain, split": cdx.constrain(
        optax.contrib.split_real_and_imaginary(optax.adam(falling(0.1)))
    ),
    "constrain, muon": cdx.constrain(optax.contrib.muon(falling(0.1))),
    "constrain, prox": cdx.constrain(
        optax.sgd(0.1), regularizer=cdx.prox.l1(0.0), learning_rate=0.1
    ),
    "dissolve_gradients": optax.chain(cdx.dissolve_gradients(20.0), optax.sgd(0.02)),
    "dissolve_gradients, auto": optax.chain(
        cdx.dissolve_gradients("auto"), optax.sgd(0.05)
    ),
    "restore_feasibility": optax.chain(
        cdx.project_gradients(), optax.sgd(0.05), cdx.restore_feasibility()
    ),
    "proximal_step": cdx.proximal_step(0.05, cdx.prox.none(), tangential=True),
}


def run(tx, x, slope, steps=600):
    def step(carry, _):
        x, state = carry
        updates, state = tx.update(slope(x), state, x)
        return (optax.apply_updates(x, updates), state), None

    (x, state), _ = jax.jit(
        lambda x: jax.lax.scan(step, (x, tx.init(x)), length=steps)
    )(x)
    return x, state


# Each differs from a row that is always run in one part, which has tests of its own.
ALIKE = {"constrain, momentum", "constrain, prox", "dissolve_gradients, auto"}


@pytest.mark.parametrize("name", mostly(TRANSFORMS, slow=ALIKE))
def test_conjugated_gradients_lead_to_the_least_eigenvalues(name):
    x, _ = run(TRANSFORMS[name], START, gradient(energy))
    assert x.dtype == jnp.complex128
    assert float(energy(stiefel.project(x))) == pytest.approx(LEAST, abs=1e-6)


def test_the_gradient_of_jax_as_it_is_does_not():
    x, _ = run(cdx.constrain(optax.sgd(0.1)), START, jax.grad(energy))
    assert float(energy(x)) > LEAST + 1


def test_a_loss_written_with_dissolve_needs_the_penalty_alone():
    tx = optax.chain(cdx.add_penalty(20.0), optax.sgd(0.02))
    x, _ = run(tx, START, gradient(lambda x: energy(cdx.dissolve(x))))
    assert float(energy(cdx.project(x))) == pytest.approx(LEAST, abs=1e-6)


def test_dissolved_gradients_are_the_conjugate_of_those_of_the_objective():
    x = START + 0.05 * normal(START.shape, 1, "complex128")
    for mask in (None, cdx.Stiefel(B=spd(N, "complex128")), cdx.Stiefel(B=spd(N))):
        h = cdx.objective(energy, mask, beta=3.0)
        tx = cdx.dissolve_gradients(3.0, mask)

        @jax.jit
        def both(x, mask=mask, h=h, tx=tx):
            g = gradient(energy)(cdx.dissolve(x, mask))
            return tx.update(g, tx.init(x), x)[0], gradient(h)(x)

        found, expected = both(x)
        assert_close(found, expected, TOL)


def test_the_objective_has_the_slopes_of_finite_differences_in_both_parts():
    h = jax.jit(cdx.objective(energy, beta=3.0))
    x, step = START + 0.05 * normal(START.shape, 1, "complex128"), 1e-6
    slope = gradient(h)(x)
    for seed, phase in enumerate((1, 1j, 1, 1j)):
        d = phase * normal(x.shape, seed + 2)
        found = (h(x + step * d) - h(x - step * d)) / (2 * step)
        # The second differences of h, of order 100, times the square of the step.
        assert float(found) == pytest.approx(inner(slope, d), rel=1e-7, abs=1e-6)


def test_projected_gradients_are_tangent_and_zero_where_the_gradient_is_normal():
    x = jnp.asarray(polar(normal((N, P), 0, "complex128")))
    g = normal((N, P), 1, "complex128")
    tx = cdx.project_gradients()
    v, _ = tx.update(g, tx.init(x), x)
    assert_close(v, g - x @ symmetric(transpose(x) @ g), TOL)
    normal_part = x @ symmetric(normal((P, P), 2, "complex128"))
    found, _ = tx.update(normal_part, tx.init(x), x)
    np.testing.assert_array_equal(found, jnp.zeros_like(x))
    # What turns columns by phases is tangent, and no such part is taken out.
    turned, _ = tx.update(1j * x, tx.init(x), x)
    assert_close(turned, 1j * x, TOL)


SPECS = {
    "tall": ((6, 3), cdx.Stiefel(), None),
    "wide": ((3, 6), cdx.Stiefel(), None),
    "square": ((4, 4), cdx.Stiefel(), None),
    "stack": ((5, 6, 3), cdx.layers.dense(), None),
    "conv": ((3, 3, 2, 4), cdx.layers.conv(), None),
    "heads": ((6, 2, 3), cdx.layers.attention(), None),
    "blocks": ((6, 6), cdx.layers.fused(2), None),
    "unit": ((7,), cdx.Stiefel(rows=0, columns=()), None),
    "metric": ((6, 3), cdx.Stiefel(B=spd(6, "complex128")), spd(6, "complex128")),
    "wide, metric": ((3, 6), cdx.Stiefel(B=spd(6, "complex128")), None),
}
TREE = {
    name: normal(shape, i, "complex128")
    for i, (name, (shape, *_)) in enumerate(SPECS.items())
}
MASK = {name: spec for name, (_, spec, _) in SPECS.items()}


def test_every_reading_is_projected_to_the_nearest_point():
    @jax.jit
    def points(tree):
        params = cdx.project(tree, MASK)
        near = jax.tree.map(lambda x: x + 0.01 * x.conj(), params)
        dissolved = cdx.dissolve(cdx.dissolve(near, MASK), MASK)
        sizes = [cdx.feasibility(x, MASK) for x in (params, dissolved)]
        return params, *sizes

    params, projected, dissolved = points(TREE)
    assert max(projected.values()) < TOL
    assert max(dissolved.values()) < 1e-4
    for name in ("tall", "square", "stack", "metric"):
        assert_close(params[name], polar(TREE[name], SPECS[name][2]), 1e-10)
    # Rows that are orthonormal in the sense of XXᴴ = I.
    wide = double(params["wide"])
    assert_close(wide @ wide.conj().T, np.eye(3), TOL)
    assert_close(wide, polar(TREE["wide"].T).T, 1e-10)
    # In a metric it is the transpose that is constrained.
    x, b = double(params["wide, metric"]).T, spd(6, "complex128")
    assert_close(gram_residual(x, b), np.zeros((3, 3)), TOL)
    assert np.linalg.norm(params["unit"]) == pytest.approx(1)


def test_every_reading_takes_guarded_steps_and_is_reported():
    tx = cdx.constrain(optax.adam(0.1), MASK)
    update = jax.jit(tx.update)
    params: Any = TREE
    state = tx.init(params)
    for size in (1.0, 1e-2, 1e6):
        grads = jax.tree.map(lambda x, size=size: size * x.conj() ** 2, params)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        found = cdx.feasibility(params, MASK)
        report = cdx.report(state, params, MASK)
        for name in SPECS:
            assert found[name] < 1e-5
            assert found[name] <= report[f"bound/{name}"] * P**0.5
            assert report[f"residual/{name}"] <= report[f"bound/{name}"] + TOL


def test_leaves_of_one_shape_take_the_steps_of_each_alone():
    """They are computed as one stack."""
    many = {str(i): normal((6, 2), i, "complex64") for i in range(5)}
    many["real"] = normal((6, 2), 9, "float32")
    grads = jax.tree.map(lambda x: 0.1 * x[::-1], many)
    tx = cdx.constrain(optax.sgd(1.0))
    updates: Any = jax.jit(tx.update)(grads, tx.init(many), many)[0]
    for name, x in many.items():
        alone: Any = tx.update(grads[name], tx.init(x), x)[0]
        np.testing.assert_allclose(updates[name], alone, atol=2e-6)
        assert updates[name].dtype == x.dtype


def test_the_initializer_draws_unitary_matrices():
    init = cdx.initializer(cdx.layers.conv())
    x = init(jax.random.key(0), (3, 3, 2, 4), jnp.complex64)
    assert x.dtype == jnp.complex64
    assert np.abs(np.imag(x)).max() > 0.1
    e = gram_residual(double(x).reshape(18, 4))
    assert np.abs(e).max() < 1e-6


def test_describe_reads_complex_leaves():
    text = cdx.describe({"u": START, "c": 1j * jnp.ones(3)})
    line = next(line for line in text.splitlines() if line.startswith("u "))
    assert "10 × 3" in line
    assert float(line.split()[-1]) < 1e-14
    assert "no matrix" in text


def test_complex_leaves_have_no_master_copies():
    params = {"u": START.astype(jnp.complex64), "w": jnp.ones((4, 2), jnp.bfloat16)}
    tx = cdx.master_copies(cdx.constrain(optax.adam(0.1), cdx.where("u")))
    state: Any = tx.init(params)
    assert state.copies["u"] is None
    assert state.copies["w"].dtype == jnp.float32
    updates, state = jax.jit(tx.update)(params, state, params)
    new: Any = optax.apply_updates(params, updates)
    assert new["u"].dtype == jnp.complex64
    assert cdx.feasibility(new, cdx.where("u"))["u"] < 1e-5


def test_steps_under_vmap_are_the_steps_of_each():
    tx = cdx.constrain(optax.sgd(0.1))
    xs = normal((4, 6, 2), 0, "complex128")
    one = jax.jit(lambda x: tx.update(0.1 * x[::-1], tx.init(x), x)[0])
    assert_close(jax.vmap(one)(xs), jnp.stack([one(x) for x in xs]), TOL)


def test_meta_gradients_pass_through_a_step():
    """With respect to a real rate, against finite differences."""
    g = normal(START.shape, 3, "complex128")
    w = normal(START.shape, 4, "complex128")

    @jax.jit
    def after(rate):
        tx = cdx.constrain(optax.sgd(rate))
        updates: Any = tx.update(g, tx.init(START), START)[0]
        return jnp.sum((w.conj() * (START + updates)).real)

    step = 1e-6
    for rate in (0.01, 0.3):
        slope = (after(rate + step) - after(rate - step)) / (2 * step)
        assert float(jax.grad(after)(rate)) == pytest.approx(float(slope), rel=1e-5)


def test_unitary_matrices_diagonalise_a_hermitian_one():
    def off_diagonal(u):
        m = u.conj().T @ H @ u
        return jnp.sum(jnp.abs(m) ** 2) - jnp.sum(jnp.abs(jnp.diagonal(m)) ** 2)

    x0 = stiefel.random(jax.random.key(1), (N, N), jnp.complex128)
    result = cdx.minimize(off_diagonal, x0, tol=1e-10)
    u = np.asarray(result.projected)
    assert float(result.value) == pytest.approx(0, abs=1e-8)
    found = np.sort(np.real(np.diagonal(u.conj().T @ H @ u)))
    np.testing.assert_allclose(found, scipy.linalg.eigvalsh(H), atol=1e-6)
