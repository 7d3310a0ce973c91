"""The printed result of a regression: numbers of statsmodels, every digit in CSV, names that need escaping."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from grandrounds.capabilities.statistics.estimates import INTERCEPT, Estimates
from grandrounds.capabilities.statistics.meta import MetaAnalysis
from grandrounds.metrics.meta_analysis import MetaCoefficient
from grandrounds.report.estimates import EstimatesRecord
from grandrounds.report.estimates_text import (
    coefficient_rows,
    format_cell,
    format_p,
    summary_text,
    to_csv,
    to_html,
    to_latex,
)

SENT = {"count": 6, "numbers_sent": 338, "numbers_held": 6880, "ratio": 338 / 6880, "bytes_up": 2704, "bytes_down": 900}


def estimates(model="logistic", **more) -> Estimates:
    names = [INTERCEPT, "age", "CRP [mg/l]_50%", "ward=x"]
    covariance = np.diag([1.0, 0.0004, 0.25])
    facts = {"n": 860, "events": 469, "log_likelihood": -395.077, "aic": 808.15, "intercept": "random", "tau2": 1.0}
    beta = np.array([-0.4415, 0.05, -1.5])
    return Estimates.build(
        model, names, beta, covariance, left_out={"ward=x": "constant"}, facts=facts, notes=["few clusters"], **more
    )


def record(model="logistic", **more) -> EstimatesRecord:
    fitted = estimates(model, **more)
    return EstimatesRecord(fitted, fitted, SENT, notes=("fewer than 5 rows were left out",))


def test_summary_has_facts_coefficients_ratios_and_remarks():
    text = summary_text(record(), label="died", hospitals=4)
    line = next(row for row in text.splitlines() if row.startswith("age"))
    assert line.split() == [
        "age",
        "0.0500",
        "0.0200",
        "2.500",
        "0.012",
        "0.0108",
        "0.0892",
        "1.0513",
        "1.0109",
        "1.0933",
    ]
    for words in (
        "Outcome:",
        "died",
        "860",
        "-395.08",
        "808.15",
        "338 / 6,880 = 0.049",
        "random intercepts); variance 1",
    ):
        assert words in text
    assert "left out: ward=x: constant" in text and "note: Few clusters." in text
    assert "note: Fewer than 5 rows were left out." in text
    assert max(map(len, text.splitlines()[:-1])) <= 120


def test_coefficients_that_differ_between_hospitals_are_named():
    meta = MetaAnalysis(
        "logistic",
        (
            MetaCoefficient("age", 4, estimate=0.1, q=9.0, q_p=0.012, i2=0.61),
            MetaCoefficient("CRP", 4, q=0.5, q_p=0.3, i2=0.0),
        ),
    )
    text = summary_text(EstimatesRecord(estimates(), estimates(), {**SENT, "count": 8, "fit": 6}, heterogeneity=meta))
    assert "between hospitals: The effect of age differs between hospitals (Cochran's Q, p = 0.012; I-squared 61%)" in text
    assert "effect of CRP" not in text and "8 (6 for the fit)" in text


def test_a_narrow_terminal_gets_ratios_below():
    text = summary_text(record(), width=80)
    lines = text.splitlines()
    assert max(len(line) for line in lines if not line.startswith(("disclosure", "Intercept"))) <= 80
    assert [line.split()[:2] for line in lines if line.startswith("age")] == [["age", "0.0500"], ["age", "1.0513"]]


def test_penalised_estimates_have_no_tests_and_linear_ones_no_ratio():
    text = summary_text(record(errors="penalised", tests=False))
    assert "P>|" not in text and "penalised" in text
    text = summary_text(record("linear", degrees=100.0))
    assert "P>|t|" in text and "ratio" not in text.split("disclosure")[0]


def test_csv_keeps_every_digit():
    rows = list(csv.DictReader(io.StringIO(to_csv(record()))))
    fitted = estimates().coefficients
    assert [r["name"] for r in rows] == [c.name for c in fitted]
    assert float(rows[1]["p"]) == fitted[1].p and float(rows[2]["low"]) == fitted[2].low
    assert float(rows[1]["odds_ratio"]) == np.exp(0.05)
    assert rows[0]["odds_ratio"] == "" and rows[3]["left_out"] == "constant"


def test_latex_and_html_escape_names():
    latex = to_latex(record())
    assert r"CRP [mg/l]\_50\% & $-1.5000$" in latex
    assert latex.count(r"\\") == 5 and r"$P>|z|$" in latex
    below = latex[latex.index(r"\end{tabular}") :]
    notes = [line.removeprefix("note: ") for line in summary_text(record()).splitlines() if line.startswith("note: ")]
    assert notes and all(note in below for note in notes), "a paper needs the notes of the screen"
    fitted = Estimates.build("linear", [INTERCEPT, "<b>&"], np.array([1.0, 2.0]), np.eye(2), degrees=9.0)
    html = to_html(EstimatesRecord(fitted, fitted))
    assert "&lt;b&gt;&amp;" in html and "<b>&" not in html


def test_rows_have_t_for_linear_models():
    assert list(coefficient_rows(record("linear", degrees=9.0))[1])[:7] == [
        "name",
        "coef",
        "std_err",
        "t",
        "p",
        "low",
        "high",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.0000"), (1.5, "1.5000"), (0.00888, "0.00888"), (-0.000123, "-0.000123"), (3e-9, "3.000e-09"), (1e7, "1.000e+07"),
     (None, ""), (float("inf"), "")],
)  # fmt: skip
def test_cells(value, shown):
    assert format_cell(value) == shown


def test_p_values_are_never_zero():
    assert (format_p(1e-30), format_p(0.0005), format_p(None)) == ("<0.001", "0.001", "")
