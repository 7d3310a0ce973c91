"""Sentences of an alarm, units that are recognised, and the sums that the figures come from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from grandrounds.capabilities.watch.at_sites import words
from grandrounds.capabilities.watch.at_sites.patients import Patients, WatchedColumn
from grandrounds.capabilities.watch.at_sites.sums import (
    BLOCK,
    MOST_BLOCKS,
    Blocks,
    SumLayout,
    outcome_figures,
    outcome_rows,
)
from grandrounds.capabilities.watch.at_sites.units import find_unit_change
from grandrounds.core.rng import generator

GLUCOSE = WatchedColumn("glucose", low=40, high=600, middle=140)
WARD = WatchedColumn("ward", levels=("medical", "surgical"))
LAYOUT = SumLayout((GLUCOSE, WARD), ("glucose", "ward"))
PLACE = words.Place("runs/heart 1", "va", "the risk of died", "died")


def patients(glucose, ward) -> Patients:
    n = len(glucose)
    numbers, categories = {"glucose": np.asarray(glucose, float)}, {"ward": np.asarray(ward)}
    return Patients(numbers, categories, {}, np.full((n, 1), 0.25), np.ones((n, 2)), np.full(n, np.nan), np.zeros(n, np.uint64))


def glucose(values):
    rows = LAYOUT.rows(patients(values, np.zeros(len(values), int)))
    return LAYOUT.numbers(rows.sum(axis=0), len(rows), "glucose")


def lognormal(factor=1.0, n=80, seed=1):
    return factor * np.exp(generator(seed, purpose="glucose").normal(math.log(140), 0.3, n))


def test_figures_of_columns_are_those_of_the_rows():
    values, ward = [50, 20, np.nan, 900], [0, 1, 2, -1]
    sums = LAYOUT.rows(patients(values, ward)).sum(axis=0)
    figures = LAYOUT.numbers(sums, 4, "glucose")
    assert figures.missing == 0.25 and figures.mean == pytest.approx(np.nanmean(values))
    assert figures.sd == pytest.approx(np.nanstd(values)) and figures.below == figures.above == pytest.approx(1 / 3)
    assert figures.log_mean == pytest.approx(np.log([50, 20, 900]).mean())
    found = LAYOUT.categories(sums, 4, WARD)
    assert found.missing == 0.25 and found.unseen == pytest.approx(1 / 3)
    assert found.shares == {"medical": pytest.approx(1 / 3), "surgical": pytest.approx(1 / 3)}
    assert LAYOUT.score(sums, 4) == (0.25, 0) and LAYOUT.attribution(sums, 4, "ward") == 1


@pytest.mark.parametrize("size", [1, 7, 10, 64, 5000])
def test_blocks_are_the_same_whatever_the_batches(size):
    rows = generator(0, purpose="rows").integers(0, 9, (5000, 3)).astype(float)
    whole, parts = (Blocks.empty(3).add(rows, np.arange(5000.0)), Blocks.empty(3))
    for i in range(0, 5000, size):
        parts = parts.add(rows[i : i + size], np.arange(i, min(i + size, 5000)) * 1.0)
    assert parts.patients == 5000 and len(parts.rows) <= MOST_BLOCKS
    assert parts.sums.sum(axis=0) == pytest.approx(rows.sum(axis=0))
    k = -20
    assert (parts.start[k:] == whole.start[k:]).all() and (parts.sums[k:] == whole.sums[k:]).all()
    sums, count, time = parts.since(4981)
    assert count == 20 and time == 4980 and (sums == rows[4980:].sum(axis=0)).all()
    assert parts.since(4978)[1] == 20, "a change inside a block counts from the next one on"
    assert parts.time_of(4978) == 4975 and parts.rows[-1] == BLOCK


def test_figures_of_the_model_are_those_of_the_rows():
    rng = generator(3, purpose="risk")
    risk = rng.uniform(0.02, 0.9, 300)
    outcome = (rng.random(300) < risk).astype(float)
    figures = outcome_figures(outcome_rows(risk, outcome, 0.3).sum(axis=0), 0.3)
    assert figures.auroc[0] == pytest.approx(roc_auc_score(outcome, risk), abs=0.005)
    assert figures.observed[0] == pytest.approx(outcome.mean()) and figures.predicted == pytest.approx(risk.mean())
    treated = risk >= 0.3
    benefit = (treated * outcome).mean() - 0.3 / 0.7 * (treated * (1 - outcome)).mean()
    assert figures.benefit[0] == pytest.approx(benefit)
    assert math.isnan(outcome_figures(np.zeros(132), 0.3).auroc[0])


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (1 / 18.016, "mg/dL to mmol/L, as of glucose is a factor of 18.02"),
        (18.016, "mmol/L, as of glucose to mg/dL is a factor of 18.02"),
        (88.42, "umol/L, as of creatinine"),
        (1 / 2.2046, "lb to kg is a factor of 2.205"),
    ],
)
def test_a_change_of_unit_is_recognised(factor, text):
    column = "blood glucose" if "glucose" in text else ""
    found = find_unit_change(glucose(lognormal()), glucose(lognormal(factor, n=60, seed=2)), column)
    assert found is not None and text in found.sentence
    assert ("times smaller" if factor < 1 else "times larger") in found.sentence


def test_what_is_no_change_of_unit_is_not_called_one():
    before = glucose(lognormal())
    assert find_unit_change(before, glucose(lognormal(1.2, seed=2))) is None, "a factor of 1.2 is another case mix"
    mixed = np.concatenate([lognormal(seed=2)[:40], lognormal(1 / 18, seed=3)[:40]])
    assert find_unit_change(before, glucose(mixed)) is None, "half of the rows are in another unit: the spread changed"
    assert find_unit_change(glucose(np.full(9, -1.0)), before) is None
    warm = generator(0, purpose="warm").normal(37, 0.6, 50)
    found = find_unit_change(glucose(warm), glucose(warm * 1.8 + 32))
    assert found is not None and found.sentence == "Values look like degrees Fahrenheit, and were Celsius"


def test_sentences_on_columns():
    before, now = glucose(lognormal()), glucose(lognormal(1 / 18.016, seed=2))
    assert words.describe_range("glucose", 40, 600, before, now).startswith(
        "Column glucose is outside the range of training in 100% of patients, 0% before, most of them below 40; the mean is "
    )
    assert words.describe_number("glucose", "down", 140, before, now).startswith(
        "Column glucose is lower: 100% of patients are at or below 140, 44% before; the mean is 8.19"
    )
    assert words.number_actions("glucose", before, now) == [
        "Values are about 18.4 times smaller (mg/dL to mmol/L, as of glucose is a factor of 18.02): check the unit of column "
        "glucose, and convert it before patients are scored."
    ]
    assert words.describe_missing("glucose", 0.02, 0.41, absent=False) == (
        "Column glucose is missing in 41% of patients, 2% before."
    )
    assert "is not in the table any more" in words.describe_missing("glucose", 0.02, 1, absent=True)
    assert words.describe_unseen("ward", 0, 0.4, {"SURG": 12}) == (
        "Column ward has codes that training did not have in 40% of patients, 0% before: 'SURG' (12 patients)."
    )
    assert words.unseen_actions("ward", WARD.levels, {"SURG": 12}, "surgical") == [
        "'surgical' became rare at the same time: map 'SURG' of column ward to 'surgical' if they mean the same."
    ]
    wards = [LAYOUT.rows(patients([1.0] * 10, w)).sum(axis=0) for w in ([0] * 8 + [1] * 2, [1] * 10)]
    shares = [LAYOUT.categories(sums, 10, WARD) for sums in wards]
    assert words.describe_category("ward", *shares) == "Column ward is 'medical' in 0% of patients, 80% before."


def test_sentences_on_one_of_several_classes():
    assert words.describe_class("score", "benign", 0.2, 0.5) == "The probability of 'benign' is higher: mean 0.5, 0.2 before."
    assert words.describe_class("prevalence", "benign", 0.2, 0.5) == (
        "'benign' is the outcome of 50% of labelled patients, 20% before."
    )
    assert "is lower: -0.3, 0.01 before" in words.describe_class("calibration", "benign", 0.01, -0.3)
    assert "differs by 0.1 between patients with and without it" in words.describe_class("discrimination", "benign", 0.4, 0.1)


def test_the_time_of_a_change():
    assert words.describe_since(412, 1767225600.0, 1, 412, labelled=False) == (
        "Since patient 412 (2026-01-01), for 1 patient until the alarm at patient 412."
    )
    assert words.describe_since(1412, math.nan, 58, 1470, labelled=True) == (
        "Since labelled patient 1,412, for 58 labelled patients until the alarm at labelled patient 1,470."
    )


def test_the_figures_of_the_model_suffer_or_not():
    rng = generator(5, purpose="figures")
    risk = rng.uniform(0.02, 0.9, 400)
    right, wrong = (rng.random(400) < risk).astype(float), (rng.random(400) < 0.2).astype(float)
    before, worse, few = (
        outcome_figures(outcome_rows(risk[:n], y[:n], 0.3).sum(axis=0), 0.3) for y, n in ((right, 400), (wrong, 400), (wrong, 5))
    )
    sentence, verdict = words.describe_figures(before, worse)
    assert verdict == words.WORSE and "suffer (discrimination and calibration and net benefit)" in sentence
    assert "95% interval" in sentence and "(400 labelled patients since then)" in sentence
    assert words.describe_figures(before, before)[1] == words.NOT_WORSE
    assert words.describe_figures(before, few)[1] == words.UNKNOWN
    rare = outcome_figures(outcome_rows(np.full(40, 0.05), np.eye(40)[0], 0.3).sum(axis=0), 0.3)
    sentence, verdict = words.describe_figures(before, rare)
    assert verdict == words.NOT_WORSE and "AUROC" not in sentence
    assert "too few events for discrimination and net benefit" in sentence
    none = outcome_figures(np.zeros(132), 0.3)
    assert words.describe_figures(before, none) == (
        "There are no labels since then yet: it cannot be said whether the model's figures suffer.", words.UNKNOWN
    )
    assert words.describe_outcome("prevalence", PLACE, before, worse).startswith("'died' is the outcome of 18% (95%")
    assert words.describe_outcome("calibration", PLACE, before, worse).startswith("Predicted risks are too high: 4")


def test_actions_name_commands_that_can_be_copied():
    actions = words.model_actions(PLACE, "calibration", words.WORSE)
    assert "`rounds recalibrate 'runs/heart 1' --site va --table labelled.csv`" in actions[0]
    assert "`rounds run 'runs/heart 1'/experiment.toml`" in actions[1]
    assert words.model_actions(PLACE, "missing", words.UNKNOWN) == []
    assert "does not mend discrimination" in words.model_actions(PLACE, "discrimination", words.WORSE)[0]


def test_commands_at_a_hospital_name_its_folder():
    place = words.Place("runs/first", "va", "the risk of died", "died", folder="heart/sites/va")
    actions = words.model_actions(place, "calibration", "")
    assert "`rounds recalibrate runs/first --folder heart/sites/va --table labelled.csv`" in actions[0]
    assert "the operator of the consortium submits a new run" in actions[1]
