"""Figures that compare methods."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.report import figures
from tests.report.figures import trace
from tests.support import refused


def test_an_arm_keeps_its_colour_where_others_have_no_point():
    arms = ["a", "b", "c"]
    points = [{"label": "c", "drift": 0.1, "accuracy": 0.8}, {"label": "b", "drift": 0.2, "accuracy": 0.9}]
    drawn = figures.pareto(points, arms=arms)["data"][1:]
    assert [t["marker"]["line"]["color"] for t in drawn] == [
        figures.comparison.arm_colour(2),
        figures.comparison.arm_colour(1),
    ]


POINTS = [("A", 0.2, 0.8), ("B", 0.1, 0.7), ("C", 0.3, 0.79), ("D", 0.2, 0.75), ("E", 0.1, 0.7)]


def test_the_front_is_made_of_arms_that_none_beats():
    figure = figures.pareto([{"label": n, "drift": x, "accuracy": (y, y - 0.1, y + 0.2)} for n, x, y in POINTS])
    front = {t["name"].removesuffix(" (Pareto-optimal)") for t in figure["data"][1:] if t["name"].endswith("optimal)")}
    assert front == {"A", "B", "E"}, "less drift, more accuracy; twins stand side by side"
    assert figure["data"][0]["x"] == [0.1, 0.1, 0.2]
    bars = trace(figure, "C")["error_y"]
    assert (bars["array"], bars["arrayminus"]) == (pytest.approx([0.2]), pytest.approx([0.1]))
    turned = figures.pareto(
        [{"label": n, "jaccard": x, "log_loss": y} for n, x, y in POINTS], x="jaccard", y="log_loss"
    )
    front = {t["name"][0] for t in turned["data"][1:] if t["name"].endswith("optimal)")}
    assert front == {"B", "D", "C", "E"}, "more overlap, less loss"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_whoever_is_off_the_front_is_beaten_by_someone_on_it(values):
    points = [{"label": str(i), "drift": x, "accuracy": y} for i, (x, y) in enumerate(values)]
    names = [t["name"] for t in figures.pareto(points)["data"][1:]]
    front = [v for v, name in zip(values, names, strict=True) if name.endswith("(Pareto-optimal)")]
    beaten = [v for v, name in zip(values, names, strict=True) if not name.endswith("(Pareto-optimal)")]
    assert front
    assert all(any(x <= v[0] and y >= v[1] and (x, y) != v for x, y in front) for v in beaten)
    assert not any(x <= v[0] and y >= v[1] and (x, y) != v for v in front for x, y in values)


def test_the_radar_runs_from_the_worst_to_the_best():
    values = {
        "fedavg": {"accuracy": 0.8, "log_loss": 0.5, "training_drift": 1.2},
        "scaffold": {"accuracy": 0.9, "log_loss": 0.3, "training_drift": 0.2},
        "local": {"accuracy": 0.6, "log_loss": 0.4, "training_drift": None},
    }
    figure = figures.radar(["accuracy", "log_loss", "training_drift"], values)
    r = {t["name"]: t["r"] for t in figure["data"]}
    assert r["fedavg"] == pytest.approx([2 / 3, 0, 0, 2 / 3]), "less loss and less drift are better"
    assert r["scaffold"] == [1, 1, 1, 1]
    assert r["local"] == [0, pytest.approx(0.5), None, 0]
    assert trace(figure, "local")["customdata"][:3] == ["0.6000", "0.4000", "–"]
    same = figures.radar(["a", "b", "c"], {"x": dict.fromkeys("abc", 3.0), "y": dict.fromkeys("abc", 3.0)})
    assert same["data"][0]["r"] == [1, 1, 1, 1]
    with refused("too-few-axes", match="three axes or more, not 2"):
        figures.radar(["a", "b"], {})


def test_intervals_have_a_panel_for_each_metric():
    rows = [
        {"arm": "x", "metric": "auroc", "mean": 0.9, "low": 0.8, "high": 0.95, "n": 5},
        {"arm": "y", "metric": "auroc", "mean": None, "low": None, "high": None, "n": 5},
        {"arm": "y", "metric": "ece", "mean": 0.1, "low": None, "high": None, "n": 1},
    ]
    auroc, ece = figures.intervals(rows)["data"]
    assert (auroc["y"], auroc["x"]) == (["x"], [0.9]), "an undefined mean has no mark"
    assert auroc["error_x"]["array"] == pytest.approx([0.05])
    assert auroc["error_x"]["arrayminus"] == pytest.approx([0.1])
    assert (ece["y"], ece["error_x"]["array"], ece["xaxis"]) == (["y"], [0], "x2")


def test_counts_of_harm_are_better_when_lower_and_stand_at_their_own_arm():
    """Before: "harmed sites (higher is better)" on an axis from -1 to 1, and the only mark stood at another arm's line."""
    rows = [{"arm": arm, "metric": "auroc", "mean": 0.9, "low": None, "high": None, "n": 1} for arm in ("x", "y", "z")]
    rows += [{"arm": "y", "metric": "harmed_sites", "mean": 0.0, "low": None, "high": None, "n": 1}]
    rows += [{"arm": "y", "metric": "my_own", "mean": 0.0, "low": None, "high": None, "n": 1}]
    shape = figures.intervals(rows)["layout"]
    titles = [note["text"] for note in shape["annotations"]]
    assert "lower is better" in titles[1] and "better" not in titles[2], "nobody knows the direction of a user's own metric"
    assert shape["xaxis2"]["rangemode"] == "nonnegative" and "rangemode" not in shape["xaxis3"]
    assert [shape[f"yaxis{k}"]["range"] for k in ("", "2")] == [[2.5, -0.5]] * 2, "all panels have the lines of the first"


def test_an_arms_curve_is_the_mean_of_its_runs_with_students_interval():
    runs = [{1: 0.5, 2: 0.6, 3: 0.9}, {1: 0.7, 2: None}, {1: 0.9, 2: 0.8}]
    three = [{1: 0.4, 2: 0.6}, {1: 0.5, 2: 0.7}, {1: 0.6, 2: 0.8}]
    band, line = figures.arm_curves({"x": three}, "accuracy")["data"]
    assert (line["x"], line["y"]) == ([1, 2], pytest.approx([0.5, 0.7]))
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert band["y"] == pytest.approx([0.5 + half, 0.7 + half, 0.7 - half, 0.5 - half])
    wild = figures.arm_curves({"x": [{1: 0.2, 2: 0.1}, {1: 0.9, 2: 1.0}, {1: 1.0, 2: 1.0}]}, "accuracy")["data"][0]
    assert max(wild["y"]) == 1.0 and min(wild["y"]) == 0.0, "an interval stays within what accuracy can be"
    assert len(figures.arm_curves({"x": three[:2]}, "accuracy")["data"]) == 1, "two runs have no interval"
    assert figures.arm_curves({"x": runs}, "accuracy")["data"][0]["x"] == [1], "rounds that every run has"
    with refused("nothing-to-draw", match="no arm has accuracy by round"):
        figures.arm_curves({"x": []}, "accuracy")


def test_a_line_over_a_setting_has_its_intervals_and_leaves_out_what_is_undefined():
    told = {"fedavg": {1.0: (0.2, 0.1, 0.4), 0.05: (0.5, math.nan, math.nan)}, "other": {1.0: (math.nan, 0, 1)}}
    figure = figures.setting_curves(told, "training_drift", x="alpha", title="digits")
    line, empty = figure["data"]
    assert (line["x"], line["y"]) == ([0.05, 1.0], [0.5, 0.2]) and empty["x"] == []
    assert line["error_y"]["array"] == pytest.approx([0, 0.2])
    assert line["error_y"]["arrayminus"] == pytest.approx([0, 0.1])
    assert figure["layout"]["xaxis"]["ticktext"] == ["0.05", "1"] and figure.title == "Training drift: digits"
    assert "lower is better" in figure["layout"]["yaxis"]["title"]["text"]
    with refused("nothing-to-draw"):
        figures.setting_curves({}, "accuracy", x="alpha")


def test_a_trade_off_is_a_line_through_its_strengths():
    told = {
        "anchor": [{"label": "1", "drift": 0.2, "accuracy": 0.9}, {"label": "<b>3", "drift": 0.1, "accuracy": 0.8}],
        "none": [{"label": "", "drift": 0.3, "accuracy": 0.95}],
    }
    figure = figures.trade_off(told)
    figure.plotly()
    line, alone = figure["data"]
    assert (line["x"], line["y"], line["text"]) == ([0.2, 0.1], [0.9, 0.8], ["1", "&lt;b&gt;3"])
    assert (alone["x"], alone["name"]) == ([0.3], "none")
