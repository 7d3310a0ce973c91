"""Evidence of a watch: e-values with a mean of one in the reference rows, by hand and on made patients."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.watch.statistics import Reference, Rows
from grandrounds.capabilities.watch.statistics.checks import INPUT_KINDS
from grandrounds.capabilities.watch.statistics.tilts import recalibrate
from grandrounds.capabilities.watch.statistics.variables import FIRST, NUMBER, number
from tests.support import refused


def patients(n: int, seed: int, *, shift: float = 0.0, gaps: float = 0.03, odds: float = 0.0, repeat: int = 1) -> Rows:
    """Draw rows of a hospital: two numbers, a count, a category, risks, attributions and labels."""
    rng = np.random.default_rng(seed)
    age, lab, count = rng.normal(60, 10, n), np.exp(rng.normal(shift, 0.7, n)), rng.integers(0, 5, n).astype(float)
    lab[rng.random(n) < gaps] = np.nan
    logit = -2.0 + 0.05 * (age - 60) + 0.8 * np.nan_to_num(np.log(lab))
    label = (rng.random(n) < 1 / (1 + np.exp(-logit - odds))).astype(float)
    return Rows(
        numbers={"age": age, "lab": lab, "count": count},
        categories={"ward": rng.choice([0, 1, 2, -1], n, p=[0.5, 0.3, 0.15, 0.05])},
        score=1 / (1 + np.exp(-logit)),
        attributions={"age": 0.05 * (age - 60), "lab": 0.8 * np.nan_to_num(np.log(lab))},
        label=label,
        patient=np.arange(n) // repeat,
    )


RANGES = {"age": (18.0, 100.0), "lab": (0.01, 50.0), "count": (0.0, 9.0)}


def build(rows: Rows, **more: object) -> Reference:
    return Reference.build(rows, ranges=RANGES, levels={"ward": 3}, threshold=0.2, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("repeat", [1, 3])
def test_e_values_of_labels_have_mean_one_in_the_reference_and_others_at_most_one(repeat):
    rows = patients(150, 0, repeat=repeat)
    reference = build(rows)
    log_e = reference.evidence(rows).log_e
    mean = np.nanmean(np.exp(log_e), axis=0)
    assert mean.max() <= 1 + 1e-12
    exact = [i for i, c in enumerate(reference.checks) if c.kind in ("calibration", "discrimination", "net benefit")]
    assert len(exact) == 4
    np.testing.assert_allclose(mean[np.isin(reference.owner, exact)], 1, rtol=1e-12)


def test_with_training_rows_the_mean_is_at_most_one_in_validation_rows_and_in_both():
    rows, training = patients(60, 0), patients(240, 1, gaps=0.08)
    reference = build(rows, training=training)
    first = np.exp(reference.evidence(rows).log_e)
    inputs = Rows(training.numbers, training.categories, label=training.label)
    both = np.concatenate([first, np.exp(reference.evidence(inputs).log_e)])
    assert np.nanmean(first, axis=0).max() <= 1 + 1e-12
    kinds = np.array([reference.checks[c].kind in (*INPUT_KINDS, "prevalence") for c in reference.owner])
    assert np.nanmean(both[:, kinds], axis=0).max() <= 1 + 1e-12


def test_missing_values_by_hand():
    rows = Rows(numbers={"lab": np.array([np.nan, *np.linspace(1, 2, 19)])})
    reference = Reference.build(rows)
    tilts = np.flatnonzero([reference.checks[c].name == "missing up: lab" for c in reference.owner])
    share = 1.5 / 21
    usual = share + np.sqrt(share * (1 - share)) * (1 / np.sqrt(21) + 0.1)
    odds = 3 * usual / (1 - usual)
    log_e = reference.evidence(Rows(numbers={"lab": np.array([np.nan, 1.5])})).log_e[:, tilts]
    tilted = np.array([odds / (1 + odds), usual + 0.2 * (1 - usual)])
    e = np.stack([tilted / usual, (1 - tilted) / (1 - usual)])
    table = np.concatenate([e[:1], np.repeat(e[1:], 19, axis=0)])
    scale = np.maximum(1, table.mean(axis=0) + 2 * table.std(axis=0) / np.sqrt(20))
    np.testing.assert_allclose(np.exp(log_e), e / scale, rtol=1e-12)
    assert reference.usual[reference.owner[tilts[0]]] == pytest.approx(0.05)


def test_shares_of_all_checks_add_up_to_one():
    reference = build(patients(100, 0))
    assert sum(check.share for check in reference.checks) == pytest.approx(1)
    assert len({check.name for check in reference.checks}) == len(reference.checks)
    inputs = [check for check in reference.checks if check.kind in INPUT_KINDS]
    assert len({round(sum(check.share for check in inputs if check.column == c), 12) for c in RANGES}) == 1


def test_rows_of_one_patient_are_one_patient_with_the_mean_of_its_e_values():
    rows = patients(120, 0)
    reference = build(rows)
    alone = np.exp(reference.evidence(rows.take(np.array([4, 9]))).log_e)
    pair = rows.take(np.array([4, 9]))
    same = Rows(pair.numbers, pair.categories, pair.score, pair.attributions, pair.label, np.array(["a", "a"]))
    together = reference.evidence(same)
    assert len(together) == 1
    known = ~np.isnan(alone).any(axis=0)
    np.testing.assert_allclose(np.exp(together.log_e[0, known]), alone.mean(axis=0)[known], rtol=1e-12)


def test_labels_that_arrive_later_touch_no_check_of_inputs():
    rows = patients(120, 0)
    reference = build(rows)
    late = reference.evidence(Rows(score=rows.score, label=rows.label))
    at_once = reference.evidence(rows)
    first = int(np.searchsorted(reference.owner, reference.labels_from))
    assert np.isnan(late.log_e[:, :first]).all()
    np.testing.assert_array_equal(late.log_e[:, first:], at_once.log_e[:, first:])
    assert not late.seen.any() and late.labelled.all()


def test_numbers_with_few_values_have_codes_for_gaps_and_range():
    raw = np.repeat([0.0, 1.0, 2.0], 20)
    variable = number(NUMBER, "n", raw, span=(0, 5))
    assert variable.single
    codes = variable.encode(Rows(numbers={"n": np.array([0, 1.0, 1.5, 2, 3, 6, -1, np.nan])}))
    assert codes is not None
    assert codes.tolist() == [FIRST + 1, FIRST + 3, FIRST + 4, FIRST + 5, FIRST + 6, 3, 2, 0]


def test_arrays_bring_back_the_same_reference():
    rows = patients(100, 0)
    reference = build(rows)
    again = Reference.from_arrays(*reference.to_arrays())
    assert again.checks == reference.checks
    np.testing.assert_array_equal(again.evidence(rows).log_e, reference.evidence(rows).log_e)
    np.testing.assert_array_equal(again.evidence(rows).shown, reference.evidence(rows).shown)


def test_no_edge_is_a_patients_value():
    rows = patients(150, 0)
    arrays, _ = build(rows).to_arrays()
    assert not np.isin(arrays["edges"], rows.numbers["lab"][~np.isnan(rows.numbers["lab"])]).any()


def test_small_and_uneven_references():
    for n in (10, 20):
        rows = patients(n, 3)
        reference = build(rows)
        assert np.nanmean(np.exp(reference.evidence(rows).log_e), axis=0).max() <= 1 + 1e-12
    with refused("watch-too-few-patients"):
        build(patients(9, 0))
    constant = Rows(
        numbers={"one": np.ones(30), "none": np.full(30, np.nan)}, score=np.full(30, 0.3), label=np.zeros(30)
    )
    kinds = {check.kind for check in Reference.build(constant).checks}
    assert kinds == {"missing", "unseen", "prevalence"}


def test_several_classes_are_watched_one_by_one():
    rng = np.random.default_rng(0)
    risk = rng.dirichlet([2, 2, 2], 150)
    label = np.array([rng.choice(3, p=p) for p in risk]).astype(float)
    rows = Rows(score=risk, label=label, numbers={"x": rng.normal(size=150)})
    reference = Reference.build(rows)
    assert sum(check.kind == "prevalence" for check in reference.checks) == 6
    assert reference.usual[[c.name for c in reference.checks].index("prevalence up: class 2")] == np.mean(label == 2)
    assert np.nanmean(np.exp(reference.evidence(rows).log_e), axis=0).max() <= 1 + 1e-12


def test_recalibration_finds_intercept_and_slope():
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 1.5, 20_000)
    events = (rng.random(20_000) < 1 / (1 + np.exp(-0.5 - 0.7 * logits))).astype(float)
    np.testing.assert_allclose(recalibrate(logits, events), (0.5, 0.7), atol=0.06)
