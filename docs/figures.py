"""The figures of the site and of the README, drawn by ``python docs/figures.py``.

Each has a function that computes what it shows, and one that draws it, on a light and
on a dark ground.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import cdopt_jax as cdx

FOLDER = Path(__file__).parent / "figures"
OURS, OTHER, THIRD = "#2a78d6", "#d1653b", "#5b9e4d"
GROUNDS = {
    "": {"ground": "#ffffff", "ink": "#1b1b1b", "grid": "#d8d8d8"},
    "-dark": {"ground": "#131416", "ink": "#dddddd", "grid": "#3a3c40"},
}


class Net(nn.Module):
    """A small convolutional network for the digits."""

    @nn.compact
    def __call__(self, x):
        """The logits."""
        x = nn.relu(nn.LayerNorm()(nn.Conv(32, (3, 3), strides=2)(x)))
        x = nn.relu(nn.LayerNorm()(nn.Conv(64, (3, 3), strides=2)(x)))
        x = nn.relu(nn.LayerNorm()(nn.Dense(64)(x.reshape(x.shape[0], -1))))
        return nn.Dense(10)(x)


MASK = cdx.where("Conv_*/kernel", "Dense_0/kernel")


@cache
def training(steps: int = 400) -> dict[str, dict[str, Any]]:
    """Adam with and without `constrain`, from one start and on the same batches.

    Returns:
        For each of the two the loss of each batch and, after the step, the distance of
        the worst of the three constrained kernels from the manifold.
    """
    pixels, target = load_digits(return_X_y=True)
    images = jnp.asarray(pixels, jnp.float32).reshape(-1, 8, 8, 1) / 16
    labels = jnp.asarray(target)
    net = Net()
    start = net.init(jax.random.key(0), images[:1])["params"]
    start = cdx.project(start, MASK)
    adam = optax.adam(optax.cosine_decay_schedule(1e-2, steps))
    keys = jax.random.split(jax.random.key(1), steps)

    def run(tx):
        def step(carry, key):
            params, state = carry
            batch = jax.random.choice(key, len(labels), (128,), replace=False)

            def loss(params):
                logits: Any = net.apply({"params": params}, images[batch])
                losses = optax.softmax_cross_entropy_with_integer_labels(
                    logits, labels[batch]
                )
                return losses.mean()

            value, grads = jax.value_and_grad(loss)(params)
            updates, state = tx.update(grads, state, params)
            params: Any = optax.apply_updates(params, updates)
            worst = jnp.stack(list(cdx.feasibility(params, MASK).values())).max()
            return (params, state), (value, worst)

        _, (losses, distances) = jax.lax.scan(step, (start, tx.init(start)), keys)
        return {"loss": np.asarray(losses), "feasibility": np.asarray(distances)}

    return {"constrain(adam)": run(cdx.constrain(adam, MASK)), "adam": run(adam)}


def draw_training(colors: dict[str, str]) -> Figure:
    """Distance from the manifold, and loss, against steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    for (name, run), color in zip(training().items(), (OURS, OTHER), strict=True):
        left.semilogy(run["feasibility"], color=color, label=name)
        smooth = np.convolve(run["loss"], np.ones(10) / 10, "valid")
        right.semilogy(smooth, color=color, label=name)
    left.set_title("distance from the manifold, ‖XᵀX − I‖")
    right.set_title("training loss, mean of ten batches")
    for axes in (left, right):
        axes.set_xlabel("step")
        _dress(axes, colors)
    return figure


def singular_values() -> tuple[Any, Any, Any]:
    """σ, a(σ) as `stiefel.dissolve` computes it, and the cubic map."""
    sigma = np.linspace(0, 1.9, 200)
    a = cdx.stiefel.dissolve(jnp.asarray(sigma, jnp.float32)[:, None, None])
    return sigma, np.asarray(a)[:, 0, 0], sigma * (3 - sigma**2) / 2


def draw_map(colors: dict[str, str]) -> Figure:
    """The map on singular values."""
    figure, axes = plt.subplots(figsize=(5, 3.4))
    sigma, quintic, cubic = singular_values()
    axes.axhline(1, color=colors["grid"], linewidth=1)
    axes.plot(sigma, quintic, color=OURS, label="a(σ) = σ(15 − 10σ² + 3σ⁴)/8")
    axes.plot(sigma, cubic, color=OTHER, linestyle="--", label="σ(3 − σ²)/2")
    axes.plot([1], [1], "o", color=colors["ink"], markersize=5)
    axes.set_xlabel("singular value σ")
    axes.set_ylim(-0.6, 3)
    _dress(axes, colors)
    return figure


@cache
def steps() -> tuple[Any, dict[str, Any]]:
    """Lengths of random updates, and the distance after one step with each."""
    lengths = np.logspace(-4, 3, 36)
    x = cdx.stiefel.random(jax.random.key(0), (64, 16))
    # Singular values with ‖XᵀX − I‖_F = 0.3.
    e = jax.random.normal(jax.random.key(1), (16,))
    x = x * jnp.sqrt(1 + 0.3 * e / jnp.linalg.norm(e))
    u = jax.random.normal(jax.random.key(2), x.shape)
    u = u / jnp.linalg.norm(u)
    methods = {
        "X + U": optax.identity(),
        "A(X) + U": cdx.restore_feasibility(),
        "guarded": cdx.keep_feasible(),
    }

    def after(tx):
        def distance(length):
            updates, _ = tx.update(length * u, tx.init(x), x)
            after: Any = optax.apply_updates(x, updates)
            return cdx.stiefel.feasibility(after)

        return np.asarray(jax.lax.map(distance, jnp.asarray(lengths, x.dtype)))

    return lengths, {name: after(tx) for name, tx in methods.items()}


def draw_steps(colors: dict[str, str]) -> Figure:
    """Distance from the manifold after a step, against the length of the update."""
    figure, axes = plt.subplots(figsize=(5, 3.4))
    lengths, distances = steps()
    for (name, after), color in zip(
        distances.items(), (OTHER, THIRD, OURS), strict=True
    ):
        axes.loglog(lengths, after, color=color, label=name)
    axes.set_xlabel("length of the update, ‖U‖")
    axes.set_title("‖XᵀX − I‖ after the step")
    _dress(axes, colors)
    return figure


def _dress(axes, colors):
    """Axes and legend in the colours of the ground."""
    axes.set_facecolor(colors["ground"])
    axes.figure.set_facecolor(colors["ground"])
    axes.grid(color=colors["grid"], linewidth=0.6)
    axes.tick_params(colors=colors["ink"], which="both")
    axes.title.set_color(colors["ink"])
    axes.title.set_fontsize(11)
    axes.xaxis.label.set_color(colors["ink"])
    for side in axes.spines.values():
        side.set_color(colors["grid"])
    axes.legend(labelcolor=colors["ink"], facecolor=colors["ground"], framealpha=0.8)


FIGURES: dict[str, Callable[[dict[str, str]], Figure]] = {
    "constrain": draw_training,
    "map": draw_map,
    "step": draw_steps,
}


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "cdopt_jax"  # the same file from the same figure
    for name, draw in FIGURES.items():
        for ending, colors in GROUNDS.items():
            figure = draw(colors)
            figure.tight_layout()
            path = FOLDER / f"{name}{ending}.svg"
            figure.savefig(path, metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
