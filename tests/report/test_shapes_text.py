"""Shapes and trees on a terminal."""

from __future__ import annotations

from grandrounds.report.risk_card import read_card
from grandrounds.report.shapes import read_shapes
from grandrounds.report.shapes_text import card_text, model_texts, shapes_text, trees_text
from grandrounds.report.trees import read_trees
from tests.report.shapes import card, shapes, trees


def test_the_table_has_effects_at_percentiles_and_of_levels():
    lines = shapes_text(read_shapes({"shapes": shapes()})).splitlines()
    assert lines[0] == "Effects on the log-odds, the most important columns first"
    assert lines[1].split() == ["column", "at", "10%", "at", "the", "median", "at", "90%", "missing", "edf"]
    assert lines[3].split() == ["age", "(years)", "50:", "-0.50", "60:", "+0.00", "70:", "+0.70", "+0.30", "2.4"]
    assert "pain: typical +0.20 (60), other +0.10 (10), none -0.40 (50) patients; edf 1.8" in lines
    assert "not used: height" in lines and "constraints: age may only rise" in lines
    assert "exchanges: 8" in lines and "note: Age is sparse above 75." in lines
    assert lines[-1].startswith("disclosure: For each value in the patients' rows, hospitals sent 0.20 sums")


def test_lines_of_levels_fit_the_terminal_and_control_characters_are_shown():
    columns = [{**shapes()["columns"][0], "name": "a\x1b[31m", "values": [f"level {k} \x1b" for k in range(3)]}]
    text = shapes_text(read_shapes({"shapes": shapes(*columns)}), width=60)
    assert "\x1b" not in text
    assert all(len(line) <= 60 for line in text.splitlines() if line.startswith(("a", "    ")))


def test_trees_are_facts():
    lines = trees_text(read_trees({"trees": trees()})).splitlines()
    assert "trees: 160 of depth 4 at most" in lines and "rounds of boosting: 20, 8 trees at once" in lines
    assert "histogram cells with one patient: 22.0% (220 of 1,000)" in lines


def test_a_risk_card_is_points_and_risks():
    lines = card_text(read_card({"card": card(), "data": "heart", "event": {"label": "died", "class": "yes"}})).splitlines()
    assert lines[0] == "Risk card: died = yes"
    assert [line.split() for line in lines if "above 75" in line] == [["age", "above", "75", "years", "+1"]]
    row = next(line for line in lines if line.startswith("3 to 4"))
    assert row.split() == ["3", "to", "4", "45%", "22.5%", "to", "72.5%", "32", "15"]


def test_a_card_comes_before_the_shapes_behind_it_and_costs_are_told_once():
    told = model_texts({"card": card(), "shapes": shapes(), "data": "heart"})
    assert [text.splitlines()[0] for text in told] == [
        "Risk card",
        "Effects on the log-odds in the additive model behind the card, the most important columns first",
    ]
    assert [text.count("disclosure:") for text in told] == [1, 0]
    assert model_texts({"estimates": {}}) == []
