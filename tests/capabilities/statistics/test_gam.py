"""Additive models from sums: the same for any division into sites, equal to a direct fit of pooled rows, true to known curves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import BSpline
from scipy.optimize import isotonic_regression, minimize

from grandrounds.capabilities.statistics import gam, gam_penalties
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.gam import GAMTerms, fit_gam, gam_terms
from grandrounds.capabilities.statistics.gam_counts import find_knots, find_octaves, place_cuts
from grandrounds.capabilities.statistics.gam_result import GAMResult, merge_cells, project_isotonic, shorten
from grandrounds.capabilities.statistics.models.columns import Column, find_columns, read_columns
from grandrounds.capabilities.statistics.models.gam import AdditiveModel
from grandrounds.capabilities.statistics.question import Record, Rows, Total, fit_in_memory
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import COUNT, REGRESSION
from grandrounds.data.dataset import build_dataset
from grandrounds.data.encoding import EncodingRules, agree_ranges, make_encoding
from grandrounds.data.outcome import Outcome
from grandrounds.data.schema import infer_schema
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.summary import Moments, Summary
from tests.capabilities.statistics.ring import fit_in_ring

OPTIONS: dict[str, Any] = {"splines": 6, "monotone": {}, "columns": None, "gamma": 1.5}


@cache
def heart() -> tuple[tuple[Column, ...], Rows, np.ndarray]:
    """Return the columns of heart with missing values and categories, all 920 rows, and their hospitals."""
    entry = find_entry("heart")
    table = entry.load()
    schema = infer_schema(table, label=entry.label, drop=[entry.site], overrides=entry.schema)
    data = build_dataset(table, schema, name="heart")
    total, rules = Summary.from_dataset(data), EncodingRules(scale="none", clip=0.0, coding="columns")
    moments = Moments.from_dataset(data, *agree_ranges(total, clip=0.0))
    encoding = make_encoding(
        total, moments, numeric=data.numeric_names, categorical=data.categorical_names, rules=rules
    )
    rows = Rows(encoding.encode(data, np.float64), encoding.labels(data).astype(float))
    return find_columns(encoding), rows, table.column(entry.site).astype(str)


def deal(rows: Rows, site: np.ndarray) -> dict[str, Rows]:
    return {str(s): Rows(rows.x[site == s], rows.y[site == s]) for s in np.unique(site)}


def predict(columns: tuple[Column, ...], result: GAMResult, x: np.ndarray) -> np.ndarray:
    model = AdditiveModel(features=x.shape[1], columns=columns)
    return model.logits(model.pack(result.arrays), x)[:, 0]


def fit(terms: GAMTerms, sites: dict[str, Rows], record: Record | None = None) -> GAMResult:
    return fit_in_memory(fit_gam(terms), sites, ANSWERS, record)


def test_the_model_is_the_same_for_1_4_and_50_sites_and_through_the_ring():
    """Bar A3: log-odds within 1e-6; knots come from whole numbers and are the same bits."""
    columns, rows, hospital = heart()
    terms, record = gam_terms(OPTIONS, columns), Record()
    whole = fit(terms, {"all": rows}, record)
    expected = predict(columns, whole, rows.x)
    dealt = np.random.default_rng(0).integers(0, 50, len(rows)).astype(str)
    others = {
        "hospitals": fit(terms, deal(rows, hospital)),
        "fifty": fit(terms, deal(rows, dealt)),
        "ring": fit_in_ring(fit_gam(terms), deal(rows, dealt)),
    }
    for name, other in others.items():
        assert np.abs(predict(columns, other, rows.x) - expected).max() < 1e-6, name
        assert np.array_equal(other.arrays["knots"], whole.arrays["knots"]), name
        assert other.exchanges == whole.exchanges
    assert record.exchanges == whole.exchanges <= 9
    assert sum(q.numbers * (4 if q.whole else 8) for q in record.questions) < 110_000
    assert GAMResult.from_dict(whole.to_dict()).to_dict() == whole.to_dict()


@pytest.mark.parametrize("family", ["logistic", "linear", "poisson"])
def test_at_fixed_penalties_it_is_the_penalised_maximum_of_the_pooled_rows(family, monkeypatch):
    """A direct computation: scipy's B-splines, second differences, and scipy's minimizer on the pooled rows."""
    columns, rows, hospital = heart()
    place = {c.name: c for c in columns}
    some = (place["age"], place["cholesterol"], place["chest_pain"])
    y, more = rows.y, {}
    if family == "linear":
        y = 140 + 20 * np.sin(rows.x[:, place["age"].place] / 10) + rows.y
        more = {"task": REGRESSION, "outcome": Outcome(REGRESSION, float(y.mean()), float(y.std()))}
    if family == "poisson":
        y = np.random.default_rng(0).poisson(3 + 2 * rows.y).astype(float)
        more = {"task": COUNT, "outcome": Outcome(COUNT, 0.0, float(y.mean()))}
    monkeypatch.setattr(gam_penalties, "ITERATIONS", 0)
    monkeypatch.setattr(gam_penalties, "_ALONE", 0)
    monkeypatch.setattr(gam, "CLOSE", 1e-9)
    monkeypatch.setattr("grandrounds.capabilities.statistics.gam_result.UNUSED", 0.0)
    result = fit(gam_terms(OPTIONS, some, **more), deal(Rows(rows.x, y), hospital))
    values, a = read_columns(rows.x, some), result.arrays
    blocks, penalty = [np.ones((len(y), 1))], [np.zeros((1, 1))]
    null = np.linalg.svd(np.ones((1, 6)))[2][1:].T  # any orthonormal contrasts give the same curve
    second = np.diff(np.eye(6), 2, axis=0) @ null
    line = null.T @ np.arange(6.0)
    ridge = second.T @ second + np.outer(line, line) / (line @ line)
    for c in (0, 1):
        v = values[:, c]
        size = int(a["sizes"][c])
        u = np.interp(v, a["knots"][c, :size], a["ranks"][c, :size])
        b = np.stack([BSpline(np.arange(-3, 7) / 3, np.eye(6)[k], 3)(np.clip(u, 0, 1)) for k in range(6)], axis=1)
        blocks += [np.where(np.isnan(v)[:, None], 0.0, b @ null)]
        penalty += [ridge]
        if np.isnan(v).sum() >= 10:
            blocks.append(np.isnan(v)[:, None].astype(float))
            penalty.append(np.eye(1))
    blocks.append((values[:, 2:] == np.arange(4)).astype(float))
    penalty.append(np.eye(4))
    x = np.column_stack(blocks)
    p = np.zeros((x.shape[1],) * 2)
    first = 0
    for s in penalty:
        p[first : first + len(s), first : first + len(s)] = gam_penalties.START * s
        first += len(s)
    outcome = more.get("outcome")

    def loss(beta: np.ndarray) -> tuple[float, np.ndarray]:
        eta = x @ beta
        if family == "logistic":
            value, mean = np.logaddexp(0, eta).sum() - y @ eta, 1 / (1 + np.exp(-eta))
            slope = mean - y
        elif family == "linear":
            slope = eta - (y - outcome.centre) / outcome.scale
            value = 0.5 * slope @ slope
        else:
            mean = outcome.scale * np.exp(eta)
            value, slope = mean.sum() - y @ eta, mean - y
        return float(value + 0.5 * beta @ p @ beta), x.T @ slope + p @ beta

    best = minimize(loss, np.zeros(x.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
    assert np.abs(predict(some, result, rows.x) - x @ best.x).max() < 1e-5


def test_a_known_curve_is_found_and_its_band_covers_it():
    """Mean coverage over draws and values is near 95% (20 draws: 0.95)."""
    covered, errors, columns = [], [], (Column("age", 0), Column("noise", 1))
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = np.column_stack([rng.uniform(20, 90, 2000), rng.normal(size=2000)])
        truth = 1.5 * np.sin(x[:, 0] / 15)
        y = (rng.random(2000) < 1 / (1 + np.exp(-(truth - 0.5)))).astype(float)
        result = fit(gam_terms(OPTIONS, columns), deal(Rows(x, y), rng.integers(0, 3, 2000)))
        age, noise = result.shapes["columns"]
        error = np.array(age["effect"]) - 1.5 * np.sin(np.array(age["values"]) / 15) + truth.mean()
        covered.append(np.mean(np.abs(error) < 1.96 * np.array(age["se"])))
        errors.append(np.sqrt(np.mean(error**2)))
        assert sum(age["rows"]) == 2000 and min(age["rows"]) >= 5
        assert age["edf"] > 2.5 > 1.5 > noise["edf"]
        assert result.shapes["intercept"] == pytest.approx(np.mean(predict(columns, result, x)), abs=0.02)
    assert np.mean(covered) > 0.88 and np.mean(errors) < 0.12


def test_an_unused_column_changes_no_prediction():
    columns, rows, hospital = heart()
    result = fit(gam_terms(OPTIONS, columns), deal(rows, hospital))
    unused = [c for c, s in enumerate(result.shapes["columns"]) if not s["used"]]
    assert unused and any("not used" in note for note in result.notes)
    for c in unused:
        assert result.shapes["columns"][c]["edf"] < 0.05 and not any(result.shapes["columns"][c]["effect"])
        assert not any(np.any(result.arrays[name][c]) for name in ("curve", "levels", "gaps"))


def test_effects_of_the_shapes_are_those_of_the_model():
    columns, rows, hospital = heart()
    result = fit(gam_terms(OPTIONS, columns), deal(rows, hospital))
    model = AdditiveModel(features=rows.x.shape[1], columns=columns)
    for c, shape in enumerate(result.shapes["columns"]):
        at = range(len(shape["values"])) if shape["kind"] == "category" else shape["values"]
        values = np.full((len(shape["values"]) + 1, len(columns)), np.nan)
        values[:-1, c] = list(at)
        effect = model.effects(result.arrays, values)[:, c]
        np.testing.assert_allclose(effect[:-1], shape["effect"], atol=1e-12)
        if shape["missing"] is not None:
            assert effect[-1] == pytest.approx(shape["missing"]["effect"], abs=1e-12)


def test_monotone_curves_never_step_the_wrong_way():
    """Age, which rises by itself, is forced to fall; not one step of three curves goes the wrong way."""
    columns, rows, hospital = heart()
    ways = {"age": "down", "cholesterol": "up", "st_depression": "up"}
    result = fit(gam_terms({**OPTIONS, "monotone": ways}, columns), deal(rows, hospital))
    free = fit(gam_terms(OPTIONS, columns), deal(rows, hospital))
    model = AdditiveModel(features=rows.x.shape[1], columns=columns)
    values = read_columns(rows.x, columns)
    for name, way in ways.items():
        c = [col.name for col in columns].index(name)
        grid = np.full((400, len(columns)), np.nan)
        grid[:, c] = np.linspace(np.nanmin(values[:, c]), np.nanmax(values[:, c]), 400)
        steps = np.diff(model.effects(result.arrays, grid)[:, c]) * (1 if way == "up" else -1)
        assert steps.min() > -1e-12
        assert result.shapes["columns"][c]["monotone"] == way
    assert any("'age' was made to fall only after the fit" in note for note in result.notes)
    steps = np.diff(free.shapes["columns"][0]["effect"])
    assert steps.max() > 1e-3, "without the constraint it rises"


@pytest.mark.parametrize("seed", range(3))
def test_isotonic_projection_is_that_of_scipy(seed):
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=9), rng.uniform(0.1, 3, 9)
    expected = isotonic_regression(values, weights=weights).x
    np.testing.assert_allclose(project_isotonic(values, weights), expected, atol=1e-12)


def test_knots_are_recorded_values_with_their_mid_ranks():
    v = np.repeat([0.0, 1.0, 2.0, 5.0], [40, 30, 20, 10])
    octave, place = find_octaves(v)
    cuts = place_cuts(np.bincount(octave, minlength=209), np.bincount(place[place >= 0], minlength=32))
    cells = np.bincount(np.searchsorted(cuts, v, side="right"), minlength=len(cuts) + 1)
    value, rank, rows = find_knots(cuts, cells)
    assert rows.tolist() == [40, 30, 20, 10]
    np.testing.assert_allclose(value, [0, 1, 2, 5], atol=1e-7)
    np.testing.assert_allclose(rank, [0.2, 0.55, 0.8, 0.95])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e15])
def test_ranks_of_a_continuous_column_are_close_to_uniform(scale):
    rng = np.random.default_rng(0)
    for v in (rng.normal(7.4, 0.08, 5000) * scale, rng.lognormal(0, 1, 5000) * scale, rng.normal(0, 1, 5000) * scale):
        octave, place = find_octaves(v)
        cuts = place_cuts(np.bincount(octave, minlength=209), np.bincount(place[place >= 0], minlength=32))
        assert len(cuts) <= 127 and (np.diff(cuts) > 0).all()
        cells = np.bincount(np.searchsorted(cuts, v, side="right"), minlength=len(cuts) + 1)
        value, rank, _ = find_knots(cuts, cells)
        u = np.sort(np.interp(v, value, rank))
        assert len(value) > 25 and np.abs(u - (np.arange(5000) + 0.5) / 5000).max() < 0.04


def test_cells_of_a_shape_hold_the_least_number_of_patients():
    values, rows = merge_cells(np.arange(10.0), np.array([0, 1, 1, 1, 7, 0, 4, 4, 30, 1, 2]), least=5)
    assert rows.tolist() == [10, 8, 33] and values.tolist() == [3, 5, 7]


@pytest.mark.parametrize(
    ("low", "high", "value"),
    [(27.09375, 27.125, 27.1), (3.0, 3.03125, 3.0), (64.0, 66.0, 64.0), (-1e-12, 1e-12, 0.0), (-2.5, -2.25, -2.5),
     (1.6e12, 1.7e12, 1.6e12), (0.0123, 0.0131, 0.013), (5.0, np.inf, 5.0)],
)  # fmt: skip
def test_a_cell_is_shown_by_a_short_number_within_it(low, high, value):
    assert shorten(low, high) == pytest.approx(value, rel=1e-15)


def test_screening_keeps_the_columns_that_tell_most():
    columns, rows, hospital = heart()
    record = Record()
    result = fit(gam_terms({**OPTIONS, "columns": 4}, columns), deal(rows, hospital), record)
    kept = [s["name"] for s in result.shapes["columns"] if "reason" not in s]
    assert len(kept) == 4 and "chest_pain" in kept and "resting_bp" not in kept
    dropped = next(s for s in result.shapes["columns"] if s["name"] == "resting_bp")
    assert "method.gam.columns" in dropped["reason"] and not any(dropped["effect"])
    assert record.questions[-1].numbers < 400


def test_after_a_site_drops_out_the_fit_is_that_of_the_sites_left():
    """Counts are those of all sites, so knots stay; sums and penalties are of the sites left."""
    columns, rows, hospital = heart()
    sites = deal(rows, hospital)
    left = {name: r for name, r in sites.items() if name != "switzerland"}
    run, questions = fit_gam(gam_terms(OPTIONS, columns)), []
    try:
        question = next(run)
        while True:
            questions.append(question)
            now = sites if len(questions) < 4 else left
            answers = [ANSWERS[question.kind](question, r) for r in now.values()]
            total = {name: np.sum([a[name] for a in answers], axis=0) for name in question.blocks}
            question = run.send(Total(total, tuple(now), is_new_roster=len(questions) == 4))
    except StopIteration as end:
        result = end.value
    betas = [np.asarray(q.values["beta"]).tobytes() for q in questions[2:]]
    assert len(set(betas)) == len(betas), "no question is asked twice"
    assert any("dropped out in exchange 4" in note for note in result.notes)
    expected = fit(gam_terms(OPTIONS, columns), left)
    pooled = np.concatenate([r.x for r in left.values()])
    found, wanted = predict(columns, result, pooled), predict(columns, expected, pooled)
    assert np.abs(found - wanted).max() < 0.5 and np.corrcoef(found, wanted)[0, 1] > 0.995


def test_a_level_that_loses_its_rows_with_a_site_loses_its_coefficient():
    rng = np.random.default_rng(2)
    n = 600
    site = np.repeat([0, 1, 2], 200)
    level = np.where((site == 2) & (rng.random(n) < 0.3), 2, rng.integers(0, 2, n))
    x = np.column_stack([rng.normal(size=n), np.eye(3)[level]])
    y = (rng.random(n) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    columns = (Column("a", 0), Column("ward", levels=(1, 2, 3), words=("x", "y", "z")))
    sites = deal(Rows(x, y), site)
    run = fit_gam(gam_terms(OPTIONS, columns))
    sizes = []
    try:
        question = next(run)
        while True:
            sizes.append(question.blocks.get("score", (0,))[0])
            now = sites if len(sizes) < 4 else {k: sites[k] for k in ("0", "1")}
            answers = [ANSWERS[question.kind](question, r) for r in now.values()]
            total = {name: np.sum([a[name] for a in answers], axis=0) for name in question.blocks}
            question = run.send(Total(total, tuple(now), is_new_roster=len(sizes) == 4))
    except StopIteration as end:
        result = end.value
    assert sizes[3] == 9
    assert any("fewer than 5 rows at the sites left" in note for note in result.notes)
    assert len(result.penalties) == 3


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        ({"monotone": {"chest_pain": "up"}}, {}, "a category"),
        ({"monotone": {"agee": "up"}}, {}, "'age'"),
        ({}, {"classes": 3}, "two classes"),
        ({}, {"task": "survival"}, "method 'cox'"),
    ],
)
def test_what_it_cannot_fit_is_refused_in_one_sentence(options, more, words):
    columns, _, _ = heart()
    with pytest.raises(BadInput) as refused:
        gam_terms({**OPTIONS, **options}, columns, **more)
    assert words in str(refused.value) and refused.value.code == "model-does-not-fit"


@pytest.mark.parametrize(("y", "code"), [(0.0, "one-class"), (2.0, "bad-outcome")])
def test_outcomes_are_checked_by_sums_before_the_fit(y, code):
    columns, rows, hospital = heart()
    with pytest.raises(BadInput) as refused:
        fit(gam_terms(OPTIONS, columns), deal(Rows(rows.x, np.full(len(rows), y)), hospital))
    assert refused.value.code == code


def test_columns_without_information_are_left_out_with_a_reason():
    rng = np.random.default_rng(1)
    n = 300
    x = np.column_stack(
        [rng.normal(size=n), np.full(n, 7.0), np.r_[np.ones(4), np.zeros(n - 4)], rng.normal(size=n) * 1e-15]
    )
    x = np.column_stack([x, np.eye(2)[(np.arange(n) > 5).astype(int)], 1.6e18 + 1e17 * rng.normal(size=n)])
    y = (rng.random(n) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    columns = (
        *(Column("a", 0), Column("constant", 1), Column("rare", 2), Column("tiny", 3)),
        *(Column("ward", levels=(4, 5), words=("x", "y")), Column("nanoseconds", 6)),
    )
    result = fit(gam_terms(OPTIONS, columns), {"s": Rows(x, y)})
    reasons = {s["name"]: s.get("reason") for s in result.shapes["columns"]}
    assert reasons["a"] is None and reasons["nanoseconds"] is None
    assert "usual value" in reasons["constant"] and "usual value" in reasons["rare"] and "1e-12" in reasons["tiny"]
    assert "levels" in reasons["ward"]
    with pytest.raises(BadInput, match="no column"):
        fit(gam_terms(OPTIONS, columns[1:3]), {"s": Rows(x, y)})


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_a_hospital_of_one_class_alone_has_an_intercept_and_no_shapes(y):
    columns, rows, _ = heart()
    terms = replace(gam_terms(OPTIONS, columns), is_local=True)
    result = fit(terms, {"s": Rows(rows.x[:40], np.full(40, y))})
    assert predict(columns, result, rows.x) == pytest.approx(np.full(len(rows), (2 * y - 1) * np.log(40.5 / 0.5)))
    few = fit(terms, {"s": Rows(rows.x[:6], np.array([0.0, 0, 1, 0, 1, 0]))})
    assert predict(columns, few, rows.x) == pytest.approx(np.full(len(rows), np.log(2 / 4)))


def test_counts_over_two_orders_of_magnitude_take_few_exchanges():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(600, 1))
    y = rng.poisson(np.exp(1 + 1.5 * x[:, 0])).astype(float)
    columns, record = (Column("a", 0),), Record()
    terms = gam_terms(OPTIONS, columns, task=COUNT, outcome=Outcome(COUNT, 0.0, float(y.mean())))
    result = fit(terms, {"s": Rows(x, y)}, record)
    assert record.exchanges <= 10
    inner = np.abs(x[:, 0]) < 1.5
    found = predict(columns, result, x)[inner] + np.log(y.mean())
    assert np.sqrt(np.mean((found - (1 + 1.5 * x[inner, 0])) ** 2)) < 0.15
