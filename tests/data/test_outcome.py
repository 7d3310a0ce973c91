"""Outcomes that are not classes: the task that a label tells, faults with their number of rows, and warnings."""

from __future__ import annotations

import json

import numpy as np
import pytest

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL
from grandrounds.core.plan_types import DataSettings
from grandrounds.data.dataset import build_dataset
from grandrounds.data.encoding import Encoding, EncodingRules, agree_outcome, make_encoding
from grandrounds.data.kinds import encoding_from
from grandrounds.data.loading import apply_schema
from grandrounds.data.outcome import Outcome, group_outcome, read_durations, settle_task
from grandrounds.data.schema import Schema, infer_schema
from grandrounds.data.summary import Moments, Summary
from grandrounds.data.table import Table
from grandrounds.data.warnings import survival_warnings
from grandrounds.experiment.experiment import Experiment

N = 40


def table(**columns) -> Table:
    x = {"age": np.arange(N) % 13 + 0.5, "grade": np.arange(N) % 3}
    return Table.from_mapping({**x, **columns}, source="patients.csv")


def dataset(task: str, duration: str | None = None, **columns):
    rows = table(**columns)
    schema = infer_schema(rows, label="y", task=task, duration=duration, patient="patient" if "patient" in columns else None)
    return build_dataset(rows, schema, name="patients.csv")


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["yes", "no"] * 20, CLASSIFICATION),
        ([0, 1] * 20, CLASSIFICATION),
        ([0.5, 1.5] * 20, CLASSIFICATION),
        (list(range(10)) * 4, CLASSIFICATION),
        (np.arange(N) / 3, REGRESSION),
    ],
)
def test_the_label_tells_the_task_where_it_is_certain(y, task):
    assert settle_task(table(y=y), "y") == task


def test_whole_numbers_are_asked_for():
    with pytest.raises(BadInput, match="--task regression, --task count or --task classification") as error:
        settle_task(table(y=np.arange(N)), "y")
    assert error.value.code == "label-not-classes"
    for task in (REGRESSION, COUNT, CLASSIFICATION):
        assert settle_task(table(y=np.arange(N)), "y", task=task) == task


def test_a_follow_up_time_makes_survival_and_survival_needs_one():
    assert settle_task(table(y=[0, 1] * 20), "y", duration="days") == SURVIVAL
    with pytest.raises(BadInput, match="--time COLUMN") as error:
        settle_task(table(y=[0, 1] * 20), "y", task=SURVIVAL)
    assert error.value.code == "no-duration"
    with pytest.raises(BadInput, match="only survival uses"):
        settle_task(table(y=[0, 1] * 20), "y", task=COUNT, duration="days")


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        (["2020-01-31"] * N, "duration-is-date", "dates in 40 rows"),
        (["31.01.2020"] * N, "duration-is-date", "dates in 40 rows"),
        (["long"] * N, "duration-not-number", "'long'"),
        ([None, None, *range(N - 2)], "missing-durations", "missing in 2 rows, first row 2"),
        ([3, -1, -2, *range(N - 3)], "negative-durations", "negative in 2 rows, first row 3"),
        ([np.inf, *range(N - 1)], "infinite-value", "in 1 row"),
    ],
)
def test_bad_follow_up_times_are_counted(values, code, words):
    with pytest.raises(BadInput, match=words) as error:
        read_durations(table(days=values), "days")
    assert error.value.code == code


@pytest.mark.parametrize(
    ("task", "y", "code"),
    [
        (REGRESSION, ["a", "b"] * 20, "label-not-numbers"),
        (REGRESSION, [2.0] * N, "constant-label"),
        (REGRESSION, [np.inf, *range(N - 1)], "infinite-value"),
        (COUNT, [-1, *range(N - 1)], "label-not-counts"),
        (COUNT, [0.5, *range(N - 1)], "label-not-counts"),
        (SURVIVAL, ["a", "b", "c", "d"] * 10, "label-not-events"),
    ],
)
def test_labels_that_do_not_fit_their_task_are_refused(task, y, code):
    with pytest.raises(BadInput) as error:
        dataset(task, "days" if task == SURVIVAL else None, y=y, **({"days": np.arange(N)} if task == SURVIVAL else {}))
    assert error.value.code == code


def test_rows_without_event_or_time_can_be_dropped():
    rows = table(y=[None, *[0, 1] * 19, 1], days=[1.0, None, *range(N - 2)])
    schema = infer_schema(rows, label="y", task=SURVIVAL, duration="days")
    data = build_dataset(rows, schema, name="x", drop_unlabelled=True)
    assert len(data) == len(data.duration) == N - 2
    assert [c.kind for c in schema.columns if c.name == "days"] == ["drop"]


def test_survival_data_are_warned_of_by_counts():
    patient = [f"p{i // 2}" for i in range(N)]
    data = dataset(SURVIVAL, "days", y=[0, 1] * 20, days=[0, 0, *range(1, N - 1)], patient=patient)
    zero, mixed = survival_warnings(data)
    assert zero.startswith("2 rows have a follow-up time 'days' of 0")
    assert mixed.startswith("20 patients have rows with different values of 'y'")


def test_units_of_training_are_those_of_all_rows():
    y = np.random.default_rng(0).gamma(2.0, 5.0, N)
    data = dataset(REGRESSION, y=y)
    halves = [Summary.from_payload(Summary.from_dataset(data.take(part)).to_payload()) for part in (slice(7), slice(7, N))]
    total = Summary.merge(halves)
    outcome = agree_outcome(total, REGRESSION)
    assert outcome is not None and (outcome.centre, outcome.scale) == pytest.approx((y.mean(), y.std()))
    np.testing.assert_allclose(outcome.predict(outcome.standardise(y)), y)
    counts = dataset(COUNT, y=np.arange(N) % 7)
    expected = agree_outcome(Summary.from_dataset(counts), COUNT)
    assert expected is not None and expected.scale == pytest.approx((np.arange(N) % 7).mean())
    np.testing.assert_allclose(expected.predict(np.log(3 / expected.scale)), 3.0)


def test_an_encoding_keeps_its_outcome_and_one_of_classes_is_as_before():
    data = dataset(REGRESSION, y=np.arange(N) / 3)
    total, rules = Summary.from_dataset(data), EncodingRules(task=REGRESSION)
    low, high = np.full(2, -1e9), np.full(2, 1e9)
    moments = Moments.from_dataset(data, low, high)
    encoding = make_encoding(total, moments, numeric=data.numeric_names, categorical=(), rules=rules)
    again = encoding_from(json.loads(json.dumps(encoding.to_dict())))
    assert isinstance(again, Encoding) and again.outcome == encoding.outcome and again.task == REGRESSION
    np.testing.assert_array_equal(again.labels(data), np.arange(N) / 3)
    classes = dataset(CLASSIFICATION, y=["a", "b"] * 20)
    plain = make_encoding(
        Summary.from_dataset(classes), moments, numeric=data.numeric_names, categorical=(), rules=EncodingRules()
    )
    assert "outcome" not in plain.to_dict() and "outcome" not in Summary.from_dataset(classes).to_payload()
    assert "task" not in classes.schema.to_dict() and Schema.from_dict(data.schema.to_dict()) == data.schema


def test_a_damaged_outcome_is_refused():
    with pytest.raises(ValueError, match="damaged"):
        Outcome.from_dict({"task": "regression", "centre": 0, "scale": 0})


def test_label_skew_of_numbers_is_by_fifths():
    groups = group_outcome(np.arange(100.0))
    assert np.bincount(groups).tolist() == [20] * 5


def test_a_hospital_reads_the_agreed_task():
    whole = Experiment.parse({"data": {"table": "x.csv", "label": "y"}}).model_dump(mode="json")["data"]
    settings = {**whole, "kinds": {"age": "numeric"}}
    rows = table(y=np.arange(N), days=np.arange(N))
    with pytest.raises(BadInput) as error:
        apply_schema(DataSettings(settings), rows)
    assert error.value.code == "label-not-classes"
    assert apply_schema(DataSettings({**settings, "task": "count"}), rows).schema.task == COUNT
    events = table(y=[0, 1] * 20, days=np.arange(N))
    data = apply_schema(DataSettings({**settings, "duration": "days"}), events)
    assert data.schema.task == SURVIVAL and data.duration is not None
