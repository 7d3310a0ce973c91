"""Sites that join late, leave, and come back: who is asked, what is remembered of them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.data.table import Table
from tests.support import patients, refused

BASE = {
    "data": {"label": "died", "site": "hospital"},
    "reference": {"root": {"rows": 30}},
    "method": {"name": "fedxchain", "rounds": 5},
    "train": {"steps": 4, "batch": 16},
    "explain": {"sketch": "none"},
}


@pytest.fixture
def table() -> Table:
    return patients([60, 48, 72, 54])


def run(table: Table, out, *, away, **method) -> gr.Run:
    plan = {**BASE, "engine": {"absences": away}, "method": {**BASE["method"], **method}}
    return gr.run(gr.Experiment.parse(plan), table=table, out=out)


def test_a_site_is_asked_in_the_rounds_it_is_there(table, tmp_path):
    done = run(table, tmp_path / "r", away={"b": [1, 2], "d": [[3, 3], [5, 9]]})
    asked = [set(r["decision"]["asked"]) for r in done.rounds]
    assert asked == [{"a", "c", "d"}, {"a", "c", "d"}, {"a", "b", "c"}, {"a", "b", "c", "d"}, {"a", "b", "c"}]
    assert all(not r["decision"]["missing"] for r in done.rounds)
    assert all(np.isclose(sum(r["decision"]["weights"].values()), 1) for r in done.rounds)


def test_a_site_that_comes_back_is_trusted_as_it_was(table, tmp_path):
    """Its accuracies of rounds 1, 2 and 4 are the last three."""
    done = run(table, tmp_path / "r", away={"d": [3, 3]})
    decisions = [r["decision"] for r in done.rounds]
    windows = [decisions[k]["signals"]["accuracy"]["d"] for k in (0, 1, 3)]
    even = 1 - min(np.std(windows) / 0.5, 1)
    steady = decisions[3]["signals"]["steadiness"]["d"]
    assert np.isclose(decisions[3]["signals"]["consistency"]["d"], (even + steady) / 2)


def test_of_who_joins_late_nothing_is_known_before(table, tmp_path):
    """Not even how its rows are spread: the first round is the same whatever they are."""
    other = Table.from_mapping(dict(table.columns), source=table.source)
    other.columns["age"] = np.where(np.asarray(table.columns["hospital"]) == "b", 1000.0, table.columns["age"])
    plan = gr.Experiment.parse({**BASE, "reference": {}, "engine": {"absences": {"b": [1, 1]}}})
    here, there = (gr.run(plan, table=t, out=tmp_path / name) for name, t in (("here", table), ("there", other)))
    first, same = (r.rounds[0]["decision"] for r in (here, there))
    assert first["signals"] == same["signals"] and first["reasons"] == same["reasons"]
    assert here.rounds[1]["decision"]["signals"] != there.rounds[1]["decision"]["signals"]


def test_under_masks_three_stay(table, tmp_path):
    plan = {**BASE, "engine": {"absences": {"a": [2, 3], "b": [3, 3]}}, "privacy": {"secure": True}}
    with refused("bad-absences", match=r"leaves 2 sites in round 3"):
        gr.run(gr.Experiment.parse(plan), table=table, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("away", "method", "said"),
    [
        ({"x": [1, 2]}, {}, r"engine\.absences"),
        ({"b": [3, 2]}, {}, r"engine\.absences"),
        ({s: [2, 2] for s in "abcd"}, {}, r"engine\.absences"),
        ({s: [1, 1] for s in "abcd"}, {}, r"engine\.absences"),
        ({"b": [1, 2]}, {"name": "local"}, "'local'"),
    ],
)
def test_what_cannot_be_is_refused(table, tmp_path, away, method, said):
    with pytest.raises(BadInput, match=said):
        run(table, tmp_path / "r", away=away, **method)
