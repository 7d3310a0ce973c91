"""Estimates in the report: the table in original units, the facts of the fit, the figure, and the first findings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from grandrounds.capabilities.statistics.meta import MetaAnalysis
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.metrics.meta_analysis import MetaCoefficient
from grandrounds.report import figures
from grandrounds.report.catalogue import RunRecord, list_figures
from grandrounds.report.document import Charts
from grandrounds.report.estimates import (
    choose_decimals,
    describe_effects,
    disclosure_sentence,
    fact_rows,
    read_estimates,
    table_head,
    table_rows,
)
from grandrounds.report.findings import describe_findings
from grandrounds.report.sections.estimates import estimates_section
from grandrounds.report.tables import heterogeneity_table
from tests.report import EVIL, summary
from tests.report.estimates import estimates, logistic
from tests.support import refused


def record(model: str = "logistic", **more):
    return read_estimates({"estimates": estimates(model, **more)})


def test_the_table_has_ratios_and_intervals_in_original_units():
    _, original = logistic()
    assert table_head(original) == ("input", "coefficient", "standard error", "z", "p", "odds ratio (95% CI)", "per")
    rows = {row[0]: row[1:] for row in table_rows(original)}
    # per year: 0.5 / 10 = 0.05, error 0.01; exp(0.05) = 1.0513, exp(0.05 -+ 0.0196) = 1.0309 and 1.0721
    assert rows["age"] == ("0.0500", "0.0100", "5.00", "<0.001", "1.051 (1.031 to 1.072)", "unit")
    assert rows["sex=f"] == ("-0.400", "0.300", "-1.33", "0.182", "0.67 (0.37 to 1.21)", "")
    assert rows["(intercept)"][-2:] == ("", "")
    assert rows["height missing"][-1] == "left out: constant"
    assert table_rows(original, ColumnLabels("heart"))[1][-1] == "year"


def test_a_linear_model_has_t_and_no_ratio_and_a_penalised_one_no_p_value():
    _, linear = logistic("linear")
    assert table_head(linear) == ("input", "coefficient", "standard error", "t", "p", "95% CI", "per")
    # t of 95 degrees at 97.5%: 1.9853, so 0.05 -+ 0.0199
    assert table_rows(linear)[1][5] == "0.0301 to 0.0699"
    _, penalised = logistic("cox", tests=False)
    assert table_head(penalised) == ("input", "coefficient", "standard error", "hazard ratio (95% CI)", "per")
    assert {len(row) for row in table_rows(penalised)} == {5}


@pytest.mark.parametrize(
    "ends, decimals", [((1.0309, 1.0721), 3), ((0.37, 1.21), 2), ((0.9984, 1.0058), 4), ((2.0, 90.0), 2)]
)
def test_an_interval_is_shown_with_two_digits_of_its_width(ends, decimals):
    assert choose_decimals(*ends) == decimals


def test_facts_and_the_ratio_of_numbers_sent():
    rows = dict(fact_rows(record(), 3))
    assert rows["model"] == "logistic regression" and rows["hospitals"] == "3" and rows["rows"] == "150"
    assert rows["log-likelihood"] == "-80.25" and rows["AIC"] == "168.50"
    assert rows["intercept"] == "one for each hospital, which stays there"
    assert rows["exchanges"] == "6" and rows["numbers sent / numbers held"] == "120 / 600"
    assert disclosure_sentence({"ratio": 0.2}).startswith(
        "For each value in the patients' rows, hospitals sent 0.20 sums"
    )
    assert "could be computed" in disclosure_sentence({"ratio": 1.5})
    assert disclosure_sentence({}) == ""


def test_findings_begin_with_the_clearest_effects():
    lines = describe_findings({"estimates": estimates(), "data": "heart", "final": {"count": 0.0}})
    assert lines == [
        "age: odds ratio 1.051 per year (95% CI 1.031 to 1.072).",
        "lactate: odds ratio 1.0101 per unit (95% CI 1.0002 to 1.0200).",
    ]
    assert next(describe_effects(record("linear"))) == "age: coefficient 0.050 per unit (95% CI 0.030 to 0.070)."


def test_effects_that_may_be_chance_are_no_finding():
    values = estimates()
    for units in ("fitted", "original"):
        for c in values[units]["coefficients"]:
            c |= {"low": -1.0, "high": 1.0} if c["estimate"] is not None else {}
    found = [*describe_effects(read_estimates({"estimates": values}))]
    assert found == ["None of 3 coefficients is clearly different from zero (95% intervals)."]


def test_the_figure_is_per_standard_deviation_on_a_logarithmic_axis():
    fitted, original = logistic()
    figure = figures.coefficients(fitted, original)
    points, shape = figure["data"][0], figure["layout"]
    assert points["y"] == ["age", "lactate", "sex=f"] and shape["xaxis"]["type"] == "log"
    assert points["x"] == pytest.approx([math.exp(0.5), math.exp(0.02), math.exp(-0.4)])
    assert points["marker"]["symbol"] == ["circle", "circle", "circle-open"]
    high = math.exp(0.5 + 1.959963984540054 * 0.1)
    assert points["error_x"]["array"][0] == pytest.approx(high - math.exp(0.5))
    assert shape["shapes"][0]["x0"] == 1.0
    one = figures.coefficients(*logistic("linear"), top=1)
    assert one["data"][0]["y"] == ["age"] and "2 weaker ones are not shown" in one["layout"]["title"]["text"]
    assert one["layout"]["shapes"][0]["x0"] == 0.0 and "type" not in one["layout"]["xaxis"]


def test_the_section_escapes_names_and_says_what_was_left_out():
    told = summary(data="table", sites={"all": 3}, estimates=estimates(name=EVIL))
    html = "".join(estimates_section(told, Charts("")))
    assert EVIL not in html and "left out: constant" in html and "odds ratio (95% CI)" in html
    assert html.count("<p class='warn'>") == 2, "the notes of the fit and of the run"
    assert html.count("data-figure") == 1
    assert estimates_section(summary(), Charts("")) == []


def test_the_console_lists_the_figure_for_runs_with_estimates():
    assert "coefficients" in list_figures(RunRecord([], summary(estimates=estimates())))
    assert "coefficients" not in list_figures(RunRecord([], summary()))


def test_a_damaged_record_is_named():
    values = estimates()
    del values["original"]["covariance"]
    with refused("damaged-record", match="estimates cannot be read"):
        read_estimates({"estimates": values})


def analysis(model: str = "logistic", *, p: float = 0.001) -> MetaAnalysis:
    """Two coefficients over four hospitals; one more that too few could fit."""
    age = MetaCoefficient(
        "age", 4, estimate=0.05, error=0.01, low=0.03, high=0.07, q=16.3, q_p=p, i2=0.816, tau2=0.01,
        prediction_low=-0.02, prediction_high=0.12,
    )  # fmt: skip
    sex = replace(age, name="sex=f", q=2.0, q_p=0.57, i2=0.0)
    return MetaAnalysis(model, (age, sex, MetaCoefficient("lactate", 2)), notes=("one hospital had no rows",))


def test_differences_between_hospitals_have_a_test_and_an_interval_at_a_new_hospital():
    told = heterogeneity_table(analysis())
    assert told.head[2] == "odds ratio (95% CI)"
    assert told.rows[0] == ("age", "4", "1.051 (1.030 to 1.073)", "0.98 to 1.13", "82%", "16.30", "0.001")
    assert told.rows[2][-1] == "too few hospitals" and told.notes == ("one hospital had no rows.",)
    assert heterogeneity_table(analysis("linear")).rows[0][2] == "0.050 (0.030 to 0.070)"


def test_an_effect_that_differs_between_hospitals_is_a_finding():
    def found(p: float) -> list[str]:
        values = {**estimates(), "heterogeneity": analysis(p=p).to_dict()}
        return describe_findings({"estimates": values, "final": {}})

    assert (
        "The effect of age differs between hospitals (Cochran's Q, p = 0.003; I-squared 82%)."
        in found(0.003)
    )
    assert found(0.03)[-1] == "No effect clearly differs between hospitals (Cochran's Q of 2 coefficients).", (
        "0.05 / 2 < 0.03"
    )
    told = summary(data="t", sites={"all": 4}, estimates={**estimates(), "heterogeneity": analysis().to_dict()})
    html = "".join(estimates_section(told, Charts("")))
    assert "<h3>Differences between hospitals</h3>" in html and "82%" in html
