"""The printable risk card: points by values of a column, the sheet, names from data."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from grandrounds.core.errors import BadInput
from grandrounds.models.risk_card import Card, RiskRange, Term
from grandrounds.report.figures.card import card_calibration, card_decision_curve, card_sheet, nomogram, risk_card_page
from grandrounds.report.risk_card import (
    Band,
    CalibrationPoint,
    CardPerformance,
    CardRecord,
    list_bands,
    read_card,
    risk_text,
    total_text,
)

CARD = Card(
    (
        Term("age above 54", "age", "above", 54.0, 2),
        Term("age above 70", "age", "above", 70.0, 3),
        Term("age at most 40", "age", "at most", 40.0, -1),
        Term("<b>pain</b> = severe", "<b>pain</b>", "level", "severe", 4),
        Term("<b>pain</b> missing", "<b>pain</b>", "missing", None, 1),
    ),
    (
        RiskRange(-1, 1, 40, 1, 0.025, 0.0044, 0.129),
        RiskRange(2, 2, 30, 3, 0.1, 0.035, 0.256),
        RiskRange(3, 10, 20, 9, 0.45, 0.258, 0.658),
    ),
)
RECORD = CardRecord(CARD, "died = yes", "wards.csv", "distilled", 90, 4, {"count": 11.0}, ("A note.",))
PERFORMANCE = CardPerformance(
    "Ward A",
    30,
    9,
    {"auroc": 0.8, "auroc_low": 0.7, "auroc_high": 0.9},
    (CalibrationPoint(0.025, 0.1, 0.02, 0.4, 10), CalibrationPoint(0.45, 0.4, 0.2, 0.6, 20)),
    {"thresholds": [0.1, 0.2, 0.3], "model": [0.2, 0.1, 0.0], "treat_all": [0.22, 0.12, None]},
)


def summary() -> dict[str, object]:
    facts = {
        "route": "distilled",
        "rows": 90,
        "sites": ["a", "b", "c", "d"],
        "exchanges": {"count": 11},
        "notes": ["A note."],
    }
    event = {"class": "yes", "other": "no", "label": "died", "share": 0.1, "by": "model"}
    return {"data": "wards.csv", "event": event, "card": {**CARD.to_dict(), **facts}}


def test_bands_list_the_points_of_every_value_of_a_column():
    age, pain = list_bands(CARD)
    assert age.bands == (Band("at most 40", -1), Band("40 to 54", 0), Band("54 to 70", 2), Band("above 70", 5))
    assert pain.bands == (Band("severe", 4), Band("other", 0), Band("missing", 1))


def test_totals_read_as_ranges():
    assert [total_text(t, CARD) for t in CARD.totals] == ["1 or less", "2", "3 or more"]


def test_a_risk_that_its_patients_alone_do_not_show_is_explained_in_the_table():
    """0 of 14 patients had the event at a total with a printed risk of 24.7%: the line through all totals gives it."""
    drawn = RiskRange(2, 2, 14, 0, 0.247, 0.1, 0.48)
    assert risk_text(drawn) == "24.7% *" and "*" not in risk_text(CARD.totals[1])
    chance = RiskRange(9, 9, 23, 23, 0.985, 0.832, 0.999)
    assert "*" not in risk_text(chance), "23 of 23 is what a risk of 98.5% gives in most cases"
    card = replace(RECORD, card=replace(CARD, totals=(CARD.totals[0], drawn, CARD.totals[2])))
    assert "0 of 14 at 2" in card.remarks[0] and card.remarks[1:] == ("A note.",)
    assert RECORD.remarks == RECORD.notes


def test_the_record_is_that_of_the_summary():
    assert read_card(summary()) == RECORD
    assert read_card({"data": "x"}) is None
    assert RECORD.to_dict()["columns"][0]["column"] == "age"
    broken = summary()
    broken["card"] = {**CARD.to_dict(), "route": "direct"}
    with pytest.raises(BadInput, match="damaged"):
        read_card(broken)


def test_the_sheet_is_one_drawing_with_every_line_and_risk_and_escaped_names():
    root = ElementTree.fromstring(card_sheet(RECORD, PERFORMANCE))
    words = [e.text for e in root.iter() if e.text]
    for needed in (
        "Risk card: died = yes",
        "age above 54",
        "+2",
        "-1",
        "2.5%",
        "0.44% to 12.9%",
        "3 or more",
        "A note.",
    ):
        assert needed in words
    assert "<b>pain</b> = severe" in words  # as text: parsed XML has no element b
    assert PERFORMANCE.line == "Ward A: 30 test patients, 9 with the event, AUROC 0.800 (95% CI 0.700 to 0.900)."
    assert PERFORMANCE.line in words


def test_the_page_fetches_nothing_and_every_drawing_is_valid_xml():
    page = risk_card_page(RECORD, None)
    assert "default-src 'none'" in page and "<script" not in page and "<b>pain" not in page
    for drawing in (
        nomogram(CARD),
        card_calibration(PERFORMANCE.calibration),
        card_decision_curve(PERFORMANCE.decision),
    ):
        assert ElementTree.fromstring(drawing).tag.endswith("svg")
