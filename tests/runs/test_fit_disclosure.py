"""The privacy statement of fits from sums: exchanges, numbers sent and held, and histogram cells of one patient."""

from __future__ import annotations

from typing import Any

import pytest

import grandrounds as gr
from grandrounds.analysis.privacy.disclosures import list_disclosures
from grandrounds.capabilities.statistics.methods import exchange
from grandrounds.core.plan import Settings
from grandrounds.runs.evaluation import exact_privacy
from tests.store import finished
from tests.support import patients

EXCHANGES = {"count": 80, "numbers_sent": 1000, "numbers_held": 400, "ratio": 2.5, "bytes_up": 1, "bytes_down": 1}
CELLS = {"asked": 9000, "filled": 4000, "single": 1000, "share_single": 0.25}


def statement(name: str, facts: dict[str, Any], **options: Any) -> dict[str, Any]:
    values = {"data": {"name": "heart"}, "model": {"name": name}, "method": {name: options} if options else {}}
    return exact_privacy(Settings(gr.Experiment.parse(values).plan()), facts)


def test_trees_state_the_cells_of_one_patient():
    told = statement("trees", {"trees": {"exchanges": EXCHANGES, "cells": CELLS}})
    assert (
        "1,000 numbers in 80 exchanges" in told["statement"] and "2.50 numbers were sent for each" in told["statement"]
    )
    assert "Of the 4,000 histogram cells with patients, 1,000 (25.0%) held one patient" in told["statement"]
    assert "disclose more about single patients than any other" in told["statement"]
    assert told["cells"] == CELLS and told["epsilon"] is None
    assert "can be linked across columns by their gradient" in told["statement"] and "8 levels" not in told["statement"]
    rounded = statement("trees", {"trees": {"exchanges": EXCHANGES, "cells": CELLS}}, rounding="stochastic")
    assert (
        "rounded to 8 levels at random" in rounded["statement"] and "only against that attack" in rounded["statement"]
    )


def test_an_additive_model_names_its_private_version():
    told = statement("gam", {"shapes": {"exchanges": EXCHANGES}})
    assert "privacy.epsilon" in told["statement"] and "cells" not in told


@pytest.fixture(scope="module")
def run():
    values = {
        "data": {"label": "died", "site": "hospital"},
        "split": {"val": 0.2, "test": 0.2},
        "model": {"name": "trees"},
        "method": {"trees": {"rounds": 2, "depth": 2, "parallel": 2}},
        "explain": {"sketch": "none"},
    }
    return gr.load_run(finished(gr.Experiment.parse(values), table=patients([60, 50, 70])))


def test_a_run_of_trees_lists_them_among_disclosed_data(run):
    cells = run.summary["trees"]["cells"]
    assert run.summary["privacy"]["cells"] == cells and 0 < cells["single"] < cells["filled"] <= cells["asked"] * 2
    lines = list_disclosures(Settings(run.plan), run.summary)
    assert any(f"{cells['share_single']:.1%} of the filled cells hold one patient" in line for line in lines)


def test_trees_under_a_budget_are_refused_with_a_fix(tmp_path):
    values = {"data": {"name": "heart"}, "model": {"name": "trees"}, "privacy": {"epsilon": 2.0}}
    with pytest.raises(gr.BadInput, match="no DP accounting for method 'trees' yet.*model 'gam'"):
        gr.run(gr.Experiment.parse(values), out=tmp_path / "r")


COUNTS = {
    "gam.octaves": {"octaves", "places", "missing", "levels"},
    "gam.cells": {"cells"},
    "trees.level": {"rows"},
    "card.totals": {"rows", "events"},
}
"""Blocks that count patients by bin, level, histogram cell or total: in the clear a site refuses small ones (cells.smallest)."""


@pytest.mark.parametrize("name", ["gam", "trees", "card"])
def test_questions_name_the_blocks_that_count_patients(name, tmp_path, monkeypatch):
    seen = {}
    ask = exchange.ask_question

    def noted(question, *args, **more):
        seen[question.kind] = question
        return ask(question, *args, **more)

    monkeypatch.setattr(exchange, "ask_question", noted)
    options = {"trees": {"rounds": 1, "depth": 2, "parallel": 1}, "card": {"terms": 3}}.get(name, {})
    values = {
        "data": {"label": "died", "site": "hospital"},
        "split": {"val": 0.2, "test": 0.2},
        "model": {"name": name},
        "method": {name: options},
        "explain": {"sketch": "none"},
    }
    gr.run(gr.Experiment.parse(values), table=patients([90, 80, 100]), out=tmp_path / "r")
    asked = {kind: blocks for kind, blocks in COUNTS.items() if kind in seen}
    assert any(kind.startswith(f"{name}.") for kind in asked)
    assert {kind: set(seen[kind].cells) for kind in asked} == asked
