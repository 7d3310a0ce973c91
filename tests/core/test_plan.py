"""Settings of a plan: read by attribute, and under the names that they had when the plan was written."""

from __future__ import annotations

import json
import tarfile
import warnings
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.core.plan import RENAMED, RenamedSetting, Settings, rename_settings, restore_names
from grandrounds.core.plan_types import Plan
from tests.support import refused

RUNS = Path(__file__).parents[1] / "fixtures" / "runs.tar.xz"
BASE = {"data": {"name": "breast-cancer"}}


def nested(path: str, value: object) -> dict:
    """Settings with one value at a dotted path."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def look_up(values, path: str):
    for name in path.split("."):
        values = values[name]
    return values


@pytest.fixture(scope="module")
def stored() -> list[dict]:
    """Plans as they were written before settings were renamed."""
    with tarfile.open(RUNS) as archive:
        names = [n for n in archive.getnames() if n.endswith("checkpoint/plan.json")]
        return [json.load(archive.extractfile(n)) for n in names]


@pytest.mark.parametrize("old", RENAMED)
def test_an_earlier_name_is_taken_with_a_warning(old):
    section, _, _ = old.rpartition(".")
    default = look_up(gr.Experiment.parse(BASE).model_dump(mode="json"), f"{section}.{RENAMED[old]}")
    others = {"engine.away": {"b": [[1, 2]]}, "evaluation.local": "own", "evaluation.reasons": "rows"}
    value = others.get(old, 0.25 if default is None else default)
    with pytest.warns(RenamedSetting, match=f"{section}.{RENAMED[old]}"):
        experiment = gr.Experiment.parse({**BASE, **nested(old, value)})
    assert look_up(experiment.model_dump(mode="json"), f"{section}.{RENAMED[old]}") == value


def test_a_setting_under_both_names_is_refused():
    with refused("bad-setting", match="privacy.rate"):
        gr.Experiment.parse({**BASE, "privacy": {"rate": 0.1, "sampling_rate": 0.2}})


def test_a_stored_plan_is_read_under_the_names_it_was_written_with(stored):
    assert len(stored) == 8
    for values in stored:
        assert "range" in values["privacy"] and "secure_range" not in values["privacy"]
        plan = Plan(values)
        assert plan.privacy.secure_range == values["privacy"]["range"]
        assert plan.method.veil.census_share == values["method"]["veil"]["asking"]
        assert plan.engine.absences.plain() == values["engine"]["away"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gr.Experiment.check_plan(values, where="plan.json")


def test_names_are_translated_there_and_back(stored):
    for values in stored:
        before = json.dumps(values)
        today = rename_settings(values, warn=False)
        assert "secure_range" in today["privacy"] and "range" not in today["privacy"]
        assert json.dumps(restore_names(today, values)) == before
        assert json.dumps(values) == before, "the stored plan is not changed"
        assert restore_names(today, today) == today


def test_a_setting_that_no_version_had_is_named():
    with refused("unknown-setting", match="no 'rouns'"):
        Settings({"rounds": 3}).rouns  # noqa: B018
    assert Settings({"rounds": 3}).get("rouns", 7) == 7
    assert Settings({"range": 3}).get("secure_range") == 3
