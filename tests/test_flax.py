"""Training loops of Flax and Equinox, with the constraint in them and nothing else."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict, freeze, unfreeze
from flax.training.train_state import TrainState

import cdopt_jax as cdx
from tests.marks import mostly
from tests.oracles import guarded_algorithm_1, normal, spectral, tall
from tests.resumable import Linen, Nnx

KEY = jax.random.key(0)
X, Y = normal((16, 6), 0, jnp.float32), normal((16, 3), 1, jnp.float32)
STEPS = 20


MASK = cdx.where("hidden/kernel")
RECIPES = {
    "constrain": lambda: cdx.constrain(optax.adam(1e-2), MASK),
    "auto": lambda: guarded_algorithm_1("auto", optax.adam(1e-2), MASK),
    "prox": lambda: cdx.constrain(
        optax.sgd(falls), MASK, regularizer=cdx.prox.l1(1e-2), learning_rate=falls
    ),
}
falls = optax.cosine_decay_schedule(0.1, 40)


def mean_square(prediction):
    return jnp.mean((prediction - Y) ** 2)


def is_orthonormal(x, tolerance=1e-3):
    return spectral(tall(np.asarray(x))) <= tolerance


def train_linen(tx, params, steps=STEPS) -> Any:
    state = TrainState.create(apply_fn=Linen().apply, params=params, tx=tx)

    @jax.jit
    def step(state):
        def loss(params):
            return mean_square(state.apply_fn({"params": params}, X))

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    for _ in range(steps):
        state = step(state)
    return state


def train_nnx(tx, model, steps=STEPS, wrt: Any = nnx.Param):
    optimizer = nnx.Optimizer(model, tx, wrt=wrt)

    @nnx.jit
    def step(model, optimizer):
        grads = nnx.grad(
            lambda model: mean_square(model(X)), argnums=nnx.DiffState(0, wrt)
        )(model)
        optimizer.update(model, grads)

    for _ in range(steps):
        step(model, optimizer)
    return optimizer


@pytest.mark.parametrize("recipe", mostly(RECIPES, slow=("auto", "prox")))
def test_linen_and_nnx_take_the_same_steps_from_the_same_values(recipe):
    model = Nnx(nnx.Rngs(0))
    params = {
        name: {
            leaf: jnp.asarray(getattr(layer, leaf)[...]) for leaf in ("kernel", "bias")
        }
        for name, layer in (("hidden", model.hidden), ("out", model.out))
    }
    state = train_linen(RECIPES[recipe](), params)
    optimizer = train_nnx(RECIPES[recipe](), model)
    assert state.step == optimizer.step[...] == STEPS
    for name, layer in (("hidden", model.hidden), ("out", model.out)):
        for leaf in ("kernel", "bias"):
            there = np.asarray(getattr(layer, leaf)[...])
            np.testing.assert_allclose(state.params[name][leaf], there, atol=1e-6)
    assert is_orthonormal(
        model.hidden.kernel[...], 0.5 if recipe != "constrain" else 0.01
    )


def test_a_frozen_dict_is_a_tree_like_any_other():
    params = Linen().init(KEY, X)["params"]
    plain = train_linen(RECIPES["constrain"](), unfreeze(params), 3)
    frozen = train_linen(RECIPES["constrain"](), freeze(params), 3)
    assert isinstance(frozen.params, FrozenDict)
    np.testing.assert_array_equal(
        frozen.params["hidden"]["kernel"], plain.params["hidden"]["kernel"]
    )


class _Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(x.shape[-1], name="dense")(x)), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        stack = nn.scan(
            _Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        return stack(name="stack")(x, None)[0]


class Ensemble(nn.Module):
    @nn.compact
    def __call__(self, x):
        same: Any = None
        many = nn.vmap(
            nn.Dense,
            in_axes=same,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            axis_size=3,
        )
        return many(4, name="stack")(x)


class Partitioned(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        return nn.Dense(4, kernel_init=init, name="stack")(x)


@pytest.mark.parametrize(
    "module",
    # The kernel of an ensemble is a stack, as that of scanned layers is.
    [Scanned(), pytest.param(Ensemble(), marks=pytest.mark.slow), Partitioned()],
    ids=repr,
)
def test_stacked_and_boxed_kernels_of_linen_are_trained(module):
    params = module.init(KEY, X)["params"]
    mask = cdx.where("*kernel", spec=cdx.layers.dense())
    tx = cdx.constrain(optax.sgd(0.1), mask)
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        def loss(params):
            return jnp.sum(module.apply({"params": params}, X) ** 2)

        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(3):
        params, state = step(params, state)
    boxed = nn.meta.unbox(params)["stack"]
    kernel = boxed.get("kernel", boxed.get("dense", {}).get("kernel"))
    assert is_orthonormal(kernel, 0.5)
    layers = 3 if kernel.ndim == 3 else 1
    found = cdx.feasibility(params, mask)
    assert len(found) == 1
    assert kernel.ndim == 2 or kernel.shape[0] == layers
    if isinstance(module, Partitioned):
        assert isinstance(params["stack"]["kernel"], nn.Partitioned)


def test_layers_that_nnx_has_stacked_are_trained():
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(6, 6, rngs=rngs)

        def __call__(self, x):
            return nnx.tanh(self.linear(x))

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def stacked(rngs):
        return Layer(rngs)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = stacked(rngs)
            self.out = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x):
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def forward(x, layer):
                return layer(x)

            return self.out(forward(x, self.layers))

    model = Model(nnx.Rngs(0))
    before = mean_square(model(X))
    mask = cdx.where("layers/*/kernel", spec=cdx.layers.dense())
    optimizer = train_nnx(cdx.constrain(optax.adam(1e-2), mask), model)
    assert model.layers.linear.kernel[...].shape == (3, 6, 6)
    assert is_orthonormal(model.layers.linear.kernel[...], 1e-2)
    assert mean_square(model(X)) < before
    scalars = cdx.report(optimizer.opt_state, nnx.state(model, nnx.Param), mask)
    assert scalars["step_fraction/layers/linear/kernel"] == 1
    assert scalars["residual/layers/linear/kernel"] < 1e-2


def test_a_subset_of_the_parameters_may_be_trained_alone():
    """As adapters of low rank are: the base stays as it was, bit for bit."""

    class Adapted(nnx.Module):
        def __init__(self, rngs):
            self.base = nnx.Linear(6, 3, rngs=rngs)
            self.adapter = nnx.LoRA(6, 2, 3, rngs=rngs)

        def __call__(self, x):
            return self.base(x) + self.adapter(x)

    model = Adapted(nnx.Rngs(0))
    base = np.asarray(model.base.kernel[...])
    tx = cdx.constrain(optax.adam(1e-2), cdx.where("adapter/lora_a"))
    train_nnx(tx, model, 5, wrt=nnx.LoRAParam)
    np.testing.assert_array_equal(model.base.kernel[...], base)
    assert is_orthonormal(model.adapter.lora_a[...], 1e-2)
    assert np.any(np.asarray(model.adapter.lora_b[...]) != 0)


def test_the_filtered_arrays_of_an_equinox_module_are_trained():
    model = eqx.nn.MLP(6, 3, 5, 1, key=KEY)
    mask = cdx.where("layers/0/weight")
    tx = cdx.constrain(optax.adam(1e-2), mask)
    state = tx.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state):
        grads = eqx.filter_grad(lambda m: mean_square(jax.vmap(m)(X)))(model)
        params = eqx.filter(model, eqx.is_array)
        updates, state = tx.update(grads, state, params)
        return eqx.apply_updates(model, updates), state

    before = mean_square(jax.vmap(model)(X))
    for _ in range(STEPS):
        model, state = step(model, state)
    assert is_orthonormal(model.layers[0].weight, 1e-2)
    assert mean_square(jax.vmap(model)(X)) < before


def test_an_unconstrained_checkpoint_is_projected_and_trained_on():
    params = train_linen(optax.adam(1e-2), Linen().init(KEY, X)["params"]).params
    assert not is_orthonormal(params["hidden"]["kernel"])
    projected = jax.jit(lambda p: cdx.project(p, MASK))(params)
    assert is_orthonormal(projected["hidden"]["kernel"], 1e-5)
    np.testing.assert_array_equal(projected["out"]["kernel"], params["out"]["kernel"])
    further = train_linen(RECIPES["constrain"](), projected).params
    assert is_orthonormal(further["hidden"]["kernel"], 1e-2)


def test_batch_statistics_are_kept_apart():
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.BatchNorm(use_running_average=False)(nn.Dense(4)(x))

    variables = Normed().init(KEY, X)
    tx = cdx.constrain(optax.sgd(0.1), cdx.where("*/kernel"))
    with pytest.raises(ValueError, match=r'variables\["params"\].*batch_stats'):
        tx.init(variables)
    assert tx.init(variables["params"])
