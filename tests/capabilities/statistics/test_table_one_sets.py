"""Table 1 of real hospitals, in the clear and through the ring of secure sums, against NumPy, SciPy and pandas: bar B1."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.question import fit_in_memory
from grandrounds.capabilities.statistics.table_one import fit_table_one
from grandrounds.capabilities.statistics.table_rows import TableRequest, choose_terms, read_rows, split_sites
from grandrounds.data.sets import heart
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.table import Table
from tests.capabilities.statistics.ring import fit_in_ring

SETS = {
    "heart": TableRequest("hospital", group="disease", nonnormal=("cholesterol", "st_depression", "age")),
    "eicu-demo-hospitals": TableRequest(
        "hospitalid",
        group="died_in_hospital",
        columns=("age", "gender", "admissionweight", "hr_mean", "bun_mean", "map_min", "ethnicity", "temp_mean"),
        nonnormal=("bun_mean", "admissionweight", "hr_mean"),
    ),
    "diabetes-130": TableRequest(
        "payer_code",
        group="readmitted_30",
        columns=("time_in_hospital", "race", "gender", "num_medications", "number_inpatient", "insulin", "A1Cresult"),
        nonnormal=("time_in_hospital", "num_medications"),
    ),
}


def load(name: str) -> Table:
    if name == "heart":
        return heart.load()
    table = find_entry(name).load()
    site = table.columns[SETS[name].site]
    return table if site.dtype == np.float64 else table.take(np.array([v is not None for v in site]))


@pytest.mark.parametrize("drive", ["clear", "ring"])
@pytest.mark.parametrize(
    "name",
    [
        "heart",
        pytest.param("eicu-demo-hospitals", marks=pytest.mark.data("eicu_demo")),
        pytest.param("diabetes-130", marks=[pytest.mark.data("diabetes130"), pytest.mark.slow]),
    ],
)
def test_bar_b1(name, drive):
    request, table = SETS[name], load(name)
    terms, left_out = choose_terms(table, request)
    assert not left_out
    sites = {site: read_rows(part, terms) for site, part in split_sites(table, request.site).items()}
    one = (
        fit_in_ring(fit_table_one(terms), sites)
        if drive == "ring"
        else fit_in_memory(fit_table_one(terms), sites, ANSWERS)
    )
    assert (drive == "ring") == (not any(c.kind == "site" for c in one.columns)), "no site's column with secure aggregation"
    frame = pd.DataFrame({n: table.columns[n] for n in (*terms.names, request.group)})
    groups = {str(k).removesuffix(".0"): rows for k, rows in frame.groupby(request.group)}
    for variable in one.variables:
        pooled = [rows[variable.name].dropna() for rows in groups.values()]
        shown = {"Overall": pd.concat(pooled), **dict(zip(groups, pooled, strict=True))}
        for column, values in shown.items():
            cell = one.cell(variable.name, column)
            if variable.kind == "category":
                counts = values.value_counts()
                assert [c for c in cell.counts if c is not None] == [
                    counts.get(level, 0) for level, c in zip(variable.levels, cell.counts, strict=True) if c is not None
                ]
                continue
            assert cell.n == len(values)
            assert cell.mean == pytest.approx(values.mean(), rel=1e-8)
            assert cell.sd == pytest.approx(values.std(), rel=1e-8)
            if variable.kind == "median":
                exact = values.quantile([0.25, 0.5, 0.75])
                assert cell.quartiles == (
                    tuple(exact) if variable.width == 0 else pytest.approx(tuple(exact), abs=1e-3)
                )
        if variable.kind == "mean":
            expected = stats.ttest_ind(*pooled, equal_var=False).pvalue
        elif variable.kind == "median":
            expected = stats.kruskal(*pooled).pvalue
        else:
            expected = stats.chi2_contingency(pd.crosstab(frame[variable.name], frame[request.group])).pvalue
        if variable.test is None:
            assert expected < float(variable.p_range[1:]) if variable.p_range.startswith("<") else expected >= 0.05
        elif "binned" in variable.test.name:
            assert variable.test.p == pytest.approx(expected, rel=0.05, abs=1e-3)
        elif variable.kind == "median":
            assert variable.test.p == pytest.approx(expected, rel=1e-9)
        elif variable.test.name != "Fisher's exact":
            assert variable.test.p == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("drive", ["clear", "ring"])
def test_every_printed_digit_is_that_of_pandas(drive):
    request, table = SETS["heart"], heart.load()
    terms, _ = choose_terms(table, request)
    sites = {site: read_rows(part, terms) for site, part in split_sites(table, request.site).items()}
    one = (
        fit_in_ring(fit_table_one(terms), sites)
        if drive == "ring"
        else fit_in_memory(fit_table_one(terms), sites, ANSWERS)
    )
    text = one.without_sites().to_frame()
    frame = pd.DataFrame({n: table.columns[n] for n in table.names})
    compared = 0
    for column, rows in {"Overall": frame, **dict(list(frame.groupby("disease")))}.items():
        for (name, level), printed in text[column].items():
            name = name.removesuffix(", n (%)")
            if name == "n":
                expected = str(len(rows))
            elif level == "mean (SD)":
                d = 2 if name == "vessels" else 1
                expected = f"{rows[name].mean():.{d}f} ({rows[name].std():.{d}f})"
            elif level == "median [Q1, Q3]":
                q1, q2, q3 = rows[name].quantile([0.25, 0.5, 0.75])
                expected = f"{q2:.1f} [{q1:.1f}, {q3:.1f}]"
            else:
                count = (rows[name] == level).sum()
                expected = f"{count} ({100 * count / rows[name].count():.1f})"
            assert printed == expected, (name, level, column)
            compared += 1
    assert compared == 3 * len(text)
