"""What programs are made of, exported for CPU, CUDA and TPU without these devices.

Products, reductions, elementwise and structural operations, and every product in full
precision: then they run fast and alike wherever XLA does. TABLE has a row for every
public function that becomes a program.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import export

import cdopt_jax as cdx
from tests.oracles import guarded_algorithm_1, normal, spd

PLATFORMS = ("cpu", "cuda", "tpu")
PRODUCTS = "dot_general reduce"
ELEMENTWISE = """abs add and bitcast_convert clamp compare convert divide
    is_finite maximum minimum multiply negate not or power reduce_precision rsqrt
    select shift_right_logical sign sqrt subtract xor"""
STRUCTURE = """broadcast_in_dim case concatenate constant dynamic_slice iota
    optimization_barrier reshape return slice transpose while"""
ALLOWED = set(f"{PRODUCTS} {ELEMENTWISE} {STRUCTURE}".split())

# What makes no program, or a user's own; and what draws a point, which takes a QR.
OTHERS = {"Stiefel", "Mask", "describe", "layers", "methods", "theory", "where"}
OTHERS |= {"Result", "scipy_objective", "prox.Regularizer"}
DRAWN = {"stiefel.random", "initializer"}

# Solvers keep what they have seen, draw samples and sort; they factorise nothing.
SOLVERS = (
    "proximal",
    "tangential",
    "continuation",
    "lbfgs",
    "newton",
    "geometric",
    "sampling",
)
REMEMBERED = "dynamic_update_slice gather remainder scatter reduce_window"
SAMPLED = "cosine log_plus_one reverse shift_left shift_right_logical sort xor"
# The unit of the objective is a power of two.
SCALED = "log round_nearest_even shift_right_arithmetic"
SOLVING = ALLOWED | set(f"{REMEMBERED} {SAMPLED} {SCALED}".split())

X, G = (
    {
        "bias": normal((3,), seed, "float32"),
        "conv": normal((2, 2, 3, 4), seed, "float32"),
        "left": normal((12, 4), seed, "float32"),
        "out": normal((3, 7), seed, "float32"),
        "right": normal((12, 4), seed + 9, "float32"),
    }
    for seed in (0, 1)
)
MASK = cdx.where("conv", "left", "out", "right")
B = jnp.asarray(spd(12), "float32")
IN_METRIC = cdx.where("left", "right", spec=cdx.Stiefel(B=B))


def square(params: Any) -> Any:
    return sum(jnp.sum(x**2) for x in jax.tree.leaves(params))


def one(f: Callable[..., Any], *more: Any) -> tuple[Callable[..., Any], Any]:
    """A function of one array, and its arguments."""
    return f, (X["left"], *more)


def two(f: Callable[..., Any], *more: Any) -> tuple[Callable[..., Any], Any]:
    """A function of a point and a direction."""
    return f, (X["left"], G["left"], *more)


def step(tx: Any, dtype: Any = "float32") -> tuple[Callable[..., Any], Any]:
    """The update of a transformation."""
    x, g = jax.tree.map(lambda a: a.astype(dtype), (X, G))
    return tx.update, (g, tx.init(x), x)


def stiefel_rows(name: str, take: Any, *more: Any) -> dict[str, Any]:
    """A function of `stiefel`, without and with a metric."""
    f = getattr(cdx.stiefel, name)
    rows = {"": {}, "-metric": {"B": B}}
    return {
        f"stiefel.{name}{row}": take(lambda *a, kw=kw: f(*a, **kw), *more)
        for row, kw in rows.items()
    }


def prox_rows(name: str, regularizer: Any) -> dict[str, Any]:
    """A regularizer: its value and its proximal map."""
    return {
        f"prox.{name}-value": (regularizer.value, (X,)),
        f"prox.{name}-map": (regularizer.prox, (X, 0.1)),
    }


ADAM = optax.adam(1e-2)
SHRUNK: dict[str, Any] = {"regularizer": cdx.prox.l1(0.1), "learning_rate": 1e-2}
TABLE: dict[str, tuple[Callable[..., Any], Any]] = {
    **stiefel_rows("residual", one),
    **stiefel_rows("feasibility", one),
    **stiefel_rows("dissolve", one),
    **stiefel_rows("penalty", one),
    **stiefel_rows("penalty_grad", one),
    **stiefel_rows("project", one),
    **stiefel_rows("jvp", two),
    **stiefel_rows("vjp", two),
    **stiefel_rows("tangent", two),
    **stiefel_rows("gradient", two, 2.0),
    **prox_rows("l1", cdx.prox.l1(0.1)),
    **prox_rows("l21", cdx.prox.l21(0.1)),
    **prox_rows("elastic_net", cdx.prox.elastic_net(0.1, 0.2)),
    **prox_rows("nonnegative_l1", cdx.prox.nonnegative_l1(0.1)),
    **prox_rows("none", cdx.prox.none()),
    "dissolve": (lambda x: cdx.dissolve(x, MASK), (X,)),
    "dissolve-gradient": (jax.grad(lambda x: square(cdx.dissolve(x, MASK))), (X,)),
    "project": (lambda x: cdx.project(x, MASK), (X,)),
    "feasibility": (lambda x: cdx.feasibility(x, MASK), (X,)),
    "stationarity": (lambda g, x: cdx.stationarity(x, g, MASK), (G, X)),
    "objective": (jax.grad(cdx.objective(square, MASK, beta=2.0)), (X,)),
    "objective-auto": (jax.grad(cdx.objective(square, MASK, beta="auto")), (X,)),
    "dissolve_gradients": step(cdx.dissolve_gradients(2.0, MASK)),
    "dissolve_gradients-auto": step(cdx.dissolve_gradients("auto", MASK)),
    "add_penalty": step(cdx.add_penalty(2.0, MASK)),
    "restore_feasibility": step(cdx.restore_feasibility(MASK)),
    "project_gradients": step(cdx.project_gradients(MASK)),
    "keep_feasible": step(cdx.keep_feasible(MASK)),
    "proximal_step": step(cdx.proximal_step(1e-2, cdx.prox.l1(0.1), MASK)),
    "proximal_step-tangential": step(
        cdx.proximal_step(1e-2, cdx.prox.l21(0.1), MASK, tangential=True)
    ),
    "constrain": step(cdx.constrain(ADAM, MASK)),
    "constrain-metric": step(cdx.constrain(ADAM, IN_METRIC)),
    "dissolve_gradients-guarded": step(guarded_algorithm_1(2.0, ADAM, MASK)),
    "dissolve_gradients-guarded-auto": step(guarded_algorithm_1("auto", ADAM, MASK)),
    "constrain-regularizer": step(cdx.constrain(optax.sgd(1e-2), MASK, **SHRUNK)),
    "constrain-half": step(cdx.constrain(ADAM, MASK), "bfloat16"),
    "master_copies": step(cdx.master_copies(cdx.constrain(ADAM, MASK)), "bfloat16"),
    "report": (
        lambda state, x: cdx.report(state, x, MASK),
        (cdx.constrain(ADAM, MASK).init(X), X),
    ),
}


def exported(f: Callable[..., Any], arguments: Any) -> str:
    """The StableHLO of a program for all platforms, without its locations."""
    text = export.export(jax.jit(f), platforms=PLATFORMS)(*arguments).mlir_module()
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def operations(text: str) -> set[str]:
    """The names of the operations; outside of StableHLO with that of their dialect.

    Names of attributes are no operations: they follow a '#' or precede an '='.
    """
    found = re.findall(r'(?<![#.\w])"?((?:stablehlo|chlo|mhlo)\.\w+)(?!\w| =)', text)
    return {name.removeprefix("stablehlo.") for name in found}


def gathered(text: str) -> list[str]:
    """The operand of each gather: the sizes of its axes."""
    pattern = r'"stablehlo.gather".*?: \(tensor<((?:\d+x)*)\w+>'
    return re.findall(pattern, text)


def products(text: str) -> list[str]:
    """Each product, as a line."""
    return [line for line in text.splitlines() if " stablehlo.dot_general " in line]


@pytest.mark.parametrize("name", TABLE)
def test_a_program_is_products_and_elementwise_operations(name):
    text = exported(*TABLE[name])
    # The numbers of each leaf are picked from a report, by indices that are constants:
    # a slice for each would take a kernel each.
    assert all(sizes.count("x") <= 2 for sizes in gathered(text))
    assert operations(text) - {"gather"} <= ALLOWED
    for product in products(text):
        assert "precision = [HIGHEST, HIGHEST]" in product
        assert set(re.findall(r"x([a-z]\w+)>", product)) == {"f32"}


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_point_is_drawn_by_a_factorisation_and_nothing_else_is_foreign(name):
    draw = cdx.stiefel.random if name == "stiefel.random" else cdx.initializer()
    key = jax.random.key_data(jax.random.key(0))
    text = exported(
        lambda k: draw(jax.random.wrap_key_data(k), (12, 4), jnp.float32), (key,)
    )
    assert "custom_call" in operations(text)
    calls = set(re.findall(r"custom_call @(\w+)", text))
    qr = r"(lapack|cusolver)_s?(geqrf|orgqr)_ffi|Qr|ProductOfElementaryHouseholder\w+"
    assert calls
    assert all(re.fullmatch(qr, call) for call in calls)


@pytest.mark.parametrize("method", SOLVERS)
def test_a_solver_is_a_program_for_every_platform(method):
    shrunk = method in ("proximal", "continuation")
    regularizer = cdx.prox.l1(0.1) if shrunk else None

    def solve(x):
        found = cdx.minimize(
            square,
            x,
            cdx.where("left"),
            method=method,
            regularizer=regularizer,
            max_steps=50,
        )
        return found.params, found.stationarity

    # One constrained leaf and one free; more of them are more of the same operations.
    text = exported(solve, ({name: X[name] for name in ("bias", "left")},))
    assert operations(text) <= SOLVING
    assert "custom_call @" not in text
    assert products(text)
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products(text))


def test_every_public_name_has_a_row():
    names = {name for name in dir(cdx) if not name.startswith("_")}
    names |= {f"stiefel.{name}" for name in cdx.stiefel.__all__}
    names |= {
        f"prox.{name}"
        for name, item in vars(cdx.prox).items()
        if getattr(item, "__module__", None) == cdx.prox.__name__
        and not name.startswith("_")
    }
    names -= {"stiefel", "prox"}
    rows = {name.split("-")[0] for name in TABLE}
    assert names == rows | OTHERS | DRAWN | {"minimize"}
