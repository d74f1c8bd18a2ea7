"""A metric that is known by samples: its running mean, made anew in every step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from benchmarks.shared.problems import Problem, generalized

STEPS = 600


def running(instance: Problem, optimizer: optax.GradientTransformation):
    """Steps of an optimiser in the mean of the metrics that were drawn so far."""
    assert instance.sampled is not None
    assert instance.sampled_metric is not None
    sampled, sampled_metric = instance.sampled, instance.sampled_metric

    def transformed(metric):
        return cdx.constrain(optimizer, cdx.Stiefel(B=metric))

    @partial(jax.jit, static_argnums=1)
    def run(x, steps):
        first = sampled_metric(jax.random.key(1))

        def step(carry, k):
            x, state, metric = carry
            for_f, for_metric = jax.random.split(
                jax.random.fold_in(jax.random.key(0), k)
            )
            metric = metric + (sampled_metric(for_metric) - metric) / (k + 2)
            tx = transformed(metric)
            updates, state = tx.update(jax.grad(sampled)(x, for_f), state, x)
            return (optax.apply_updates(x, updates), state, metric), None

        carry = (x, transformed(first).init(x), first)
        (x, _, metric), _ = jax.lax.scan(step, carry, jnp.arange(steps))
        return x, metric

    return run(instance.start, STEPS)


PROBLEMS = {
    "eigenvalues": partial(
        generalized.generalized_eigenvalues, n=40, p=3, condition=10
    ),
    "correlations": partial(generalized.cca_digits, p=2, ridge=0.1),
    "discriminants": partial(generalized.lda_digits, p=3, ridge=0.1),
}


each_problem = pytest.mark.parametrize(
    "name",
    [
        "eigenvalues",
        pytest.param("correlations", marks=pytest.mark.slow),
        pytest.param("discriminants", marks=pytest.mark.slow),
    ],
)


@each_problem
def test_samples_have_the_mean_of_the_metric(name):
    instance = PROBLEMS[name](0)
    draw, metric = instance.sampled_metric, np.asarray(instance.mask.B)
    assert draw is not None
    draws = jax.lax.map(draw, jax.random.split(jax.random.key(0), 2000))
    deviation = np.asarray(draws.std(axis=0)) / 2000**0.5
    assert deviation.max() > 0
    assert np.all(np.abs(draws.mean(axis=0) - metric) <= 6 * deviation + 1e-12)


@each_problem
def test_the_optimum_is_approached_where_the_constraint_is_only_sampled(name):
    instance = PROBLEMS[name](0)
    assert instance.best is not None
    rate = optax.cosine_decay_schedule(0.03, STEPS)
    x, metric = running(instance, optax.adam(rate))
    (off,) = cdx.feasibility(x, cdx.Stiefel(B=metric)).values()
    assert off < 1e-7
    # In the metric itself it is as near as the mean of the samples is.
    (off,) = cdx.feasibility(x, instance.mask).values()
    assert off < 0.05
    value = instance.f(cdx.project(x, instance.mask))
    assert value - instance.best < 0.05 * abs(instance.best)
    assert instance.f(instance.start) - instance.best > 0.2 * abs(instance.best)
