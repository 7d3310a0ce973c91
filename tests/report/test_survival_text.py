"""Survival curves as text, CSV and LaTeX."""

from __future__ import annotations

from dataclasses import replace

from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier
from grandrounds.report.survival_text import curve_rows, survival_csv, survival_latex, survival_text
from tests.report.survival import BY_DAY, LOG_RANK, ON_BINS

RESULT = KaplanMeier(replace(ON_BINS, group="all"), (BY_DAY, ON_BINS), LOG_RANK, notes=("Disclosed: counts.",))


def test_text_has_a_line_for_each_group_and_the_test():
    lines = survival_text(RESULT, times=(5, 30)).splitlines()
    assert lines[0].split()[:3] == ["group", "rows", "events"]
    assert lines[3].startswith("a <b>") and " 10 " in lines[3]
    assert any(line.split()[:2] == ["c", "5"] and "0.7778" in line for line in lines)
    assert any(line.split()[:2] == ["c", "30"] and "not known" in line for line in lines)
    assert any("log-rank test within hospitals, chi-squared 0.61" in line for line in lines)
    assert "note: Disclosed: counts." in lines


def test_points_are_rows_and_csv():
    rows = curve_rows(RESULT)
    assert len(rows) == 6
    assert rows[0] == {
        "group": "all",
        "time": 5.0,
        "survival": ON_BINS.survival[0],
        "low": ON_BINS.low[0],
        "high": ON_BINS.high[0],
        "at_risk": 10,
        "events": 2,
        "censored": 2,
    }
    lines = survival_csv(RESULT).splitlines()
    assert lines[0] == "group,time,survival,low,high,at_risk,events,censored"
    assert lines[1].startswith("all,5.0,0.7777777777777778,")
    assert len(lines) == 7


def test_latex_escapes_names():
    text = survival_latex(KaplanMeier(replace(ON_BINS, group="50% & more_")))
    assert r"50\% \& more\_ &" in text
    assert text.count(r"\\") == 2


def test_latex_has_the_test_and_the_notes_of_the_screen():
    below = survival_latex(RESULT).split(r"\end{tabular}")[1]
    shown = survival_text(RESULT).splitlines()
    for line in (line.removeprefix("note: ") for line in shown if line.startswith(("note: ", "Survival "))):
        assert line in below
