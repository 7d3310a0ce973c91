from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix

from grandrounds.metrics import BINS, ScoredRows, Tally, tally
from grandrounds.metrics.classification import bin_index

from .cohort import binary_cohort, log_odds, sigmoid, softmax

pytestmark = pytest.mark.filterwarnings("error")
quick = settings(max_examples=40, deadline=None)
EXACT = ("count", "confusion", "histogram")


def assert_same(a: Tally, b: Tally) -> None:
    for name, left in a.arrays().items():
        right = b.arrays()[name]
        assert left.shape == right.shape, name
        if name in EXACT:
            assert np.array_equal(left, right), name
        else:
            np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9, err_msg=name)


@st.composite
def cohorts(draw):
    """Logits, labels, group and number of classes; scores from dull to saturated, some tied."""
    classes = draw(st.sampled_from([2, 3, 5]))
    columns = draw(st.sampled_from([1, 2])) if classes == 2 else classes
    rows = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1e-3, 1.0, 20.0, 1e4]))
    logits = scale * rng.normal(size=(rows, columns))
    if draw(st.booleans()):
        logits = np.round(logits)
    if draw(st.booleans()):
        logits = logits.astype(np.float32)
    return logits, rng.integers(0, classes, rows), rng.integers(0, 4, rows), classes


@quick
@given(cohorts())
def test_the_whole_is_the_sum_of_any_parts(cohort):
    logits, y, group, classes = cohort
    whole = tally(logits, y, classes=classes)
    apart = tally(logits, y, group=group, groups=4, classes=classes)
    assert apart.shape == (4,)
    assert_same(apart.sum(), whole)
    parts = [tally(logits[group == k], y[group == k], classes=classes) for k in range(4)]
    assert_same(parts[0] + parts[1] + parts[2] + parts[3], whole)
    for k, part in enumerate(parts):
        assert_same(apart[k], part)


@quick
@given(cohorts(), st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(cohort, seed):
    logits, y, group, classes = cohort
    shuffled = np.random.default_rng(seed).permutation(len(y))
    before = tally(logits, y, group=group, groups=4, classes=classes)
    after = tally(logits[shuffled], y[shuffled], group=group[shuffled], groups=4, classes=classes)
    assert_same(before, after)


@quick
@given(cohorts())
def test_every_statistic_counts_every_row_once(cohort):
    logits, y, group, classes = cohort
    t = tally(logits, y, group=group, groups=4, classes=classes)
    rows = np.bincount(group, minlength=4)
    heads = 1 if classes == 2 else classes
    assert np.array_equal(t.count, rows)
    assert np.array_equal(t.confusion.sum(axis=(1, 2)), rows)
    assert np.array_equal(t.reliability[..., 0].sum(axis=1), rows)
    assert np.array_equal(t.histogram.sum(axis=(2, 3)), np.repeat(rows[:, None], heads, axis=1))
    assert np.isfinite(t.log_loss).all()
    assert (t.log_loss >= 0).all()
    assert (t.brier <= rows * (1 if classes == 2 else 2) + 1e-9).all()
    assert (t.reliability[..., 1:] <= t.reliability[..., :1] + 1e-9).all()


def test_four_rows_by_hand():
    t = tally(log_odds([0.1, 0.4, 0.6, 0.9]), np.array([0, 1, 0, 1]), classes=2)
    assert t.shape == ()
    assert t.count == 4
    assert t.log_loss == pytest.approx(-2 * np.log(0.9) - 2 * np.log(0.4))
    assert t.brier == pytest.approx(0.01 + 0.36 + 0.36 + 0.01)
    assert t.confusion.tolist() == [[1, 1], [1, 1]]
    occupied = np.flatnonzero(t.reliability[:, 0])
    assert occupied.tolist() == [1, 6, 9, 13]
    np.testing.assert_allclose(t.reliability[occupied], [[1, 0.1, 0], [1, 0.4, 1], [1, 0.6, 0], [1, 0.9, 1]])
    where = bin_index(log_odds([0.1, 0.4, 0.6, 0.9])[:, 0])
    assert t.histogram[0, :, where].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_three_classes_by_hand():
    p = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    t = tally(np.log(p), np.array([0, 1]), classes=3)
    assert t.log_loss == pytest.approx(-np.log(0.7) - np.log(0.3))
    assert t.brier == pytest.approx((0.09 + 0.04 + 0.01) + (0.09 + 0.49 + 0.16))
    assert t.confusion.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(t.reliability[10], [1, 0.7, 1])
    np.testing.assert_allclose(t.reliability[6], [1, 0.4, 0])
    for c in range(3):
        where = bin_index(np.log(p[:, c] / (1 - p[:, c])))
        truth = [int(c == 0), int(c == 1)]
        assert t.histogram[c, truth[0], where[0]] == 1
        assert t.histogram[c, truth[1], where[1]] == 1


def test_confusion_is_that_of_scikit_learn():
    cohort = binary_cohort(5)
    t = tally(cohort.logits, cohort.y, group=cohort.site, groups=cohort.sites, classes=2)
    for k in range(cohort.sites):
        own = cohort.site == k
        predicted = sigmoid(cohort.logits[own, 0]) >= 0.5
        assert np.array_equal(t.confusion[k], confusion_matrix(cohort.y[own], predicted, labels=[0, 1]))


def test_two_columns_are_one_column():
    rng = np.random.default_rng(3)
    two, y = 4 * rng.normal(size=(500, 2)), rng.integers(0, 2, 500)
    assert_same(tally(two, y, classes=2), tally(two[:, 1:] - two[:, :1], y, classes=2))
    expected = -np.log(softmax(two)[np.arange(500), y]).sum()
    assert tally(two, y, classes=2).log_loss == pytest.approx(expected)


def test_one_half_is_called_positive_everywhere():
    t = tally(np.zeros((3, 1)), np.array([0, 1, 1]), classes=2)
    assert t.confusion.tolist() == [[0, 1], [0, 2]]
    assert t.histogram[0, :, : BINS // 2].sum() == 0


@pytest.mark.parametrize("threshold", [0.02, 0.3, 0.5, 0.9])
def test_rows_that_are_decided_by_half_keep_their_losses_and_ignore_the_threshold(threshold):
    z, y = np.array([[-0.4], [0.2], [-3.0], [3.0]]), np.array([1, 0, 0, 1])
    scored = ScoredRows.from_logits(z, y, classes=2)
    held = scored.decide_by_half(np.array([True, True, False, False]), threshold)
    before, after = scored.tally(np.zeros(4, int), ()), held.tally(np.zeros(4, int), ())
    assert after.log_loss == before.log_loss and np.array_equal(after.reliability, before.reliability)
    others = int(1 / (1 + np.exp(3.0)) >= threshold)
    assert np.array_equal(after.bins.count_at_least(threshold), [[1 + others], [1]])


def test_saturated_logits_have_finite_losses():
    t = tally(np.array([[1e4], [-1e4], [1e4]]), np.array([0, 1, 1]), classes=2)
    assert t.log_loss == pytest.approx(2e4)
    assert t.brier == pytest.approx(2.0)
    t = tally(np.array([[1e4, 0.0, -1e4]]), np.array([2]), classes=3)
    assert t.log_loss == pytest.approx(2e4)
    assert t.histogram[:, 0, [0, -1]].tolist() == [[0, 1], [1, 0], [0, 0]]
    assert t.histogram[2, 1, 0] == 1


def test_small_losses_are_not_rounded_to_zero():
    assert tally(np.array([[50.0]]), np.array([1]), classes=2).log_loss == pytest.approx(np.exp(-50.0), rel=1e-12)
    three = tally(np.array([[50.0, 0.0, 0.0]]), np.array([0]), classes=3)
    assert three.log_loss == pytest.approx(2 * np.exp(-50.0), rel=1e-12)


def test_log_odds_of_a_sure_class_do_not_cancel():
    t = tally(np.array([[38.0, 0.0, 0.0]]), np.array([0]), classes=3)
    assert t.histogram[0, 1].argmax() == bin_index(np.array([38.0 - np.log(2.0)]))[0]
    assert t.histogram[0, 1].argmax() < BINS - 1
    assert t.histogram[1, 0].argmax() == bin_index(np.array([-38.0]))[0]


def test_empty_groups_are_zeros():
    t = tally(np.ones((2, 1)), np.array([1, 0]), group=np.array([2, 2]), groups=5, classes=2)
    assert t.count.tolist() == [0, 0, 2, 0, 0]
    for array in t[[0, 1, 3, 4]].arrays().values():
        assert not array.any()


def test_no_rows_at_all():
    for classes, columns in [(2, 1), (4, 4)]:
        t = tally(np.zeros((0, columns)), np.zeros(0, int), classes=classes)
        assert not any(array.any() for array in t.arrays().values())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_diverged_model_shows_and_does_not_stop_the_run(bad, columns):
    classes = 3 if columns == 3 else 2
    logits = np.zeros((3, columns))
    logits[1, 0] = bad
    t = tally(logits, np.array([0, 1, 1]), group=np.array([0, 0, 1]), groups=2, classes=classes)
    assert np.isnan(t.log_loss).tolist() == [True, False]
    assert np.isnan(t.brier).tolist() == [True, False]
    assert t.count.tolist() == [2, 1]
    calm = tally(np.zeros((3, columns)), np.array([0, 1, 1]), classes=classes)
    assert np.array_equal(t.sum().histogram, calm.histogram)


def test_the_callers_logits_are_left_alone():
    logits = np.array([[np.nan, 1.0, 2.0], [3.0, 1.0, 2.0]])
    kept = logits.copy()
    tally(logits, np.array([0, 1]), classes=3)
    np.testing.assert_array_equal(logits, kept)


def test_tallies_travel_as_arrays():
    cohort = binary_cohort(1, rows=300)
    t = tally(cohort.logits, cohort.y, group=cohort.site, groups=12, classes=2)
    sent = t.arrays()
    assert list(sent) == ["count", "log_loss", "brier", "confusion", "reliability", "histogram"]
    assert_same(Tally.from_arrays({**sent, "note": np.zeros(1)}), t)
    with pytest.raises(ValueError, match=r"needs brier"):
        Tally.from_arrays({name: array for name, array in sent.items() if name != "brier"})
    with pytest.raises(ValueError, match="histogram is"):
        Tally.from_arrays({**sent, "histogram": sent["histogram"][..., :-1]})
    with pytest.raises(ValueError, match="log_loss is"):
        Tally.from_arrays({**sent, "log_loss": sent["log_loss"][:-1]})


def test_leading_axes_are_indexed_and_summed():
    cohort = binary_cohort(2, rows=600)
    flat = tally(cohort.logits, cohort.y, group=cohort.site, groups=12, classes=2)
    square = Tally.from_arrays({name: a.reshape(3, 4, *a.shape[1:]) for name, a in flat.arrays().items()})
    assert square.shape == (3, 4)
    assert_same(square[1, 2], flat[6])
    assert_same(square[..., 2], flat[[2, 6, 10]])
    assert_same(square[:, 1:3][2], flat[9:11])
    assert_same(square[np.arange(12).reshape(3, 4) % 5 == 0], flat[[0, 5, 10]])
    assert_same(square.sum(axis=1)[0], flat[:4].sum())
    assert_same(square.sum(axis=-1)[2], flat[8:].sum())
    assert_same(square.sum(axis=(0, 1)), flat.sum())
    with pytest.raises(ValueError, match="axis 2"):
        square.sum(axis=2)
    with pytest.raises(ValueError, match="axis 0"):
        flat.sum().sum()
    with pytest.raises(IndexError):
        flat[0, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tally(np.zeros((2, 3)), np.zeros(2, int), classes=2), "do not fit 2 classes"),
        (lambda: tally(np.zeros((2, 1)), np.zeros(2, int), classes=3), "do not fit 3 classes"),
        (lambda: tally(np.zeros(2), np.zeros(2, int), classes=2), "do not fit"),
        (lambda: tally(np.zeros((2, 1)), np.zeros(2, int), classes=1), "two classes or more"),
        (lambda: tally(np.zeros((2, 1)), np.zeros(3, int), classes=2), "y of shape"),
        (lambda: tally(np.zeros((2, 1)), np.array([0, 2]), classes=2), "y runs from 0 to 2"),
        (lambda: tally(np.zeros((2, 1)), np.array([-1, 1]), classes=2), "y runs from -1"),
        (lambda: tally(np.zeros((2, 1)), np.array([0.5, 1]), classes=2), "not whole"),
        (lambda: tally(np.zeros((2, 1)), np.array([np.nan, 1]), classes=2), "y runs from nan"),
        (
            lambda: tally(np.zeros((1, 1)), np.zeros(1), group=np.array([3]), groups=3, classes=2),
            "group runs",
        ),
        (lambda: tally(np.zeros((1, 1)), np.zeros(1), groups=3, classes=2), "pass group="),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
