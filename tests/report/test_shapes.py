"""Shapes of additive models in the report: importance, sentences, figures with patients, the fold, and damaged records."""

from __future__ import annotations

import math

import pytest

from grandrounds.report import figures
from grandrounds.report.catalogue import RunRecord, list_figures
from grandrounds.report.document import Charts, about_line
from grandrounds.report.figures.shapes import interpolate
from grandrounds.report.findings import describe_findings
from grandrounds.report.sections.shapes import shapes_section, trees_section
from grandrounds.report.shapes import describe_point, describe_shape, read_shapes
from grandrounds.report.trees import read_trees, trees_facts
from tests.report import EVIL, summary
from tests.report.shapes import card, category, number, shapes, trees
from tests.support import refused


def record(*columns, **more):
    return read_shapes({"shapes": shapes(*columns, **more), "data": "table"})


def test_the_most_important_shape_comes_first_and_unused_columns_are_apart():
    found = record()
    assert [s.name for s in found.used] == ["age", "pain"] and [s.name for s in found.unused] == ["height"]
    # age: (5 * -1 + 25 * -.5 + 0 + 25 * .7 + 5 * .9 + 20 * .3) / 120 = 10.5 / 120 = .0875, mean absolute difference from it:
    age = (5 * 1.0875 + 25 * 0.5875 + 40 * 0.0875 + 25 * 0.6125 + 5 * 0.8125 + 20 * 0.2125) / 120
    assert found.used[0].importance == pytest.approx(age)
    assert found.used[0].quantile(0.1) == 1 and found.used[0].reference == 2 and found.used[0].quantile(0.9) == 3
    assert found.used[1].reference == 1, "the most frequent level"


def test_a_shape_is_told_as_ratios_against_the_median_or_the_most_frequent_level():
    age, pain = record().used
    # exp(-.5) = .607, exp(.7) = 2.014, exp(.3) = 1.350; of pain exp(-.6) = .549, exp(-.1) = .905
    assert describe_shape(record(), age) == (
        "Odds ratio against 60 years (the median): 0.61 at 50 years (10th percentile); 2.01 at 70 years (90th percentile); "
        "1.35 where it is missing (20 patients). The curve may only rise (a constraint of the experiment)."
    )
    assert describe_shape(record(), pain) == (
        "Odds ratio against typical (the most frequent level): none 0.55; other 0.90."
    )
    linear = record(family="linear")
    assert describe_shape(linear, linear.used[1]).startswith("Change of the prediction against typical")


def test_the_value_under_the_cursor_has_effect_interval_ratio_and_patients():
    found = record()
    assert describe_point(found, found.used[0], 3) == (
        "70 years: log-odds +0.70 (95% CI +0.31 to +1.09); odds ratio 2.01 against 60 years (the median); 25 patients near this "
        "value."
    )
    assert describe_point(found, found.used[0], None).startswith("missing: log-odds +0.30 (95% CI -0.19 to +0.79)")
    assert "the reference" in describe_point(found, found.used[0], 2)


def test_a_curve_has_its_band_its_patients_below_and_missing_values_apart():
    drawn = {t["name"]: t for t in figures.shape(record(), "age")["data"]}
    assert drawn["effect"]["y"] == [-1.0, -0.5, 0.0, 0.7, 0.9]
    assert drawn["upper end"]["y"][0] == pytest.approx(-1.0 + 1.959964 * 0.5)
    assert drawn["patients"]["y"] == [5, 25, 40, 25, 5] and drawn["patients"]["yaxis"] == "y2"
    assert drawn["patients"]["width"] == [5.0, 10.0, 10.0, 10.0, 5.0]
    assert drawn["missing"]["y"] == [0.3] and drawn["missing"]["xaxis"] == "x2"
    assert drawn["patients without a value"]["y"] == [20]
    assert "2.01 against 60 years" in drawn["effect"]["customdata"][3]
    assert "may only rise" in figures.shape(record(), "age")["layout"]["title"]["text"]


def test_levels_are_bars_and_a_missing_level_is_one_more():
    levels = figures.shape(record(category(missing={"effect": 1.0, "se": None, "rows": 4})), "pain")
    bars = levels["data"][0]
    assert bars["y"] == ["none", "typical", "other", "missing"] and bars["x"] == [-0.4, 0.2, 0.1, 1.0]
    assert bars["error_x"]["array"][:2] == pytest.approx([0.196, 0.196], abs=1e-3)
    assert levels["data"][1]["x"] == [50, 60, 10, 4] and levels["data"][1]["xaxis"] == "x2"


def test_hospitals_own_shapes_are_thin_lines_where_they_are_known():
    own = {"b": {"age": [0.0, 0.0, 0.0, 0.1, 0.2]}, "c": {"columns": [{"name": "age", "effect": [1, 1, 1, 1]}]}}
    drawn = {t["name"]: t for t in figures.shape(record(by_site=own), "age")["data"]}
    assert drawn["b"]["y"][-1] == 0.2 and drawn["b"]["line"]["width"] == 1
    assert "c" not in drawn, "on other points than the common shape"


def test_a_patient_is_marked_where_the_value_lies():
    found = record()
    mark = figures.shape(found, "age", patient=65.0, has_patient=True)["data"][-1]
    assert mark["x"] == [65.0] and mark["y"] == [pytest.approx(0.35)]
    assert figures.shape(found, "age", patient=None, has_patient=True)["data"][-1]["x"] == ["missing"]
    assert figures.shape(found, "pain", patient="other", has_patient=True)["data"][-1]["x"] == [0.1]
    assert interpolate(found.used[0], 10.0) == -1.0 and interpolate(found.used[0], 99.0) == 0.9
    steps = record(number(se=None, edf=None, edges=[45, 55, 64, 75])).used[0]
    assert interpolate(steps, 64.0) == 0.0 and interpolate(steps, 64.1) == 0.7, "an edge belongs to the bin below"


def test_steps_are_drawn_and_told_by_their_bins():
    found = record(number(se=None, edf=None, edges=[45, 55, 64, 75]))
    drawn = {t["name"]: t for t in figures.shape(found, "age")["data"]}
    assert drawn["steps"]["x"] == [35, 45, 45, 55, 55, 64, 64, 75, 75, 85] and drawn["steps"]["y"][:3] == [-1.0, -1.0, -0.5]
    assert drawn["patients"]["width"] == [10, 10, 9, 11, 10] and drawn["effect"]["mode"] == "markers"
    assert [found.used[0].describe_value(k) for k in (0, 1, 4)] == ["45 years or less", "45 to 55 years", "more than 75 years"]


def test_a_column_that_is_not_used_has_no_figure():
    with refused("nothing-to-draw", match="height"):
        figures.shape(record(), "height")


def test_the_section_shows_twelve_and_folds_the_rest():
    columns = [number(f"c{k}", effect=[-k, 0, 0, 0, k]) for k in range(14)]
    told = summary(data="table", shapes=shapes(*columns))
    html = "".join(shapes_section(told, Charts("")))
    assert html.count("data-figure") == 14 and "<summary>2 less important shapes</summary>" in html
    assert html.index("ec13\\u003c") < html.index("<details>") < html.index("ec0\\u003c"), "the most important first"
    plain = "".join(shapes_section(told, Charts(None)))
    assert "data-figure" not in plain and plain.count("Odds ratio against 60 years") == 14
    assert shapes_section(summary(), Charts("")) == []


def test_names_from_data_are_escaped():
    told = summary(data="table", shapes=shapes(category(EVIL, values=[EVIL, "b", "c"]), notes=[EVIL]))
    assert EVIL not in "".join(shapes_section(told, Charts("")))
    assert EVIL not in "".join(shapes_section(told, Charts(None)))


def test_trees_have_facts_and_the_share_of_single_cells():
    rows = dict(trees_facts(read_trees({"trees": trees()})))
    assert rows["trees"] == "160 of depth 4 at most" and rows["exchanges"] == "80"
    assert rows["histogram cells with one patient"] == "22.0% (220 of 1,000)"
    assert rows["validation loss"] == "0.4600 at the end; lowest 0.4500 in round 3"
    html = "".join(trees_section(summary(trees=trees()), Charts("")))
    assert "22.0% of the histogram cells" in html and html.count("data-figure") == 1
    assert trees_section(summary(), Charts("")) == []


def test_figures_are_in_the_catalogue_of_runs_that_have_them():
    listed = list_figures(RunRecord([], summary(data="t", shapes=shapes(), trees=trees())))
    assert {"shape-1", "shape-2", "boosting"} <= set(listed) and "shape-3" not in listed
    assert listed["shape-1"].make(RunRecord([], summary(data="heart", shapes=shapes()))).title == "age"
    assert not {"shape-1", "boosting"} & set(list_figures(RunRecord([], summary())))


@pytest.mark.parametrize(
    "spoil", [{"family": "none"}, {"columns": [number(edges=[1])]}, {"columns": [number(effect=[1])]}, {"columns": [{}]}]
)
def test_a_damaged_record_is_named(spoil):
    with refused("damaged-record", match="shapes cannot be read"):
        read_shapes({"shapes": {**shapes(), **spoil}})
    with refused("damaged-record", match="facts of trees"):
        read_trees({"trees": {"trees": "many"}})


def test_effects_too_large_for_a_ratio_are_told_as_such():
    found = record(number(effect=[-1, 0, 0, 0, 1e6]))
    assert "very large" in describe_point(found, found.used[0], 4) and math.isfinite(found.used[0].importance)


def test_findings_end_with_the_most_important_shapes():
    lines = describe_findings({"shapes": shapes(), "data": "heart", "final": {"count": 0.0}})
    assert lines[0].startswith("age: odds ratio against 60 years (the median): 0.61 at 50 years (10th percentile)")
    assert lines[1] == "pain: odds ratio against typical (the most frequent level): none 0.55; other 0.90."


def test_a_fit_from_sums_has_exchanges_and_a_seed_only_where_columns_are_drawn():
    sites = {"all": 4, "training": 4}
    told = {"sites": sites, "rounds": 8, "parameters": 120, "model": "gam"}
    line = about_line(summary(**told, shapes=shapes()))
    assert line == "4 sites, all train, 8 exchanges, additive model that uses 2 of 3 columns"
    line = about_line(summary(**told, trees=trees()))
    assert line == "4 sites, all train, 8 exchanges, 160 boosted trees of depth 4, seed 0"
    assert about_line(summary(**told, card=card())) == "4 sites, all train, 8 exchanges, risk card of 5 terms"
    assert about_line(summary(**told)) == "4 sites, all train, 8 rounds, gam with 120 parameters, seed 0"


def test_values_have_the_digits_that_tell_them_apart():
    ages = number(values=[40.49, 50.0, 60.0, 70, 90])
    depressions = number("st", values=[-5.96e-8, 0.049, 1.0, 2.0, 6.0], unit="mm")
    by_name = {s.name: s for s in record(ages, depressions, number("tiny", values=[0, 1e-7, 2e-7, 3e-7, 4e-7], unit="")).used}
    assert [by_name["age"].describe_value(k) for k in (0, 1)] == ["40.5 years", "50 years"]
    assert [by_name["st"].describe_value(k) for k in (0, 1, 2)] == ["0 mm", "0.05 mm", "1 mm"]
    assert by_name["tiny"].describe_value(1) == "1e-07"


def test_counts_that_are_hidden_are_named_and_no_zero():
    pain = record(category(rows=[50, 60, None], missing={"effect": 0.1, "se": None, "rows": None})).used[0]
    told = record(category(rows=[50, 60, None]))
    assert all(describe_point(told, pain, k).endswith("number of patients hidden.") for k in (2, None))
    sentence = describe_shape(told, pain)
    assert "other 0.90" in sentence and "where it is missing (number of patients hidden)" in sentence
    empty = record(category(rows=[50, 60, 0], missing={"effect": 0.1, "se": None, "rows": 0})).used[0]
    assert "other" not in describe_shape(told, empty) and empty.missing is None, "levels and gaps that no patient has"
