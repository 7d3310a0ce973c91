"""Boosted trees against LightGBM itself, against scores worked out by hand, and against texts that mean harm."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression

from grandrounds.core.arrays import decode, encode, load, save
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.core.rng import generator
from grandrounds.models.boosted import METHODS, REFUSALS, BoostedModel
from grandrounds.models.boosted_text import BoostedLayout
from grandrounds.models.dense import class_probabilities
from grandrounds.models.trees import MAX_DEPTH
from tests.support import refused

lightgbm = pytest.importorskip("lightgbm", reason="boosted trees are LightGBM's (the extra 'baselines')")

LOADERS = {"breast-cancer": load_breast_cancer, "wine": load_wine}
FIXED = {"deterministic": True, "force_row_wise": True, "n_jobs": 1, "verbosity": -1}


@cache
def table(name: str):
    """Two classes or three; wine, the smaller, is made twice as long, so that LightGBM's defaults hold."""
    x, y = LOADERS[name](return_X_y=True)
    if name == "wine":
        x, y = np.concatenate([x, x * 1.01]), np.concatenate([y, y])
    return x, y, int(y.max()) + 1


def model_of(name: str, **options) -> BoostedModel:
    x, _, classes = table(name)
    return BoostedModel(features=x.shape[1], classes=classes, **({"trees": 10, "depth": 4} | options))


def theirs(model: BoostedModel, x, y, *, seed: int = 0, leaf: int = 20, **fit):
    """LightGBM's own classifier with the same settings."""
    settings = {"n_estimators": model.trees, "max_depth": model.depth, "learning_rate": model.lr, "random_state": seed}
    return lightgbm.LGBMClassifier(**settings, min_child_samples=leaf, **FIXED).fit(x, y, **fit)


def raw(fitted, x):
    return fitted.predict(x, raw_score=True).reshape(len(x), -1)


def text_of(model: BoostedModel, theta) -> str:
    return model.layout.text(theta).decode()


def packed(model: BoostedModel, text: str):
    return model.layout.pack({"text": np.frombuffer(text.encode(), np.uint8)})


@cache
def victim() -> tuple[BoostedModel, str]:
    """A small model of four columns, and its text."""
    x, y, _ = table("breast-cancer")
    model = BoostedModel(features=4, classes=2, trees=3, depth=4)
    return model, text_of(model, model.fit(x[:, :4], y, seed=0))


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("options", [{}, {"trees": 40, "depth": 10, "lr": 0.3}, {"depth": 1}])
def test_scores_equal_lightgbm(name, options):
    x, y, classes = table(name)
    model = model_of(name, **options)
    ours = model.logits(model.fit(x, y, seed=7), x)
    np.testing.assert_allclose(ours, raw(theirs(model, x, y, seed=7), x), atol=1e-9, rtol=0)
    assert ours.shape == (len(x), model.outputs) == (len(x), 1 if classes == 2 else classes)


@pytest.mark.parametrize("name", LOADERS)
def test_going_on_equals_lightgbm_going_on(name):
    x, y, _ = table(name)
    model = model_of(name)
    first = model.fit(x, y, seed=1)
    before = model.logits(first, x)
    second = model.fit(x[::2], y[::2], seed=1, start=first)
    start = theirs(model, x, y, seed=1)
    leaf = min(20, len(x[::2]) // 10)
    wanted = theirs(model, x[::2], y[::2], seed=1, leaf=leaf, init_model=start.booster_)
    np.testing.assert_allclose(model.logits(second, x), raw(wanted, x), atol=1e-9, rtol=0)
    assert model.layout.count(model.layout.text(second)) == 2 * model.trees * model.outputs
    np.testing.assert_array_equal(model.logits(first, x), before)


def test_going_on_from_no_trees_is_starting():
    x, y, _ = table("breast-cancer")
    model = model_of("breast-cancer")
    np.testing.assert_array_equal(model.fit(x, y, seed=0, start=model.init(0)), model.fit(x, y, seed=0))


@pytest.mark.parametrize("name", LOADERS)
def test_weights_of_rows_equal_lightgbm_and_only_their_proportions_count(name):
    x, y, _ = table(name)
    weight = generator(0, purpose="test").uniform(0.5, 2, len(y))
    weight /= weight.mean()
    model = model_of(name)
    ours = model.fit(x, y, seed=0, weight=weight)
    wanted = raw(theirs(model, x, y, sample_weight=weight), x)
    np.testing.assert_allclose(model.logits(ours, x), wanted, atol=1e-9, rtol=0)
    np.testing.assert_array_equal(model.fit(x, y, seed=0, weight=weight / 2**40), ours)
    some = np.where(y == y[0], weight, 0)
    only = model.logits(model.fit(x, y, seed=0, weight=some), x[:1])
    np.testing.assert_allclose(
        only, model.logits(model.fit(x[y == y[0]], y[y == y[0]], seed=0, weight=weight[y == y[0]]), x[:1])
    )


def test_boosting_tells_apart_what_a_linear_model_cannot():
    rng = generator(3, purpose="test")
    x = rng.normal(size=(600, 2))
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).astype(int)
    model = BoostedModel(features=2, classes=2, trees=30, depth=3)
    theta = model.fit(x[:400], y[:400], seed=0)
    right = ((model.logits(theta, x[400:])[:, 0] > 0) == y[400:]).mean()
    assert right > 0.95
    assert LogisticRegression().fit(x[:400], y[:400]).score(x[400:], y[400:]) < 0.7


@pytest.mark.parametrize("rows", [2, 3, 5, 12, 40])
def test_a_small_site_still_gets_splits(rows):
    x = np.arange(rows, dtype=float)[:, None]
    y = (np.arange(rows) >= rows // 2).astype(int)
    model = BoostedModel(features=1, classes=2, trees=20)
    assert ((model.logits(model.fit(x, y, seed=0), x)[:, 0] > 0) == y).mean() > 0.9


def test_columns_that_say_nothing_give_the_class_shares():
    model = BoostedModel(features=2, classes=2)
    theta = model.fit(np.zeros((9, 2)), np.arange(9) % 3 // 2, seed=0)
    np.testing.assert_allclose(model.logits(theta, np.ones((1, 2))), [[np.log(3 / 6)]])
    more = model.fit(np.zeros((9, 2)), np.arange(9) % 3 // 2, seed=0, start=theta)
    np.testing.assert_array_equal(model.logits(more, np.ones((1, 2))), model.logits(theta, np.ones((1, 2))))


def test_one_class_gives_a_bounded_constant_by_hand():
    x = np.arange(60.0).reshape(30, 2)
    two, three = BoostedModel(features=2, classes=2), BoostedModel(features=2, classes=3)
    for label, score in [(1, np.log(31)), (0, -np.log(31))]:
        theta = two.fit(x, np.full(30, label), seed=0)
        np.testing.assert_allclose(two.logits(theta, x[:2]), [[score], [score]])
    theta = three.fit(x, np.full(30, 1), seed=0)
    np.testing.assert_allclose(class_probabilities(three.logits(theta, x[:1])), [[1 / 33, 31 / 33, 1 / 33]])
    assert three.layout.count(three.layout.text(theta)) == 3


def test_one_class_leaves_a_model_that_has_trees_as_it_is():
    x, y, _ = table("wine")
    model = model_of("wine")
    start = model.fit(x, y, seed=0)
    np.testing.assert_array_equal(model.fit(x[y == 2], y[y == 2], seed=0, start=start), start)


def test_a_class_without_rows_is_unlikely_but_not_impossible():
    x, y, _ = table("wine")
    some = y != 1
    model = model_of("wine", trees=30)
    scores = model.logits(model.fit(x[some], y[some], seed=0), x[some])
    n = int(some.sum())
    np.testing.assert_allclose(scores[:, 1], np.log(1 / (n + 3)))
    assert (scores.argmax(axis=1) == y[some]).mean() > 0.98


def test_a_constant_is_a_start_to_go_on_from():
    x, y, _ = table("breast-cancer")
    model = model_of("breast-cancer", trees=50)
    start = model.fit(x[y == 1], y[y == 1], seed=0)
    theta = model.fit(x, y, seed=0, start=start)
    assert ((model.logits(theta, x)[:, 0] > 0) == y).mean() > 0.98


def test_the_same_rows_give_the_same_bits():
    x, y, _ = table("wine")
    model = model_of("wine")
    first = model.fit(x, y, seed=5)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    np.testing.assert_array_equal(model.fit(x, y, seed=5), first)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert model.fit(x, y, seed=-(2**70)).dtype == np.float64


@pytest.mark.slow
def test_another_process_with_other_threads_gives_the_same_bits():
    x, y, _ = table("wine")
    ours = sha256(model_of("wine").fit(x, y, seed=5).tobytes()).hexdigest()
    code = """
from hashlib import sha256
from tests.models.test_boosted import model_of, table
x, y, _ = table("wine")
print(sha256(model_of("wine").fit(x, y, seed=5).tobytes()).hexdigest())
"""
    env = os.environ | {"OMP_NUM_THREADS": "3"}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ours


def test_nothing_is_printed(capfd):
    x, y, _ = table("wine")
    model = model_of("wine")
    theta = model.fit(x, y, seed=3)
    for rows in (slice(None), y < 2, y == 0, slice(0, 140, 70)):
        model.logits(model.fit(x[rows], y[rows], seed=3, start=theta), x)
        model.logits(model.fit(x[rows], y[rows], seed=3), x)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_model_starts_at_zero(dtype):
    for classes, outputs in [(2, 1), (3, 3)]:
        model = BoostedModel(features=4, classes=classes)
        start = model.init(0, dtype)
        np.testing.assert_array_equal(model.logits(start, np.ones((5, 4))), np.zeros((5, outputs)))
        np.testing.assert_array_equal(start, model.init(9, dtype))
        assert model.logits(start, np.ones((0, 4))).shape == (0, outputs)
        assert start.dtype == (np.float32 if dtype == np.float32 else np.float64)
        assert model.outputs == outputs
    assert 0 < model.site_bytes < 10**7


@pytest.mark.parametrize("name", LOADERS)
def test_a_model_survives_its_vector_its_bytes_and_its_file(name, tmp_path):
    x, y, _ = table(name)
    model = model_of(name)
    theta = model.fit(x, y, seed=0)
    views = model.layout.views(theta)
    arrays, _ = decode(encode({"theta": theta} | views))
    save(tmp_path / "model.safetensors", {n: np.ascontiguousarray(a) for n, a in views.items()})
    params, _ = load(tmp_path / "model.safetensors")
    for copy in (
        arrays["theta"],
        model.layout.pack({"text": arrays["text"]}, dtype=arrays["text"].dtype),
        model.layout.pack(params, dtype=next(iter(params.values())).dtype),
        model.layout.pack(views, dtype=np.float32).astype(np.float64),
    ):
        np.testing.assert_array_equal(copy, theta)
        np.testing.assert_array_equal(model.logits(copy, x), model.logits(theta, x))
    narrow = model.layout.pack(views, dtype=np.float32)
    np.testing.assert_array_equal(model.logits(narrow, x), model.logits(theta, x))
    assert list(views) == ["text"]
    assert theta.dtype == np.float64 and narrow.dtype == np.float32


def test_lightgbm_reads_the_stored_text_and_explains_it(tmp_path):
    x, y, _ = table("breast-cancer")
    model = model_of("breast-cancer")
    theta = model.fit(x, y, seed=0)
    (tmp_path / "model.txt").write_bytes(model.layout.views(theta)["text"].tobytes())
    booster = lightgbm.Booster(model_file=tmp_path / "model.txt")
    own = theirs(model, x, y).booster_
    np.testing.assert_allclose(booster.predict(x, raw_score=True), own.predict(x, raw_score=True), atol=1e-12)
    np.testing.assert_allclose(booster.predict(x, pred_contrib=True), own.predict(x, pred_contrib=True), atol=1e-12)
    np.testing.assert_allclose(booster.feature_importance("gain"), own.feature_importance("gain"))


def test_the_text_holds_no_ranges_of_the_columns():
    x = np.array([[0.125], [1.25], [17.0625], [99.4375]]).repeat(10, axis=0)
    model = BoostedModel(features=1, classes=2, trees=3)
    text = text_of(model, model.fit(x, (x[:, 0] > 10).astype(int), seed=0))
    assert "0.125" not in text and "99.4375" not in text
    assert "feature_infos=none\n" in text


def test_one_model_with_all_the_weight_is_returned_and_several_are_refused():
    x, y, _ = table("breast-cancer")
    model = model_of("breast-cancer")
    a, b = model.fit(x[::2], y[::2], seed=0), model.fit(x[1::2], y[1::2], seed=0)
    np.testing.assert_array_equal(model.combine([a], np.array([3])), a)
    np.testing.assert_array_equal(model.combine(b[None], np.array([0.5])), b)
    np.testing.assert_array_equal(model.combine([a, b], np.array([0, 1])), b)
    with refused("cannot-average-trees") as caught:
        model.combine([a, b], np.array([3, 1]))
    assert str(caught.value) == (
        "gradient-boosted trees of several sites cannot be averaged: use model 'trees', which is fitted from sums over "
        "hospitals, or method 'pooled' or 'local'"
    )
    for models, weights, code in [
        ([], [], "mismatched-shapes"), ([a], [1, 2], "mismatched-shapes"), ([a], [0], "bad-weights"),
        ([a], [-1], "bad-weights"), ([a], [np.nan], "bad-weights"), ([np.nan], [1], "damaged-model"),
    ]:  # fmt: skip
        with refused(code):
            model.combine(models, np.array(weights))


@pytest.mark.parametrize(
    ("x", "y", "options", "weight", "code"),
    [
        (np.zeros((0, 2)), np.zeros(0, int), {}, None, "mismatched-shapes"),
        (np.zeros((3, 2)), np.zeros(2, int), {}, None, "mismatched-shapes"),
        (np.zeros((2, 3)), np.array([0, 1]), {}, None, "mismatched-shapes"),
        (np.zeros(2), np.array([0, 1]), {}, None, "mismatched-shapes"),
        (np.zeros((2, 2)), np.array([0, 2]), {}, None, "label-out-of-range"),
        (np.zeros((2, 2)), np.array([0, -1]), {}, None, "label-out-of-range"),
        (np.zeros((2, 2)), np.array([0.0, 1.0]), {}, None, "label-out-of-range"),
        (np.full((2, 2), np.nan), np.array([0, 1]), {}, None, "not-finite"),
        (np.full((2, 2), np.inf), np.array([0, 1]), {}, None, "not-finite"),
        (np.zeros((2, 2)), np.array([0, 1]), {"trees": 0}, None, "bad-tree-settings"),
        (np.zeros((2, 2)), np.array([0, 1]), {"depth": 0}, None, "bad-tree-settings"),
        (np.zeros((2, 2)), np.array([0, 1]), {"depth": MAX_DEPTH + 1}, None, "bad-tree-settings"),
        (np.zeros((2, 2)), np.array([0, 1]), {"lr": 0.0}, None, "bad-tree-settings"),
        (np.zeros((2, 2)), np.array([0, 1]), {"lr": np.nan}, None, "bad-tree-settings"),
        (np.zeros((2, 2)), np.array([0, 1]), {}, np.ones(3), "bad-weights"),
        (np.zeros((2, 2)), np.array([0, 1]), {}, np.zeros(2), "bad-weights"),
        (np.zeros((2, 2)), np.array([0, 1]), {}, np.array([1, -1]), "bad-weights"),
        (np.zeros((2, 2)), np.array([0, 1]), {}, np.array([1, np.nan]), "bad-weights"),
    ],
)
def test_fitting_refuses_bad_data_and_settings(x, y, options, weight, code):
    with refused(code):
        BoostedModel(features=2, classes=2, **options).fit(x, y, seed=0, weight=weight)


def test_whole_numbers_and_single_precision_are_read_as_they_are():
    x, y, _ = table("breast-cancer")
    model = model_of("breast-cancer")
    whole = np.round(x[:, :]).astype(np.int64)
    theta = model.fit(whole, y, seed=0)
    np.testing.assert_array_equal(theta, model.fit(whole.astype(float), y, seed=0))
    np.testing.assert_array_equal(model.logits(theta, whole), model.logits(theta, whole.astype(np.float32)))
    with refused("mismatched-shapes", match="30 columns"):
        model.logits(theta, x[:, :29])


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, 1, "header"),
        (1, 1, "length"),
        (2, 5, "length"),
        (2, 2.5, "whole bytes"),
        (2, np.nan, "whole bytes"),
        (9, -1, "whole bytes"),
        (9, 0.5, "whole bytes"),
        (9, 2.0**24, "whole bytes"),
        (9, np.inf, "whole bytes"),
        (9, 0xFFFFFF, "LightGBM's text"),
        (3, 0, "LightGBM's text"),
    ],
)
def test_vectors_that_do_not_add_up_are_refused(at, value, words):
    model, text = victim()
    vector = packed(model, text).copy()
    vector[at] = value
    with refused("damaged-model", match=words):
        model.layout.views(vector)
    with refused("damaged-model", match=words):
        model.logits(vector, np.zeros((1, 4)))


def test_vectors_of_another_kind_are_refused():
    model, text = victim()
    good = packed(model, text)
    for vector in (
        good[:-1], np.append(good, 0), good[:2], good[:0], good[None], good.astype(int), np.zeros(9, np.float16),
        np.array(np.nan), good.astype(complex), good.astype(object),
    ):  # fmt: skip
        with refused("damaged-model"):
            model.layout.views(vector)
    for params in (
        {}, {"text": good}, {"text": np.zeros((2, 2), np.uint8)}, {"words": np.zeros(2, np.uint8)},
        {"text": np.zeros(0, np.uint8)}, {"text": np.frombuffer(text.encode(), np.int8)},
    ):  # fmt: skip
        with refused("damaged-model" if "text" in params else "unknown-parameters"):
            model.layout.pack(params)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"features": 3, "classes": 2}, "read 4 columns, the model has 3"),
        ({"features": 5, "classes": 2}, "read 4 columns, the model has 5"),
        ({"features": 4, "classes": 3}, "give 1 scores, the model 3"),
        ({"features": 4, "classes": 2, "depth": 2}, "deeper than 2 levels"),
    ],
)
def test_what_is_known_of_the_model_is_checked(known, words):
    model, text = victim()
    with refused("damaged-model", match=words):
        BoostedLayout(**known).views(packed(model, text))


def changed(text: str, line: str, value: str) -> str:
    """The text with another value in the first line of this name; '{}' is what was there."""
    head, _, rest = text.partition(f"\n{line}=")
    old, _, tail = rest.partition("\n")
    return f"{head}\n{line}={value.replace('{}', old)}\n{tail}"


@pytest.mark.parametrize(
    ("line", "value", "words"),
    [
        ("version", "v3", "first lines"),
        ("objective", "binary sigmoid:2", "first lines"),
        ("feature_names", "a b c d", "first lines"),
        ("feature_infos", "none none none none\ntree_sizes=1 2 3", "first lines"),
        ("max_feature_idx", "-1", "columns"),
        ("num_class", "0", "scores"),
        ("num_tree_per_iteration", "7", "first lines"),
        ("Tree", "1", "not where it should be"),
        ("num_leaves", "1000000000", "does not hold"),
        ("num_leaves", "1", "does not hold"),
        ("num_leaves", "0", "no leaf"),
        ("num_leaves", "", "not one number"),
        ("num_cat", "1", "plain splits"),
        ("is_linear", "1", "plain splits"),
        ("is_linear", "0\nleaf_const=1", "unexpected lines"),
        ("split_feature", "{} 0", "does not hold"),
        ("split_feature", "", "does not hold"),
        ("left_child", "{}\nleft_child=0", "unexpected lines"),
        ("leaf_value", "nan", "no number"),
        ("leaf_value", "1e999", "not finite"),
        ("leaf_value", "{}\r", "no number"),
        ("threshold", "0x10", "no number"),
        ("threshold", " {}", "no number"),
        ("leaf_count", "99999999999", "no number"),
        ("leaf_count", "9999999999", "no index"),
        ("shrinkage", "1_0", "no number"),
        ("shrinkage", "{}\n\n\n\n", "not where it should be"),
    ],
)
def test_a_line_that_means_harm_is_refused(line, value, words):
    model, text = victim()
    with refused("damaged-model", match=words):
        packed(model, changed(text, line, value))


def by_hand(left: str, right: str, column: str = "0 1", kind: str = "2 2", leaves: int = 3) -> str:
    """One tree of two splits and three leaves: x0 <= 1, and where it is not, x1 <= 5."""
    _, text = victim()
    lines = {
        "num_leaves": leaves, "num_cat": 0, "split_feature": column, "split_gain": "1 1", "threshold": "1 5",
        "decision_type": kind, "left_child": left, "right_child": right, "leaf_value": "-2 0.5 3",
        "leaf_count": "1 1 1", "internal_count": "3 2", "is_linear": 0, "shrinkage": 1,
    }  # fmt: skip
    head = text.partition("\n\n")[0]
    return f"{head}\n\nTree=0\n" + "\n".join(f"{n}={v}" for n, v in lines.items()) + "\n\n\nend of trees\n"


def test_a_tree_scored_by_hand():
    model, _ = victim()
    theta = packed(model, by_hand("-1 -2", "1 -3"))
    x = np.array([[1.0, 9, 0, 0], [1.1, 5, 0, 0], [1.1, 5.1, 0, 0], [np.nan, np.inf, 0, 0]])
    np.testing.assert_allclose(model.logits(theta, x)[:3, 0], [-2, 0.5, 3])
    assert np.isfinite(model.logits(theta, x)).all()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"left": "-1 0", "right": "1 -3"}, "link"),
        ({"left": "1 -2", "right": "1 -3"}, "link"),
        ({"left": "-1 -2", "right": "-1 -3"}, "link"),
        ({"left": "-1 -2", "right": "1 -4"}, "link"),
        ({"left": "-1 -2", "right": "2 -3"}, "link"),
        ({"left": "-1 1", "right": "-2 -3"}, "come after its parent"),
        ({"left": "-1 -2", "right": "1 -3", "column": "0 4"}, "column"),
        ({"left": "-1 -2", "right": "1 -3", "column": "0 -1"}, "column"),
        ({"left": "-1 -2", "right": "1 -3", "kind": "2 1"}, "not numeric"),
        ({"left": "-1 -2", "right": "1 -3", "kind": "2 12"}, "not numeric"),
        ({"left": "-1 -2", "right": "1 -3", "leaves": 4}, "does not hold"),
    ],
)
def test_links_that_go_round_and_columns_that_are_not_there_are_refused(parts, words):
    model, _ = victim()
    with refused("damaged-model", match=words):
        packed(model, by_hand(**parts))


def test_trees_that_make_no_whole_round_are_refused():
    x, y, _ = table("wine")
    model = model_of("wine", trees=2)
    text = text_of(model, model.fit(x, y, seed=0))
    short = text[: text.index("Tree=5")] + "end of trees\n"
    with refused("damaged-model", match="5 trees"):
        packed(model, short)


def harmless(model: BoostedModel, text: bytes) -> None:
    """Refused in words, or a model that scores every row."""
    try:
        theta = model.layout.pack({"text": np.frombuffer(text, np.uint8)})
    except BadInput:
        return
    rows = np.array([[0.0] * 4, [20.0] * 4, [-1e300] * 4, [np.inf] * 4, [np.nan] * 4])
    assert not np.isnan(model.logits(theta, rows)).any()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["nothing", "tree\n", "Tree=0", "Tree=1", "end of trees"]))
def test_random_bytes_are_refused(noise, after):
    """Alone, or where a good text would go on."""
    model, text = victim()
    opening = text.partition(after)[0] if after in text else ""
    with refused("damaged-model"):
        model.layout.pack({"text": np.frombuffer(opening.encode() + noise, np.uint8)})


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_a_text_cut_short_is_refused(length):
    model, text = victim()
    with refused("damaged-model"):
        packed(model, text[: length % len(text)])


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 100_000),
            st.integers(0, 3),
            st.one_of(
                st.sampled_from([b"-", b" ", b"\n", b"9", b"1", b"0", b"e", b".", b"=", b"\0"]), st.binary(max_size=3)
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_corrupted_text_is_refused_or_harmless(changes):
    model, text = victim()
    data = text.encode()
    for at, gone, new in changes:
        at %= len(data)
        data = data[:at] + new + data[at + gone :]
    harmless(model, data)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=4, max_size=4), st.lists(st.integers(-2, 12), min_size=4, max_size=4))
def test_random_links_are_refused_or_walked_to_an_end(links, others):
    model, _ = victim()
    pairs = [f"{a} {b}" for a, b in (links[:2], links[2:], others[:2], others[2:])]
    harmless(model, by_hand(*pairs).encode())


def test_a_text_is_parsed_once(monkeypatch):
    x, y, _ = table("breast-cancer")
    model = model_of("breast-cancer", trees=4)
    theta = model.fit(x, y, seed=0)
    made = []
    real = lightgbm.Booster
    monkeypatch.setattr(lightgbm, "Booster", lambda **given: made.append(1) or real(**given))
    for _ in range(3):
        model.logits(theta.copy(), x)
    assert len(made) <= 1


def test_without_lightgbm_the_way_out_is_named(monkeypatch):
    x, y, _ = table("breast-cancer")
    model = model_of("breast-cancer", trees=2)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with refused("missing-package") as caught:
        model.fit(x, y, seed=0)
    assert install_extra("baselines") in str(caught.value)
    np.testing.assert_array_equal(model.logits(model.init(0), x), np.zeros((len(x), 1)))


def test_every_refusal_is_a_sentence_with_a_way_out():
    from grandrounds.models.forest import REFUSALS as OF_FORESTS

    assert set(REFUSALS) >= set(OF_FORESTS) - {"class_weights"} | {"averaging", "fedavg"}
    assert not set(REFUSALS) & set(METHODS)
    for sentence in REFUSALS.values():
        assert len(sentence) > 40
        assert any(way in sentence for way in ("use ", "turn ", "set ")), sentence
    with refused("unsupported-calibration"):
        BoostedModel(features=2, classes=2).with_temperature(np.zeros(1), 2.0)
