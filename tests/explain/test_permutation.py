"""Permutation importance against plain loops, scikit-learn, Captum and models whose true importances are known."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from grandrounds.core.rng import generator
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers import permutation
from grandrounds.explain.explainers.permutation import SCORES, Permutation
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense, class_probabilities, targets
from grandrounds.models.forest import ForestModel
from tests.support import refused

WIDTHS = [(9, 1), (9, 10), (9, 8, 1), (9, 8, 10), (9, 8, 6, 1), (9, 8, 6, 10)]
SINGLE = Features.from_inputs([f"x{j}" for j in range(9)])
GROUPED = Features.from_columns(["age", "ward", "drug", "lactate", "drug", "sex", "lactate", "insulin", "insulin"])


def cohort(n: int, outputs: int, *, seed: int = 0, dtype=np.float64):
    """Rows of nine inputs: four measurements, four indicators, a column without variation; targets."""
    rng = generator(seed, purpose="cohort")
    x = rng.normal(size=(n, 9))
    x[:, [2, 4, 7, 8]] = rng.random((n, 4)) < [0.1, 0.3, 0.15, 0.1]
    x[:, 6] = 1.5
    y = rng.integers(0, max(2, outputs), n)
    return x.astype(dtype), targets(y, outputs, dtype)


def draw(model, *, models: int = 3, seed: int = 0, dtype=np.float64):
    return generator(seed, purpose="theta").normal(size=(models, model.layout.size)).astype(dtype)


def one_site(x) -> np.ndarray:
    return np.array([0, len(x)])


def both(values, other):
    """One column as the columns of two classes, the first as the other function of it says."""
    return np.concatenate([other(values), values], axis=1) if values.shape[1] == 1 else values


def losses(logits, target, score, base):
    """Each row's loss under a score, written plainly."""
    z, t = both(logits, np.zeros_like), both(target, lambda p: 1 - p)
    if score == "accuracy":
        return (z.argmax(axis=1) != t.argmax(axis=1)).astype(float)
    goal = softmax(both(base, np.zeros_like), axis=1) if score == "self" else t
    return -(goal * log_softmax(z, axis=1)).sum(axis=1)


def plain(how: Permutation, model, theta, x, target):
    """Equation 2, one feature and one permutation at a time."""
    base = model.logits(theta, x)
    out = np.zeros((len(x), len(how.features)))
    for order in how.orders(len(x)):
        for f, inputs in enumerate(how.features.groups):
            copy = x.copy()
            copy[:, inputs] = x[order][:, inputs]
            after = losses(model.logits(theta, copy), target, how.score, base)
            out[:, f] += (after - losses(base, target, how.score, base)) / how.repeats
    return out


# --- the numbers ------------------------------------------------------------------------------------


def test_two_rows_by_hand():
    """x = (1, 0), y = (1, 0), logit 2x. Swapped, the first row's loss goes from log(1 + e^-2) to log 2."""
    how = next(h for s in range(20) if (h := Permutation(Features.from_inputs("x"), s, 1)).orders(2)[0, 0] == 1)
    x, target = np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]])
    found = how.rows(Dense((1, 1)), np.array([2.0, 0.0]), x, target, one_site(x))
    by_hand = [np.log(2) - np.log1p(np.exp(-2)), np.log1p(np.exp(2)) - np.log(2)]
    np.testing.assert_allclose(found[:, 0], by_hand, rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("features", [SINGLE, GROUPED], ids=["single", "grouped"])
@pytest.mark.parametrize("widths", WIDTHS)
def test_the_first_layers_update_equals_plain_forwards(widths, features, score):
    model = Dense(widths)
    theta = draw(model)
    x, target = cohort(60, model.outputs)
    how = Permutation(features, seed=3, repeats=2, score=score)
    found = how.rows(model, theta, x, target, one_site(x))
    for k in range(len(theta)):
        np.testing.assert_allclose(found[k], plain(how, model, theta[k], x, target), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("widths", WIDTHS)
def test_in_float32_it_stays_within_rounding(widths):
    model = Dense(widths)
    theta, (x, target) = draw(model, models=1, dtype=np.float32)[0], cohort(60, model.outputs, dtype=np.float32)
    how = Permutation(GROUPED, seed=3)
    found = how.rows(model, theta, x, target, one_site(x))
    assert found.dtype == np.float32
    true = plain(how, model, theta.astype(float), x.astype(float), target.astype(float))
    np.testing.assert_allclose(found, true, atol=1e-5 * np.abs(true).max())


@pytest.mark.parametrize("widths", [(9, 1), (9, 8, 10)])
@pytest.mark.parametrize("score", SCORES)
def test_a_torch_model_gets_what_the_same_dense_model_gets(widths, score):
    pytest.importorskip("torch")
    from grandrounds.models.torch_build import torch_dense

    dense = Dense(widths)
    net = torch_dense(dense, device="cpu", precision="float64")
    theta, (x, target) = draw(dense), cohort(50, dense.outputs)
    how = Permutation(GROUPED, seed=1, score=score)
    ours, theirs = (how.rows(m, theta, x, target, one_site(x)) for m in (dense, net))
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


def test_scikit_learn_agrees_on_the_same_permutations(monkeypatch):
    """permutation_importance shuffles one index again and again, alike for all columns, and a column that is shuffled."""
    from sklearn.inspection import permutation_importance
    from sklearn.linear_model import LogisticRegression

    x, _ = cohort(80, 1)
    y = (x @ [1, -2, 1, 0.5, 0, 2, 0, 1, 0] + generator(0, purpose="noise").logistic(size=80) > 0).astype(int)
    fitted = LogisticRegression().fit(x, y)
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max + 1)
    stream, index, order = np.random.RandomState(seed), np.arange(80), np.arange(80)
    theirs = []
    for _ in range(4):
        stream.shuffle(index)
        order = order[index]
        theirs.append(order)
    monkeypatch.setattr(permutation, "_orders", lambda *_: np.stack(theirs))
    theta = np.concatenate([fitted.coef_[0], fitted.intercept_])
    for score, name in (("log_loss", "neg_log_loss"), ("accuracy", "accuracy")):
        how = Permutation(SINGLE, seed=0, repeats=4, score=score)
        found = how.rows(Dense((9, 1)), theta, x, targets(y, 1, float), one_site(x)).mean(axis=0)
        expected = permutation_importance(fitted, x, y, scoring=name, n_repeats=4, random_state=0)
        np.testing.assert_allclose(found, expected.importances_mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("features", [SINGLE, GROUPED], ids=["single", "grouped"])
def test_captum_agrees_on_the_same_permutations(features):
    torch = pytest.importorskip("torch")
    attr = pytest.importorskip("captum.attr")
    model = Dense((9, 8, 6, 10))
    theta, (x, target) = draw(model, models=1)[0], cohort(60, 10)
    how = Permutation(features, seed=2, repeats=3)

    def score(rows):
        logits = torch.from_numpy(model.logits(theta, rows.numpy()))
        return -torch.nn.functional.cross_entropy(logits, torch.from_numpy(target)).reshape(1)

    mean = np.zeros(len(features))
    for order in how.orders(60):
        explainer = attr.FeaturePermutation(score, perm_func=lambda t, mask, o=order: torch.where(mask, t[o], t))
        by_input = explainer.attribute(torch.from_numpy(x), feature_mask=torch.from_numpy(features.feature_index)[None])
        mean += np.array([by_input[0, inputs[0]] for inputs in features.groups]) / 3
    np.testing.assert_allclose(how.rows(model, theta, x, target, one_site(x)).mean(axis=0), mean, rtol=1e-6, atol=1e-9)


def test_the_self_score_is_the_divergence_of_predictions_and_looks_at_no_label():
    from scipy.stats import entropy

    model = Dense((9, 8, 3))
    theta, (x, target) = draw(model, models=1)[0], cohort(40, 3)
    how = Permutation(SINGLE, seed=0, repeats=1, score="self")
    found = how.rows(model, theta, x, np.full_like(target, np.nan), one_site(x))
    moved = x.copy()
    moved[:, 3] = x[how.orders(40)[0], 3]
    p, q = (class_probabilities(model.logits(theta, rows)) for rows in (x, moved))
    np.testing.assert_allclose(found[:, 3], entropy(p, q, axis=1), rtol=1e-6, atol=1e-12)
    assert (found >= 0).all() and found[:, 3].max() > 0


def test_rounding_never_makes_a_divergence_negative():
    """Values that all but agree: in float32 their divergence is lost in rounding, which has either sign."""
    model = Dense((9, 8, 10))
    theta, (x, target) = draw(model, dtype=np.float32), cohort(200, 10, dtype=np.float32)
    x = (1 + 1e-4 * x).astype(np.float32)
    found = Permutation(SINGLE, seed=0, score="self").rows(model, theta, x, target, one_site(x))
    assert (found >= 0).all() and found.max() < 1e-4


@pytest.mark.parametrize("widths", [(9, 1), (9, 8, 10)])
@pytest.mark.filterwarnings("error")
def test_huge_logits_do_not_overflow(widths):
    model = Dense(widths)
    theta, (x, target) = 1e4 * draw(model, models=1)[0], cohort(30, model.outputs)
    how = Permutation(SINGLE, seed=0)
    found = how.rows(model, theta, x, target, one_site(x))
    np.testing.assert_allclose(found, plain(how, model, theta, x, target), rtol=1e-8, atol=1e-6)


# --- true importances -------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["log_loss", "self"])
def test_a_linear_models_importances_follow_weight_times_spread(score):
    """Independent columns, labels drawn from the model itself: what counts is |w_j| sd_j."""
    rng = generator(0, purpose="linear")
    weight, spread = np.array([0.3, -1.0, 2.0, 0.1, -0.6]), np.array([1.0, 2.0, 0.4, 1.5, 0.8])
    x = rng.normal(size=(4000, 5)) * spread
    y = (rng.random(4000) < 1 / (1 + np.exp(-x @ weight))).astype(int)
    how = Permutation(Features.from_inputs("abcde"), seed=0, repeats=5, score=score)
    found = measure(how, Dense((5, 1)), np.concatenate([weight, [0.0]])[None], x, targets(y, 1, float)).values[0]
    assert np.argsort(found).tolist() == np.argsort(np.abs(weight) * spread).tolist()
    assert (found > 0).all()


@pytest.mark.parametrize("widths", [(9, 1), (9, 10), (9, 33, 17, 10)])
@pytest.mark.parametrize("score", SCORES)
def test_an_input_without_weight_counts_for_exactly_nothing(widths, score):
    model = Dense(widths)
    theta, (x, target) = draw(model, models=1, dtype=np.float32)[0], cohort(53, model.outputs, dtype=np.float32)
    model.layers(theta)[0][0][[0, 2]] = 0  # a measurement that always moves and an indicator that rarely does
    found = Permutation(SINGLE, seed=0, score=score).rows(model, theta, x, target, one_site(x))
    assert not found[:, [0, 2, 6]].any()  # the last never moves
    assert found[:, 1].any()


def test_a_forest_is_explained_by_forwards_of_rows_that_move():
    """A forest whose labels follow from the first column alone."""
    x, _ = cohort(120, 1)
    model = ForestModel(features=9, classes=2, trees=8, depth=3)
    y = (x[:, 0] > 0).astype(int)
    theta = model.fit(x, y, seed=0)
    how, target = Permutation(GROUPED, seed=0, score="accuracy"), targets(y, 2, float)
    found = how.rows(model, theta, x, target, one_site(x))
    np.testing.assert_allclose(found, plain(how, model, theta, x, target), atol=1e-12)
    age, *others = found.mean(axis=0)
    assert age > 3 * max(others)


# --- what must not matter ---------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.sampled_from(WIDTHS),
    st.sampled_from([SINGLE, GROUPED]),
    st.sampled_from(sorted(SCORES)),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_models_and_sites_get_the_bits_they_get_alone(sizes, widths, features, score, seed):
    model = Dense(widths)
    offsets = np.cumsum([0, *sizes])
    x, target = cohort(int(offsets[-1]), model.outputs, seed=seed, dtype=np.float32)
    theta = draw(model, seed=seed, dtype=np.float32)
    how = Permutation(features, seed=seed, repeats=2, score=score)
    together = how.rows(model, theta, x, target, offsets)
    assert together.shape == (3, len(x), len(features))
    for k in range(3):
        np.testing.assert_array_equal(how.rows(model, theta[k], x, target, offsets), together[k])
    for a, b in pairwise(offsets):
        alone = how.rows(model, theta, x[a:b], target[a:b], np.array([0, b - a]))
        np.testing.assert_array_equal(alone, together[:, a:b])


@given(st.integers(1, 30), st.sampled_from(WIDTHS), st.sampled_from(sorted(SCORES)), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_row_that_keeps_its_value_costs_nothing_and_divergence_is_never_negative(n, widths, score, seed):
    model = Dense(widths)
    x, target = cohort(n, model.outputs, seed=seed, dtype=np.float32)
    how = Permutation(SINGLE, seed=seed, repeats=1, score=score)
    theta = draw(model, models=1, seed=seed, dtype=np.float32)[0]
    found = how.rows(model, theta, x, target, one_site(x))
    assert not found[x[how.orders(n)[0]] == x].any()
    if score == "self":
        assert (found >= 0).all()


def test_blocks_of_any_size_give_the_same_numbers(monkeypatch):
    model = Dense((9, 8, 6, 10))
    theta, (x, target) = draw(model), cohort(150, 10)
    forest = ForestModel(features=9, classes=10, trees=3, depth=3)
    grown = forest.fit(x, target.argmax(axis=1), seed=0)
    how = Permutation(GROUPED, seed=0)
    whole, trees = (how.rows(m, t, x, target, one_site(x)) for m, t in ((model, theta), (forest, grown)))
    monkeypatch.setattr(permutation, "_BLOCK", 2000)
    monkeypatch.setattr(permutation, "_COPIES", 3000)
    np.testing.assert_allclose(how.rows(model, theta, x, target, one_site(x)), whole, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(how.rows(forest, grown, x, target, one_site(x)), trees)


def test_the_seed_alone_decides():
    model = Dense((9, 8, 1))
    theta, (x, target) = draw(model), cohort(30, 1)
    permutation._orders.cache_clear()
    first, again, other = (Permutation(SINGLE, seed=s).rows(model, theta, x, target, one_site(x)) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert all(sorted(order) == list(range(30)) for order in Permutation(SINGLE, seed=0).orders(30).tolist())


def test_equal_models_have_equal_importances_where_measured():
    model = Dense((9, 8, 1))
    theta, (x, target) = draw(model, models=1), cohort(30, 1)
    found = measure(Permutation(SINGLE, seed=0), model, np.repeat(theta, 2, axis=0), x, target)
    np.testing.assert_array_equal(found.values[0], found.values[1])
    np.testing.assert_array_equal(found.error[0], found.error[1])


def test_soft_targets_are_a_mixture_of_hard_ones():
    model = Dense((9, 8, 3))
    theta, (x, _) = draw(model), cohort(20, 3)
    one, two = (targets(np.full(20, c), 3, float) for c in (0, 2))
    a, b, mixed = (
        Permutation(SINGLE, seed=0).rows(model, theta, x, t, one_site(x)) for t in (one, two, 0.3 * one + 0.7 * two)
    )
    np.testing.assert_allclose(mixed, 0.3 * a + 0.7 * b, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_a_model_that_diverged_gives_no_number_and_no_warning():
    model = Dense((9, 8, 10))
    theta, (x, target) = draw(model, dtype=np.float32), cohort(20, 10, dtype=np.float32)
    theta[1] = np.inf
    found = Permutation(SINGLE, seed=0).rows(model, theta, x, target, one_site(x))
    assert np.isnan(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()


# --- refusals ---------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_a_sentence():
    with refused("unknown-score", match="did you mean 'accuracy'"):
        Permutation(SINGLE, seed=0, score="acuracy")
    with refused("too-few-repeats"):
        Permutation(SINGLE, seed=0, repeats=0)
    how, model = Permutation(SINGLE, seed=0), Dense((9, 1))
    for x in (np.zeros((4, 7)), np.zeros((4, 3, 8, 8))):
        with refused("mismatched-shapes", match="9 inputs"):
            how.rows(model, model.init(0), x, np.zeros((4, 1)), one_site(x))


def test_explaining_a_table_imports_nothing_heavy():
    code = (
        "import sys, numpy as np; from grandrounds.explain.explainers.permutation import Permutation; "
        "from grandrounds.explain.explainers.gradients import Gradient; from grandrounds.explain.features import Features; "
        "from grandrounds.models.dense import Dense; m = Dense((2, 3, 1)); f = Features.from_inputs('ab'); "
        "[e.rows(m, m.init(0), np.eye(2), np.eye(2)[:, :1], np.array([0, 2])) for e in (Permutation(f, 0), Gradient(f))]; "
        "print([n for n in ('torch', 'shap', 'captum', 'pandas', 'sklearn', 'scipy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
