"""Forests against scikit-learn, against votes counted by hand, and against vectors that mean harm."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier

from grandrounds.core.arrays import decode, encode, save
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.models.dense import class_probabilities
from grandrounds.models.forest import (
    REFUSALS,
    Forest,
    ForestLayout,
    ForestModel,
    combine,
    fit_forest,
    forest_arrays,
    from_sklearn,
    from_vector,
    to_vector,
)
from grandrounds.models.trees import DTYPES, MAX_DEPTH, round_down
from tests.support import refused

LOADERS = {"breast-cancer": load_breast_cancer, "digits": load_digits}
LEAF = {"feature": -1, "left": -1, "right": -1}


@cache
def table(name: str):
    x, y = LOADERS[name](return_X_y=True)
    return x, y, int(y.max()) + 1


def two_trees(**changes) -> Forest:
    """Tree 0 asks x0 <= 1 and then x1 <= 5, tree 1 asks x1 <= 2; the second has a quarter of the vote."""
    none = -1
    parts = {
        "feature": np.array([[0, none, 1, none, none], [1, none, none, none, none]]),
        "threshold": np.array([[1.0, 0, 5.0, 0, 0], [2.0, 0, 0, 0, 0]]),
        "left": np.array([[1, none, 3, none, none], [1, none, none, none, none]]),
        "right": np.array([[2, none, 4, none, none], [2, none, none, none, none]]),
        "value": np.array(
            [
                [[0.5, 0.5], [1, 0], [0.4, 0.6], [0.2, 0.8], [0, 1]],
                [[0.5, 0.5], [0.6, 0.4], [0, 1], [0, 0], [0, 0]],
            ]
        ),
        "weight": np.array([0.75, 0.25]),
    }
    return Forest(**(parts | changes))


def chain(depth: int) -> Forest:
    """One tree that goes down and down: node 2i has the children 2i + 1 (a leaf) and 2i + 2."""
    j = np.arange(2 * depth + 1)
    split = (j % 2 == 0) & (j < 2 * depth)
    return Forest(
        feature=np.where(split, 0, -1)[None],
        threshold=np.zeros((1, len(j))),
        left=np.where(split, j + 1, -1)[None],
        right=np.where(split, j + 2, -1)[None],
        value=np.full((1, len(j), 2), 0.5),
        weight=np.ones(1),
    )


def softmax(logits):
    e = np.exp(logits)
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("depth", [3, 10])
def test_probabilities_equal_scikit_learn(name, depth):
    x, y, classes = table(name)
    theirs = RandomForestClassifier(n_estimators=20, max_depth=depth, random_state=11).fit(x[::2], y[::2])
    ours = fit_forest(x[::2], y[::2], classes=classes, trees=20, depth=depth, seed=11)
    np.testing.assert_allclose(ours.probabilities(x), theirs.predict_proba(x), atol=1e-6, rtol=0)
    assert (ours.trees, ours.classes) == (20, classes)
    assert ours.depth == max(e.tree_.max_depth for e in theirs.estimators_)
    assert ours.nodes == max(e.tree_.node_count for e in theirs.estimators_)


def test_rows_that_lie_on_a_threshold_go_where_scikit_learn_sends_them():
    rng = generator(0, purpose="test")
    x = rng.integers(0, 4, (300, 3)) / 3 * np.array([1, 1e-30, 1e30])
    y = rng.integers(0, 2, 300)
    theirs = RandomForestClassifier(n_estimators=5, random_state=0).fit(x, y)
    ours = from_sklearn(theirs, classes=2)
    splits = [e.tree_.threshold[e.tree_.feature == j] for j in range(3) for e in theirs.estimators_]
    rows = np.repeat(np.concatenate(splits)[:, None], 3, axis=1)
    for nudge in (-np.inf, 0, np.inf):
        at = np.nextafter(rows.astype(np.float32), np.float32(nudge)) if nudge else rows
        np.testing.assert_allclose(ours.probabilities(at), theirs.predict_proba(at), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", LOADERS)
def test_a_union_votes_as_the_weighted_mean_of_the_sites(name):
    x, y, classes = table(name)
    weights = np.array([1.0, 2.0, 5.0])
    theirs = [
        RandomForestClassifier(n_estimators=4 + k, max_depth=4 + k, random_state=k).fit(x[k::3], y[k::3])
        for k in range(3)
    ]
    union = combine([from_sklearn(m, classes=classes) for m in theirs], weights)
    mean = sum(w * m.predict_proba(x) for w, m in zip(weights / 8, theirs, strict=True))
    np.testing.assert_allclose(union.probabilities(x), mean, atol=1e-6, rtol=0)
    assert union.trees == 4 + 5 + 6
    assert union.weight.sum() == pytest.approx(1)


def test_two_trees_counted_by_hand():
    forest = two_trees()
    x = np.array([[1.0, 2.0], [1.0, 2.5], [2.0, 5.0], [2.0, 5.1], [2.0, -1.0]])
    by_hand = [[0.75 + 0.15, 0.1], [0.75, 0.25], [0.15, 0.85], [0, 1], [0.15 + 0.15, 0.6 + 0.1]]
    np.testing.assert_allclose(forest.probabilities(x), by_hand, atol=1e-7)
    assert (forest.trees, forest.nodes, forest.classes, forest.depth) == (2, 5, 2, 2)
    assert forest.probabilities(x[:0]).shape == (0, 2)


def test_a_vote_does_not_depend_on_how_rows_are_blocked(monkeypatch):
    x, y, classes = table("digits")
    forest = fit_forest(x, y, classes=classes, trees=7, seed=0)
    whole = forest.probabilities(x)
    monkeypatch.setattr("grandrounds.models.trees._ROWS", 100)
    monkeypatch.setattr("grandrounds.models.trees._CELLS", 250)
    np.testing.assert_allclose(forest.probabilities(x), whole, atol=1e-12)
    np.testing.assert_allclose(forest.probabilities(x[5:6]), whole[5:6], atol=1e-12)


def test_a_forest_survives_its_vector_and_its_bytes():
    x, y, classes = table("digits")
    forest = fit_forest(x, y, classes=classes, trees=5, seed=2)
    vector = to_vector(forest)
    arrays, _ = decode(encode({"theta": vector} | forest_arrays(forest)))
    packed = ForestLayout().pack({n: arrays[n] for n in DTYPES}, dtype=arrays["feature"].dtype)
    for copy in (from_vector(vector, features=64), from_vector(arrays["theta"]), from_vector(packed)):
        for name, array in forest_arrays(forest).items():
            np.testing.assert_array_equal(getattr(copy, name), array)
            assert getattr(copy, name).dtype == DTYPES[name]
    assert vector.dtype == packed.dtype == np.float64
    assert list(ForestLayout().views(vector)) == list(DTYPES)


def test_a_float32_vector_changes_no_decision():
    x, y, classes = table("breast-cancer")
    forest = fit_forest(x, y, classes=classes, trees=10, seed=2)
    narrow = ForestLayout().pack(forest_arrays(forest), dtype=np.float32)
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(from_vector(narrow).probabilities(x), forest.probabilities(x), atol=1e-6)


@given(st.floats(width=64, allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False))
def test_rounding_a_threshold_down_keeps_every_float32_decision(threshold, x):
    assert (np.float32(x) <= round_down(np.array([threshold]))[0]) == (float(x) <= threshold)


def test_a_site_with_one_class_gives_one_leaf():
    x, _, _ = table("breast-cancer")
    forest = fit_forest(x, np.ones(len(x), int), classes=3, seed=0)
    assert (forest.trees, forest.nodes, forest.depth) == (1, 1, 0)
    np.testing.assert_array_equal(forest.probabilities(x[:4]), np.tile([0, 1, 0], (4, 1)))


def test_a_site_that_lacks_classes_still_has_their_columns():
    x, y, classes = table("digits")
    some = np.isin(y, [1, 4, 7])
    theirs = RandomForestClassifier(n_estimators=5, max_depth=10, random_state=3).fit(x[some], y[some])
    p = fit_forest(x[some], y[some], classes=classes, trees=5, seed=3).probabilities(x)
    np.testing.assert_allclose(p[:, [1, 4, 7]], theirs.predict_proba(x), atol=1e-6)
    assert (np.delete(p, [1, 4, 7], axis=1) == 0).all()


def test_a_seed_gives_the_same_bits_and_another_gives_others():
    x, y, classes = table("breast-cancer")
    model = ForestModel(features=30, classes=classes, trees=3, depth=4)
    first = model.fit(x, y, seed=5)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    np.testing.assert_array_equal(model.fit(x, y, seed=5), first)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert not np.array_equal(model.fit(x, y, seed=6), first)
    assert model.fit(x, y, seed=-(2**70)).dtype == np.float64


def test_min_leaf_is_kept():
    x, y, classes = table("breast-cancer")
    few = fit_forest(x, y, classes=classes, trees=3, seed=0, min_leaf=100)
    theirs = RandomForestClassifier(n_estimators=3, max_depth=10, min_samples_leaf=100, random_state=0).fit(x, y)
    np.testing.assert_allclose(few.probabilities(x), theirs.predict_proba(x), atol=1e-6)


def test_the_model_starts_uniform_and_its_logits_give_the_vote_back():
    x, y, classes = table("digits")
    model = ForestModel(features=64, classes=classes, trees=10, depth=6)
    start = model.logits(model.init(0, np.float32), x[:3])
    np.testing.assert_allclose(softmax(start), np.full((3, 10), 0.1), atol=1e-6)
    a, b = model.fit(x[::2], y[::2], seed=0), model.fit(x[1::2], y[1::2], seed=1)
    union = model.combine([a, b], np.array([3, 1]))
    vote = (3 * from_vector(a).probabilities(x) + from_vector(b).probabilities(x)) / 4
    np.testing.assert_allclose(class_probabilities(model.logits(union, x)), vote, atol=1e-5)
    assert model.outputs == classes
    assert ForestModel(features=3, classes=2).logits(ForestModel(3, 2).init(0), np.zeros((1, 3))).shape == (1, 2)


def test_joining_refuses_what_does_not_fit():
    forest = two_trees()
    three = fit_forest(np.zeros((2, 1)), np.zeros(2, int), classes=3, seed=0)
    for forests, weights, code in [
        ([], [], "mismatched-shapes"), ([forest], [1, 2], "mismatched-shapes"), ([forest], [-1], "bad-weights"),
        ([forest], [0], "bad-weights"), ([forest], [np.nan], "bad-weights"), ([forest, three], [1, 1], "mismatched-classes"),
    ]:  # fmt: skip
        with refused(code):
            combine(forests, np.array(weights))


@pytest.mark.parametrize(
    ("x", "y", "options", "code"),
    [
        (np.zeros((0, 2)), np.zeros(0, int), {}, "mismatched-shapes"),
        (np.zeros((3, 2)), np.zeros(2, int), {}, "mismatched-shapes"),
        (np.zeros((2, 2)), np.array([0, 2]), {}, "label-out-of-range"),
        (np.zeros((2, 2)), np.array([0, -1]), {}, "label-out-of-range"),
        (np.zeros((2, 2)), np.array([0.0, 1.0]), {}, "label-out-of-range"),
        (np.full((2, 2), np.nan), np.array([0, 1]), {}, "not-finite"),
        (np.full((2, 2), 1e300), np.array([0, 1]), {}, "not-finite"),
        (np.zeros((2, 2)), np.array([0, 1]), {"trees": 0}, "bad-tree-settings"),
        (np.zeros((2, 2)), np.array([0, 1]), {"depth": MAX_DEPTH + 1}, "bad-tree-settings"),
        (np.zeros((2, 2)), np.array([0, 1]), {"min_leaf": 0}, "bad-tree-settings"),
    ],
)
def test_fitting_refuses_bad_data_and_settings(x, y, options, code):
    with refused(code):
        fit_forest(x, y, classes=2, seed=0, **options)


@pytest.mark.parametrize(
    ("name", "at", "new", "words"),
    [
        ("left", (0, 0), 0, "does not come after its parent"),
        ("left", (0, 2), 1, "does not come after its parent"),
        ("left", (0, 0), -1, "does not come after its parent"),
        ("right", (0, 0), 5, "outside its tree"),
        ("right", (0, 0), 3, "two parents"),
        ("right", (0, 0), 1, "two parents"),
        ("right", (0, 0), 1.5, "no index"),
        ("right", (0, 0), 2.0**40, "no index"),
        ("right", (0, 0), np.nan, "no index"),
        ("feature", (0, 0), -2, "no index"),
        ("feature", (0, 0), -1, "a leaf has children"),
        ("threshold", (0, 0), np.nan, "not finite"),
        ("threshold", (0, 4), np.inf, "not finite"),
        ("weight", (0,), -0.1, "negative weight"),
        ("weight", (0,), 0.9, "do not sum to one"),
        ("weight", (0,), np.nan, "not finite"),
        ("value", (0, 1, 0), 1000, "do not sum to one"),
        ("value", (0, 1, 1), -0.5, "negative"),
        ("value", (0, 1, 1), 1e300, "not finite"),
    ],
)
def test_an_unsound_forest_is_refused(name, at, new, words):
    arrays = {n: np.array(a, np.float64) for n, a in forest_arrays(two_trees()).items()}
    arrays[name][at] = new
    with refused("damaged-model", match=words):
        Forest(**arrays)
    with refused("damaged-model", match=words):
        ForestLayout().pack(arrays)


@pytest.mark.parametrize("name", DTYPES)
def test_wrong_shapes_and_types_are_refused(name):
    array = getattr(two_trees(), name)
    for wrong in (array[:0], array[None], array[:1], array.astype(str), array.astype(complex), array.astype(object)):
        with refused("damaged-model"):
            two_trees(**{name: wrong})


def test_a_tree_without_end_is_refused():
    assert chain(MAX_DEPTH).depth == MAX_DEPTH
    with refused("damaged-model", match="deeper"):
        chain(MAX_DEPTH + 1)


def test_a_forest_cannot_be_changed_behind_its_back():
    arrays = {n: a.copy() for n, a in forest_arrays(two_trees()).items()}
    forest = Forest(**arrays)
    arrays["left"][0, 0] = 0
    assert forest.left[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        forest.left[0, 0] = 0
    with refused("damaged-model"):
        replace(forest, left=arrays["left"])


def test_headers_and_lengths_that_do_not_add_up_are_refused():
    good = to_vector(two_trees())
    bad = [good[:-1], np.append(good, 0), good[:3], good[:0], good[None], good.astype(int), np.zeros(9, np.float16)]
    for at, value in [(0, 1), (1, 0), (1, 1), (1, 2.5), (2, -5), (2, np.nan), (3, np.inf), (3, 2.0**60)]:
        bad.append(good.copy())
        bad[-1][at] = value
    for vector in bad:
        with refused("damaged-model"):
            from_vector(vector)


def test_what_is_known_of_the_model_is_checked():
    vector = to_vector(two_trees())
    assert from_vector(vector, features=2).trees == 2
    for limits, code in [
        ({"features": 1}, "unknown-column"), ({"classes": 3}, "mismatched-classes"), ({"depth": 1}, "forest-too-large"),
    ]:  # fmt: skip
        with refused(code):
            ForestLayout(**limits).views(vector)
    roomy = combine([two_trees(), chain(4)], np.ones(2))
    with refused("forest-too-large"):
        ForestModel(features=2, classes=2, depth=2).combine([to_vector(roomy)], np.ones(1))
    with refused("unknown-column", match="column 1"):
        two_trees().probabilities(np.zeros((3, 1)))
    model = ForestModel(features=2, classes=2)
    for wrong in (np.zeros((4, 3)), np.zeros((4, 1)), np.zeros(2), np.zeros((1, 4, 2))):
        with refused("mismatched-shapes", match="2 columns"):
            model.logits(vector, wrong)
        with refused("mismatched-shapes", match="2 columns"):
            model.fit(wrong, np.array([0, 1, 0, 1]), seed=0)
    with refused("unknown-parameters", match="value missing"):
        ForestLayout().pack({n: a for n, a in forest_arrays(two_trees()).items() if n != "value"})


@cache
def victim():
    x, y, _ = table("breast-cancer")
    return to_vector(fit_forest(x[:, :4], y, classes=2, trees=3, depth=4, seed=0))


NUMBERS = st.one_of(
    st.integers(-3, 40).map(float),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.5, -0.0, 1e300, -1e300, 2.0**31, 2.0**53]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10_000), NUMBERS), max_size=3),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), max_size=2),
    st.integers(-2, 2),
)
def test_a_corrupted_vector_is_refused_or_harmless(changes, swaps, longer):
    vector = victim().copy()
    for at, value in changes:
        vector[at % len(vector)] = value
    for a, b in swaps:
        vector[[a % len(vector), b % len(vector)]] = vector[[b % len(vector), a % len(vector)]]
    vector = np.append(vector, np.zeros(longer)) if longer > 0 else vector[: len(vector) + longer]
    try:
        forest = from_vector(vector, features=4)
    except BadInput:
        return
    p = forest.probabilities(np.array([[0.0] * 4, [20.0] * 4, [-3e38] * 4, [1e300] * 4, [np.inf] * 4]))
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-1, 5), min_size=15, max_size=15))
def test_random_links_are_refused_or_walked_to_an_end(links):
    feature, left, right = (np.array(links[i : i + 5])[None] for i in (0, 5, 10))
    leaf = feature < 0
    try:
        forest = Forest(
            feature=feature,
            threshold=np.zeros((1, 5)),
            left=np.where(leaf, -1, left),
            right=np.where(leaf, -1, right),
            value=np.full((1, 5, 2), 0.5),
            weight=np.ones(1),
        )
    except BadInput:
        return
    np.testing.assert_allclose(forest.probabilities(np.eye(6) - 0.5), 0.5)


def test_predicting_needs_numpy_alone(tmp_path):
    x, y, classes = table("breast-cancer")
    model = ForestModel(features=30, classes=classes, trees=5)
    theta = model.fit(x, y, seed=0)
    save(tmp_path / "model.safetensors", {"theta": theta, "x": x[:50], "expected": model.logits(theta, x[:50])})
    code = """
import sys
for name in ("sklearn", "scipy", "pandas", "joblib", "torch"):
    sys.modules[name] = None
from pathlib import Path
import numpy as np
from grandrounds.core.arrays import load
from grandrounds.models.forest import ForestModel
a, _ = load(Path(sys.argv[1]))
model = ForestModel(features=30, classes=2, trees=5)
np.testing.assert_array_equal(model.logits(a["theta"], a["x"]), a["expected"])
model.combine([a["theta"], a["theta"]], np.ones(2))
assert not [m for m in sys.modules if m.startswith("sklearn.")]
"""
    command = [sys.executable, "-c", code, str(tmp_path / "model.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_refusal_is_a_sentence_with_a_way_out():
    named = {"fedprox", "fedopt", "scaffold", "moon", "async", "masking", "dp_sgd", "temperature", "keep_optimizer"}
    assert set(REFUSALS) >= named
    assert all(";" in sentence and len(sentence) > 40 for sentence in REFUSALS.values())
    with refused("unsupported-calibration"):
        ForestModel(features=2, classes=2).with_temperature(np.zeros(1), 2.0)
