"""Runs of method 'card' on the four hospitals of heart: from sums, on pooled rows, fitted to outcomes, explained."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.runs.run_rows import RunRows

QUICK = {"explain.sketch": "none", "evaluation.every": 100}


def start(folder, **settings):
    return gr.run("heart", model="card", settings={**QUICK, **settings}, out=folder, progress=False)


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    return start(tmp_path_factory.mktemp("card") / "clear")


def test_a_run_has_its_card_its_shapes_and_three_more_exchanges(clear):
    card, shapes = clear.summary["card"], clear.summary["shapes"]
    assert len(card["terms"]) == 10 and card["route"] == "distilled" and len(card["sites"]) == 4
    assert card["exchanges"]["count"] == shapes["exchanges"]["fit"] + 3 == len(clear.rounds)
    assert clear.card.card.to_dict() == {k: card[k] for k in ("terms", "totals")}
    assert clear.summary.final["auroc"] > 0.87
    assert not clear.ledger.verify()


def test_pooled_rows_give_the_same_model(clear, tmp_path):
    settings = {**QUICK, "method.name": "pooled"}
    pooled = gr.run("heart", model="card", settings=settings, out=tmp_path / "pooled", progress=False)
    data = RunRows.read(clear).consortium.data.table
    np.testing.assert_allclose(pooled.model.predict(data).risk, clear.model.predict(data).risk, atol=1e-12)


@pytest.mark.slow
def test_the_direct_route_needs_no_additive_model(tmp_path):
    run = start(tmp_path / "direct", **{"method.card.route": "direct", "method.card.terms": 6})
    assert "shapes" not in run.summary and run.summary["card"]["route"] == "direct"
    assert run.summary["card"]["exchanges"]["bytes_up"] < 60_000
    assert run.summary.final["auroc"] > 0.85


def test_a_case_is_explained_by_exact_shapley_values_of_columns(clear):
    case = gr.explain_case(clear, 1)
    used = {t.column for t in clear.card.card.terms}
    found = {a.column: a.contribution for a in case.attributions}
    assert {name for name, value in found.items() if abs(value) > 1e-12} <= used
    assert case.base + sum(found.values()) == pytest.approx(case.score, abs=1e-9)
