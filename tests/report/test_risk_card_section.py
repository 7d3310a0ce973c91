"""The risk card in the report: points, risks, nomogram, calibration by hospital, and its figure."""

from __future__ import annotations

import pytest

from grandrounds.report import figures
from grandrounds.report.catalogue import RunRecord, list_figures
from grandrounds.report.document import Charts
from grandrounds.report.findings import describe_findings
from grandrounds.report.risk_card import read_card
from grandrounds.report.sections.risk_card import risk_card_section
from grandrounds.report.sections.shapes import shapes_section
from tests.report import EVIL, summary
from tests.report.shapes import card, shapes

SITES = {
    "a": {"count": 40.0, "events": 9.0, "ece": 0.05, "calibration_slope": 0.9, "calibration_in_the_large": -0.2, "brier": 0.1},
    EVIL: {"count": 3.0, "events": 0.0, "ece": 0.3, "calibration_slope": None, "calibration_in_the_large": None, "brier": 0.2},
}


def test_the_section_has_points_risks_a_nomogram_and_calibration_of_each_hospital():
    html = "".join(risk_card_section(summary(data="heart", card=card(), per_site=SITES), Charts("")))
    assert "<td>age above 75 years</td><td>+1</td>" in html and "<td>8.4%</td><td>4.2%&nbsp;to&nbsp;54.2%</td><td>24</td>" in html
    assert html.count("<svg") == 1 and html.count("data-figure") == 1 and EVIL not in html
    assert "<td>a</td><td>40</td><td>9</td><td>0.050</td><td>-0.20</td><td>0.90</td><td>0.100</td>" in html
    assert "distilled from an additive model in 11 exchanges of sums" in html
    assert risk_card_section(summary(), Charts("")) == []


def test_a_card_without_test_rows_has_no_table_of_hospitals():
    html = "".join(risk_card_section(summary(data="heart", card=card()), Charts(None)))
    assert "Calibration by hospital" not in html and "<svg" in html, "the nomogram needs no script"


def test_the_figure_has_printed_risks_and_the_share_with_the_event():
    drawn = figures.risk_by_total(read_card({"card": card(), "data": "heart"}))
    risks, observed, patients = drawn["data"]
    assert risks["x"] == ["-1 or less", "0 to 1", "2", "3 to 4", "5 or more"]
    assert risks["y"] == pytest.approx([2, 8.4, 20, 45, 81]) and patients["y"] == [20, 24, 28, 32, 36]
    assert observed["y"][3] == pytest.approx(100 * 15 / 32)
    assert "risk-card" in list_figures(RunRecord([], summary(data="heart", card=card())))
    assert "risk-card" not in list_figures(RunRecord([], summary()))


def test_shapes_of_a_card_are_of_the_model_behind_it_and_the_finding_is_the_card():
    told = summary(data="heart", card=card(), shapes=shapes(), final={"count": 0.0})
    html = "".join(shapes_section(told, Charts(None)))
    assert "<h2>Shapes of the additive model behind the card</h2>" in html and "was distilled from this additive model" in html
    assert "The fit" not in html, "the section on the card has the cost"
    assert describe_findings(told) == [
        "The risk card has 5 lines; most points: pain: typical (+3), age above 60 years (+2), age at most 40 years (-1). Risks "
        "go from 2% at a total of -1 or less to 81% at 5 or more."
    ]
