"""Small networks. Targets are smoothed, so that the least loss is not near zero."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx
from benchmarks.shared.data import digits
from benchmarks.shared.models import CNN, CNN_MASK
from benchmarks.shared.problems.signature import Problem

SMOOTHING = 0.1


def _cross_entropy(logits, labels):
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), SMOOTHING)
    return optax.softmax_cross_entropy(logits, targets).mean()


def digits_network(seed: int, batch: int = 128) -> Problem:
    """A convolutional network on scikit-learn's digits, all layers but the last."""
    split = digits()
    model, everything = CNN(split.classes), split.train.labels
    whole = split.normalised(split.train.images)
    params = model.init(jax.random.key(seed), whole[:1])["params"]

    def value(params, images=whole, labels=everything):
        return _cross_entropy(model.apply({"params": params}, images), labels)

    def loss(params, key):
        rows = jax.random.randint(key, (batch,), 0, len(everything))
        return value(params, whole[rows], everything[rows])

    start = cdx.project(params, CNN_MASK)
    return Problem(f=value, start=start, mask=CNN_MASK, sampled=loss)


class _Recurrent(nn.Module):
    """A recurrent network without gates, with an orthogonal transition."""

    width: int
    classes: int

    @nn.compact
    def __call__(self, tokens):
        inputs = nn.Dense(self.width, name="read")(jax.nn.one_hot(tokens, self.classes))
        init = nn.initializers.orthogonal()
        transition = self.param("transition", init, (self.width, self.width))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.width,))

        def step(state, entry):
            state = state @ transition + entry
            # modReLU keeps the sign and shifts the size.
            state = jnp.sign(state) * nn.relu(jnp.abs(state) + bias)
            return state, state

        start = jnp.zeros((tokens.shape[0], self.width))
        _, states = jax.lax.scan(step, start, inputs.swapaxes(0, 1))
        return nn.Dense(self.classes, name="write")(states.swapaxes(0, 1))


def copy_task(seed: int, delay: int = 20, length: int = 5, batch: int = 64) -> Problem:
    """Repeat five of eight symbols after a delay, as recurrent networks are tested."""
    symbols, width = 8, 64
    model = _Recurrent(width, symbols + 2)
    blank, go = symbols, symbols + 1

    def draw(key, count):
        word = jax.random.randint(key, (count, length), 0, symbols)
        wait = jnp.full((count, delay), blank).at[:, -1].set(go)
        tokens = jnp.concatenate([word, wait, jnp.full((count, length), blank)], 1)
        return tokens, word

    def evaluate(params, tokens, word):
        logits = model.apply({"params": params}, tokens)
        return _cross_entropy(jnp.asarray(logits)[:, -length:], word)

    held = draw(jax.random.key(1000 + seed), 512)

    def loss(params, key):
        return evaluate(params, *draw(key, batch))

    params = model.init(jax.random.key(seed), held[0][:1])["params"]
    return Problem(
        f=lambda params: evaluate(params, *held),
        start=params,
        mask=cdx.where("transition"),
        sampled=loss,
    )
