"""A column that assigns rows to training, validation and test (data.part): in a simulation and at a hospital alike."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.runtime.run import build_stack
from grandrounds.core.plan_types import Plan
from grandrounds.data.table import Table
from grandrounds.experiment.experiment import Experiment
from grandrounds.runs.federation import assemble
from tests.support import refused


def table(parts: tuple[str, ...] = ("train", "test")) -> Table:
    """Two sites of 30 rows; parts in turn."""
    rng = np.random.default_rng(0)
    words = np.array([parts[i % len(parts)] for i in range(60)], object)
    return Table(
        {
            "site": np.repeat(np.array(["a", "b"], object), 30),
            "age": rng.normal(60, 10, 60),
            "fold": words,
            "died": np.array(["no", "yes"], object)[rng.integers(0, 2, 60)],
        },
        "patients.csv",
    )


def plan(**split) -> Plan:
    data = {"table": "patients.csv", "label": "died", "site": "site", "part": "fold"}
    return Plan(Experiment.parse({"data": data, "split": {"min_rows": 1, **split}}).plan())


def test_rows_go_where_the_column_says_and_it_is_no_feature():
    stack = assemble(plan(val=0.0), table()).stack
    assert [r.train.tolist() for r in stack.rows] == [list(range(0, 30, 2)), list(range(30, 60, 2))]
    assert [r.test.tolist() for r in stack.rows] == [list(range(1, 30, 2)), list(range(31, 60, 2))]
    assert [c.name for c in stack.data.schema.features] == ["age"]


def test_validation_rows_come_from_training_rows_unless_the_column_names_them():
    drawn = assemble(plan(val=0.3), table()).stack.rows[0]
    assert 0 < len(drawn.val) < 15 and not set(drawn.val) & set(range(1, 30, 2))
    stated = assemble(plan(val=0.3), table(("train", "val", "test"))).stack.rows[0]
    assert stated.val.tolist() == list(range(1, 30, 3))
    assert stated.train.tolist() == list(range(0, 30, 3))


def test_a_hospital_finds_the_split_of_the_simulation():
    rows = table()
    simulated = assemble(plan(val=0.2), rows).stack.rows[1]
    values = plan(val=0.2).plain()
    values["data"]["kinds"] = {"age": "numeric"}
    own = build_stack(Plan(values), rows.take(slice(30, 60)), name="b", role="train", task="").rows[0]
    assert (own.train + 30).tolist() == simulated.train.tolist()
    assert (own.val + 30).tolist() == simulated.val.tolist()
    assert (own.test + 30).tolist() == simulated.test.tolist()


def test_without_official_rows_the_split_is_drawn():
    drawn = assemble(plan(official=False, test=0.2, val=0.0), table()).stack.rows[0]
    assert 1 <= len(drawn.test) < 15


@pytest.mark.parametrize("word", ["holdout", None])
def test_another_word_is_named_with_its_row(word):
    rows = table()
    words = rows.column("fold").copy()
    words[3] = word
    with refused("unknown-part", match=rf"'fold' of patients.csv holds '{word}' in row 5 .* train, val, test"):
        assemble(plan(), rows.with_columns({"fold": words}))


def test_a_column_that_is_not_there_is_named():
    with refused("unknown-column", match="'fold' not found"):
        assemble(plan(), table().without(["fold"]))
