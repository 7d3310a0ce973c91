"""Table 1 from sums equals NumPy, SciPy and pandas on the pooled rows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.question import Record, Rows, Total, fit_in_memory
from grandrounds.capabilities.statistics.table_one import fit_table_one
from grandrounds.capabilities.statistics.table_result import TableOne
from grandrounds.capabilities.statistics.table_rows import TableRequest, choose_terms, read_rows, split_sites
from grandrounds.capabilities.statistics.table_terms import CategoricalColumn, NumericColumn, TableTerms
from grandrounds.data.sets import heart
from grandrounds.data.table import Table, to_text
from tests.support import refused

NUMBERS = ("age", "resting_bp", "cholesterol", "max_heart_rate", "st_depression")
REQUEST = TableRequest("hospital", group="disease", nonnormal=("cholesterol", "st_depression"))


@pytest.fixture(scope="module")
def table():
    return heart.load()


@pytest.fixture(scope="module")
def frame(table):
    return pd.DataFrame({name: table.columns[name] for name in table.names})


def drive(table, request, *, least=5):
    terms, _ = choose_terms(table, request)
    sites = {name: read_rows(part, terms) for name, part in split_sites(table, request.site).items()}
    record = Record()
    return fit_in_memory(fit_table_one(replace(terms, least=least)), sites, ANSWERS, record), record


@pytest.fixture(scope="module")
def result(table):
    return drive(table, REQUEST)


def test_means_and_deviations_equal_the_pooled_rows(result, frame):
    one, record = result
    for name in NUMBERS:
        for column, rows in {"Overall": frame, **dict(list(frame.groupby("disease")))}.items():
            cell = one.cell(name, column)
            assert cell.n == rows[name].count() and cell.missing == rows[name].isna().sum()
            assert cell.mean == pytest.approx(rows[name].mean(), rel=1e-13)
            assert cell.sd == pytest.approx(rows[name].std(), rel=1e-12)
    steps = ["rows and ranges", "sums", "sums and levels", "quartiles", "ranks"]
    assert [q.step for q in record.questions] == steps
    assert record.exchanges == one.exchanges == 5  # ranges, two of sums, one more for quartiles, one for ranks


def test_quartiles_of_recorded_values_are_exact(result, frame):
    one, _ = result
    for name in REQUEST.nonnormal:
        assert one[name].width == 0
        for column, rows in {"Overall": frame, **dict(list(frame.groupby("disease")))}.items():
            assert one.cell(name, column).quartiles == tuple(rows[name].quantile([0.25, 0.5, 0.75]))


def test_levels_are_counted(result, frame):
    one, _ = result
    for name in ("sex", "chest_pain", "resting_ecg", "thallium_scan"):
        for column, rows in {"Overall": frame, **dict(list(frame.groupby("disease")))}.items():
            cell = one.cell(name, column)
            counts = rows[name].value_counts()
            assert cell.counts == tuple(counts.get(level, 0) for level in one[name].levels)
            assert (cell.n, cell.missing) == (rows[name].count(), rows[name].isna().sum())


def test_tests_equal_scipy(result, frame):
    one, _ = result
    no, yes = (rows for _, rows in frame.groupby("disease"))
    for name in ("age", "resting_bp", "max_heart_rate"):
        expected = stats.ttest_ind(no[name].dropna(), yes[name].dropna(), equal_var=False)
        assert one[name].test.p == pytest.approx(expected.pvalue, rel=1e-9)
        pooled = np.sqrt((no[name].var() + yes[name].var()) / 2)
        assert one[name].smd == pytest.approx((abs(no[name].mean() - yes[name].mean()) / pooled,))
    for name in REQUEST.nonnormal:
        expected = stats.kruskal(no[name].dropna(), yes[name].dropna())
        assert one[name].test.name == "Kruskal-Wallis"
        assert one[name].test.statistic == pytest.approx(expected.statistic, rel=1e-12)
        assert one[name].test.p == pytest.approx(expected.pvalue, rel=1e-9)
    for name in ("sex", "chest_pain"):
        expected = stats.chi2_contingency(pd.crosstab(frame[name], frame["disease"]))
        assert one[name].test.p == pytest.approx(expected.pvalue, rel=1e-9)


def test_the_table_is_the_same_for_any_partition(table, result):
    rng = np.random.default_rng(0)
    dealt = table.with_columns({"hospital": [f"h{k}" for k in rng.integers(0, 30, len(table))]})
    other, _ = drive(dealt, REQUEST)
    assert other.without_sites().rows() == result[0].without_sites().rows()


def test_printed_digits_are_those_of_pandas(result, frame):
    text = result[0].without_sites().to_frame()
    no = frame[frame["disease"] == "no"]
    assert text.loc[("age", "mean (SD)"), "no"] == f"{no['age'].mean():.1f} ({no['age'].std():.1f})"
    q1, median, q3 = no["st_depression"].quantile([0.25, 0.5, 0.75])
    assert text.loc[("st_depression", "median [Q1, Q3]"), "no"] == f"{median:.1f} [{q1:.1f}, {q3:.1f}]"
    assert text.loc[("sex, n (%)", "male"), "Overall"] == "726 (78.9)"
    assert text.loc[("n", ""), "Overall"] == "920"


def test_small_counts_of_sites_are_hidden(result, table):
    one, _ = result
    cell = one.cell("chest_pain", "switzerland")
    counts = pd.Series(to_text(table.columns["chest_pain"]))[table.columns["hospital"] == "switzerland"].value_counts()
    assert {k: v for k, v in zip(one["chest_pain"].levels, cell.counts, strict=True) if v is not None} == {
        "asymptomatic": counts["asymptomatic"]
    }
    assert cell.small == (False, True, False, True), "4 and 4 are small; 17 is hidden since 4 + 4 would follow"
    assert one.cell("vessels", "va").hidden and one.cell("vessels", "va").n is None
    assert "<5" in one.summary() and "would give such a count away" in one.summary()
    assert not any(v.p_range for v in one.variables), "groups have no small counts"


def test_hidden_cells_of_groups_hide_the_exact_p():
    rows = {
        f"s{k}": Rows(
            np.empty((40, 0)),
            np.zeros(40),
            group=np.arange(40) % 2,
            numeric=np.empty((40, 0)),
            codes=np.where(np.arange(40) == 1, 1, 0)[:, None] * (k == 0),
        )
        for k in range(3)
    }
    terms = TableTerms(categorical=(CategoricalColumn("rare", ("no", "yes")),), group="arm", groups=("a", "b"))
    one = fit_in_memory(fit_table_one(terms), rows, ANSWERS)
    rare = one["rare"]
    assert one.cell("rare", "b").counts == (None, None), "1, and the other since n is known"
    assert one.cell("rare").counts == (None, None)
    assert (rare.test, rare.p_range, rare.smd) == (None, ">=0.05", (None,))
    assert "1 (" not in one.summary()


def test_columns_and_groups_with_few_rows_are_left_out_by_name():
    n = 30
    few = np.full((n, 2), np.nan)
    few[0, 0], few[:, 1] = 3.0, np.arange(n)
    group = np.array([2] + [-1] * 7 + [0, 1] * 11)
    site = Rows(np.empty((n, 0)), np.zeros(n), group=group, numeric=few, codes=np.full((n, 1), -1))
    terms = TableTerms(
        (NumericColumn("rare"), NumericColumn("all")),
        (CategoricalColumn("empty", ("a",)),),
        group="arm",
        groups=("x", "y", "z"),
    )
    one = fit_in_memory(fit_table_one(terms), {"a": site, "b": site, "c": site}, ANSWERS)
    assert one.left_out == dict.fromkeys(("rare", "empty"), "it has fewer than 5 values over all sites")
    assert one.groups == ("x", "y")
    assert one.columns[0].n == 66, "rows of left-out groups are in no column"
    assert one.notes == (
        "group 'z' has fewer than 5 rows and is left out",
        "rows without a group, which are left out: 21",
    )
    with refused("no-columns"):
        fit_in_memory(
            fit_table_one(replace(terms, numeric=terms.numeric[:1])),
            dict.fromkeys("abc", replace(site, numeric=few[:, :1])),
            ANSWERS,
        )


@pytest.mark.parametrize("ranged", [True, False])
def test_values_without_a_resolution(ranged):
    rng = np.random.default_rng(1)
    x = rng.lognormal(3, 1, 900)
    group = rng.integers(0, 3, 900)
    terms = TableTerms(
        (NumericColumn("x", *((0.0, 11_000.0) if ranged else (None, None)), nonnormal=True),),
        group="g",
        groups=("a", "b", "c"),
    )
    sites = {
        f"s{k}": Rows(np.empty((300, 0)), np.zeros(300), group=group[k::3], numeric=x[k::3, None]) for k in range(3)
    }
    one = fit_in_memory(fit_table_one(terms), sites, ANSWERS)
    assert one.exchanges == 7, "ranges, two of sums with the first cuts, three more, one for ranks"
    assert one.cell("x").quartiles == pytest.approx(np.quantile(x, [0.25, 0.5, 0.75]), abs=1e-3)
    assert one.cell("x", "b").quartiles == pytest.approx(np.quantile(x[group == 1], [0.25, 0.5, 0.75]), abs=1e-3)
    expected = stats.kruskal(*(x[group == g] for g in range(3)))
    test = one["x"].test
    assert test.name == "Kruskal-Wallis (binned)"
    assert test.statistic == pytest.approx(expected.statistic, abs=0.05)
    assert 0 < one["x"].width < 1e-3 and "are within" in one.summary()


def test_a_value_outside_the_agreed_range_is_refused():
    site = Rows(np.empty((9, 0)), np.zeros(9), numeric=np.linspace(0, 130, 9)[:, None])
    with refused("out-of-range"):
        fit_in_memory(
            fit_table_one(TableTerms((NumericColumn("age", 0, 120, 1),))), dict.fromkeys("abc", site), ANSWERS
        )


def test_numbers_that_are_no_measurements_are_left_out(table):
    odd = table.with_columns({"huge": 1e14 + np.arange(len(table)), "age": table.columns["age"]})
    one, _ = drive(odd, TableRequest("hospital", columns=("age", "huge")))
    assert [v.name for v in one.variables] == ["age"] and "an identifier" in one.left_out["huge"]


def test_a_site_that_leaves_restarts_the_sums(table, frame):
    terms, _ = choose_terms(table, replace(REQUEST, columns=NUMBERS))
    sites = {name: read_rows(part, terms) for name, part in split_sites(table, "hospital").items()}
    fit, asked = fit_table_one(terms), []
    question, here = next(fit), list(sites)
    try:
        while True:
            asked.append(question)
            leaves = len(asked) == 3
            if leaves:
                here.remove("va")
            blocks = [ANSWERS[question.kind](question, sites[s]) for s in here]
            total = Total({k: np.sum([b[k] for b in blocks], axis=0) for k in question.blocks}, tuple(here), leaves)
            question = fit.send(total)
    except StopIteration as end:
        one = end.value
    others = frame[frame["hospital"] != "va"]
    assert one.columns[0].n == len(others)
    assert one.cell("age").sd == pytest.approx(others["age"].std(), rel=1e-12)
    assert one.cell("cholesterol").quartiles == tuple(others["cholesterol"].quantile([0.25, 0.5, 0.75]))
    assert one.notes == (
        "va left while sums were asked for; the table is over the other 3 sites, and the server has sums with and without",
    )
    centres = [q.values["centre"].tobytes() for q in asked if "centre" in q.values]
    assert len(set(centres)) == len(centres), "no question is repeated over other sites"


def test_a_table_survives_json(result):
    one, _ = result
    assert TableOne.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    terms = TableTerms((NumericColumn("a", 0, 1, 10, True),), (CategoricalColumn("b", ("x", "y")),), "g", ("p", "q"))
    assert TableTerms.from_dict(json.loads(json.dumps(terms.to_dict()))) == terms


def test_formats(result):
    one, _ = result
    lines = one.to_csv().splitlines()
    assert lines[0] == "variable,level,Missing,Overall,no,yes,cleveland,hungarian,switzerland,va,SMD,p,test"
    assert lines[2].startswith("age,mean (SD),0,53.5 (9.4),50.5 (9.4),55.9 (8.7),")
    latex = one.to_latex()
    assert "chest\\_pain, n (\\%) & asymptomatic & 0 & 496 (53.9)" in latex and latex.count("\\midrule") == 1
    assert one.footnotes() and latex.count("\\footnotesize") == len(one.footnotes())
    text = one.summary()
    assert text.startswith("Table 1 by disease\n") and "Kruskal-Wallis" in text


def test_without_groups_there_is_no_test(table):
    one, record = drive(table, TableRequest("hospital", columns=("sex", "age")))
    assert [v.name for v in one.variables] == ["sex", "age"], "the order of --columns"
    assert record.exchanges == 3 and one.header()[-1] == "va"
    assert one["age"].test is None and one.groups == ()


@pytest.mark.parametrize(
    "request_, code",
    [
        (TableRequest("nowhere"), "unknown-column"),
        (TableRequest("sex"), "too-few-sites"),
        (TableRequest("hospital", group="age"), "too-many-groups"),
        (TableRequest("hospital", group="hospital"), "conflicting-roles"),
        (TableRequest("hospital", columns=("age", "agee")), "unknown-column"),
        (TableRequest("hospital", columns=("hospital",)), "conflicting-roles"),
        (TableRequest("hospital", nonnormal=("sex",)), "wrong-kind"),
        (TableRequest("hospital", nonnormal=("age",), categorical=("age",)), "conflicting-roles"),
    ],
)
def test_bad_input(table, request_, code):
    with refused(code):
        drive(table, request_)


def test_kinds_of_columns(table):
    n = len(table)
    odd = table.with_columns(
        {
            "died": np.arange(n) % 2,
            "empty": np.full(n, np.nan),
            "note": [f"text {k}" for k in range(n)],
            "seen": ["2020-01-02"] * (n - 1) + ["2021-03-04"],
            "patient_id": np.arange(n),
            "one": np.ones(n),
        }
    )
    terms, left_out = choose_terms(
        odd, TableRequest("hospital", columns=("died", "empty", "note", "seen", "patient_id"))
    )
    assert terms.categorical == (CategoricalColumn("died", ("0", "1")),) and terms.numeric == ()
    assert set(left_out) == {"empty", "note", "seen", "patient_id"}
    assert left_out["empty"] == "no value in any row" and "identifier or free text" in left_out["note"]
    with refused("no-columns"):
        choose_terms(odd, TableRequest("hospital", columns=("empty",)))
    with refused("too-few-groups"):
        choose_terms(odd, TableRequest("hospital", group="one"))


def test_columns_that_are_not_shown_are_not_asked_for(table):
    terms, _ = choose_terms(table, REQUEST)
    sites = {name: read_rows(part, terms) for name, part in split_sites(table, "hospital").items()}
    every = fit_in_memory(fit_table_one(terms), sites, ANSWERS)
    record = Record()
    few = fit_in_memory(fit_table_one(replace(terms, order=("sex", "cholesterol"))), sites, ANSWERS, record)
    assert few.variables == (every["sex"], every["cholesterol"])
    assert [q.values["columns"].tolist() for q in record.questions if "columns" in q.values] == [[2], [2]]
    assert record.questions[2].blocks["counts"] == (2, 2)
    with refused("unknown-column"):
        replace(terms, order=("agee",))


def test_a_site_without_values_of_a_column(frame):
    rows = frame.copy()
    rows.loc[rows["hospital"] == "va", "age"] = np.nan
    one, _ = drive(Table.from_pandas(rows), TableRequest("hospital", columns=("age", "sex")))
    assert one.cell("age").mean == pytest.approx(rows["age"].mean(), rel=1e-13)
    assert one.cell("age", "va").n == 0 and one.cell("age", "va").mean is None
