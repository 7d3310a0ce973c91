"""SSE-AGG as printed: the recipe's settings are the paper's, and its weights follow from the recorded signals by eq. 4 to 8."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.cli import app
from grandrounds.recipes import load_recipe, recipe_departure


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Two rounds of the recipe with all four signals of eq. 8."""
    lambdas = "{ data = 0.4, agreement = 0.4, worst_site = 0.1, calibration = 0.1 }"
    changed = ["method.rounds=2", f"method.weigh.lambdas={lambdas}", "split.val=0.15"]
    return gr.run(load_recipe("sse-agg/printed").with_settings(changed), out=tmp_path_factory.mktemp("printed") / "run")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("split.sites", 5),  # sec. VII.A: K = 5 clients
        ("method.rounds", 50),  # T = 50 rounds
        ("split.alpha", 0.05),  # the smallest alpha of {0.05, 0.2, 1.0}
        ("reference.rows.rows", 200),  # m = 200 reference samples
        ("method.weigh.form", "inverse"),  # eq. 5
        ("method.weigh.lambdas.data", 0.5),  # lambda = 0.5
        ("method.weigh.lambdas.agreement", 0.5),
        ("explain.sketch", "permutation"),  # Algorithm 3
        ("explain.repeats", 1),  # one permutation of each feature (eq. 2)
        ("evaluation.calibrate", "temperature"),  # Algorithm 4
        ("method.stability", "none"),
    ],
)
def test_the_recipe_has_the_papers_settings(path, value):
    found = load_recipe("sse-agg/printed").plan()
    for key in path.split("."):
        found = found[key]
    assert found == value


def test_the_weights_follow_from_the_recorded_signals(printed):
    weigh = printed.plan["method"]["weigh"]
    for record in printed.rounds:
        signals, weights = record.decision.signals, record.decision.weights
        rows, distance, loss, ece = (
            np.array([signals[name][s] for s in weights]) for name in ("data_size", "disagreement", "val_loss", "ece")
        )

        def shares(values):
            return values / values.sum()

        by_hand = (
            0.4 * shares(rows)
            + 0.4 * shares(1 / (weigh["eps"] + distance))
            + 0.1 * shares(np.exp(weigh["beta"] * loss))
            + 0.1 * shares(np.exp(weigh["gamma"] * ece))
        )
        np.testing.assert_allclose(list(weights.values()), by_hand, rtol=1e-12)


def test_a_run_tells_drift_and_who_lost_weight_everywhere(printed):
    facts = {fact.label: fact for fact in printed.method_facts}
    assert {"training drift", "deployed divergence", "weight lost for explanations"} <= set(facts)
    drift = printed.summary.explanation["training"]["drift"]
    assert facts["training drift"].value.startswith(f"{drift:.3f}")
    screen = CliRunner().invoke(app, ["show", str(printed.folder)], terminal_width=400).output
    page = (printed.folder / "report.html").read_text()
    for fact in facts.values():
        assert str(fact) in screen and fact.label in page
    numbers = json.loads(CliRunner().invoke(app, ["show", str(printed.folder), "--json"]).output)["method_numbers"]["weights"]
    last = printed.rounds[-1].decision
    assert {s: n["weight"] for s, n in numbers.items()} == pytest.approx(dict(last.weights))
    rows = last.signals["data_size"]
    by_rows = {s: n / sum(rows.values()) for s, n in rows.items()}
    assert {s: n["by_rows"] for s, n in numbers.items()} == pytest.approx(by_rows)
    lost = [s for s, n in numbers.items() if n["weight"] < n["by_rows"]]
    assert lost and lost[0] in facts["weight lost for explanations"].value


def test_the_default_says_where_it_departs_and_the_printed_recipe_departs_nowhere(printed):
    assert recipe_departure("sse-agg") and not recipe_departure("sse-agg/printed")
    assert "departs from the paper" not in {fact.label for fact in printed.method_facts}
