"""`rounds table1` and `gr.table1`."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.question import fit_in_memory
from grandrounds.capabilities.statistics.table_one import fit_table_one
from grandrounds.capabilities.statistics.table_rows import TableRequest, choose_terms, read_rows, split_sites
from grandrounds.data.sets import heart
from grandrounds.data.table import Table
from tests.command import rounds
from tests.support import refused


@pytest.fixture(scope="module")
def frame():
    table = heart.load()
    return pd.DataFrame({name: table.columns[name] for name in table.names})


@pytest.fixture(scope="module")
def path(frame, tmp_path_factory):
    where = tmp_path_factory.mktemp("table1") / "patients.csv"
    frame.to_csv(where, index=False)
    return where


def test_a_table_is_printed_and_written(path, frame, tmp_path):
    done = rounds(
        *("table1", "--table", path, "--site", "hospital", "--group", "disease", "--nonnormal", "cholesterol"),
        *("--columns", "age,sex,cholesterol", "--csv", tmp_path / "t.csv", "--latex", tmp_path / "t.tex"),
        *("--out", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"run: {tmp_path / 'run'}"
    verified = rounds("audit", "verify", tmp_path / "run")
    assert verified.returncode == 0, verified.stdout
    assert done.stdout.startswith("Table 1 by disease\n") and "Kruskal-Wallis" in done.stdout
    rows = {(r["variable"], r["level"]): r for r in csv.DictReader((tmp_path / "t.csv").open())}
    age = frame["age"]
    assert rows["age", "mean (SD)"]["Overall"] == f"{age.mean():.1f} ({age.std():.1f})"
    q1, median, q3 = frame["cholesterol"].quantile([0.25, 0.5, 0.75])
    assert rows["cholesterol", "median [Q1, Q3]"]["Overall"] == f"{median:.1f} [{q1:.1f}, {q3:.1f}]"
    assert (tmp_path / "t.tex").read_text().startswith("\\begin{tabular}")


def test_a_data_set_has_its_own_site_column(tmp_path):
    done = rounds("table1", "heart", "--columns", "age", "--json", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert [c["name"] for c in table["columns"]] == ["Overall", "cleveland", "hungarian", "switzerland", "va"]


@pytest.mark.parametrize(
    "options, code",
    [
        (["--site", "hospitall"], "unknown-column"),
        (["--site", "disease"], "too-few-sites"),
        (["--site", "hospital", "--group", "age"], "too-many-groups"),
        (["--site", "hospital", "--columns", "agee"], "unknown-column"),
        ([], "site-not-set"),
    ],
)
def test_bad_input_is_one_sentence(path, options, code):
    done = rounds("table1", "--table", path, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and f"[{code}]" in done.stderr.splitlines()[0]


def test_a_column_without_values(frame, tmp_path):
    table = gr.table1(frame.assign(empty=np.nan), site="hospital", columns=["age", "empty"], out=tmp_path / "run")
    assert table.left_out == {"empty": "no value in any row"} and "empty is left out" in table.summary()
    with refused("no-columns"):
        gr.table1(frame.assign(empty=np.nan), site="hospital", columns="empty")


def test_python_takes_a_frame_a_path_and_a_data_set(frame, path, tmp_path):
    options = {"columns": ("sex", "age", "chest_pain"), "group": "disease"}
    tables = [
        gr.table1(d, **options, site=s, out=tmp_path / str(k))
        for k, (d, s) in enumerate([(frame, "hospital"), (path, "hospital"), ("heart", None)])
    ]
    assert tables[0] == tables[1] == tables[2] and isinstance(tables[0], gr.TableOne)
    assert [v.name for v in tables[0].variables] == ["sex", "age", "chest_pain"], "in the order that was asked for"
    assert tables[0].to_frame().loc[("sex, n (%)", "male"), "yes"] == "459 (90.2)"
    with refused("unknown-source"):
        gr.table1(3, site="hospital")


def test_a_run_equals_the_table_of_pooled_rows_with_secure_aggregation_too(frame, tmp_path):
    request = TableRequest("hospital", group="disease", nonnormal=("cholesterol", "st_depression"))
    table = Table.from_pandas(frame)
    terms, _ = choose_terms(table, request)
    sites = {name: read_rows(part, terms) for name, part in split_sites(table, "hospital").items()}
    expected = fit_in_memory(fit_table_one(terms), sites, ANSWERS)
    options = {"site": "hospital", "group": "disease", "nonnormal": request.nonnormal}
    clear = gr.table1(frame, out=tmp_path / "clear", **options)
    assert clear == expected
    secure = gr.table1(frame, out=tmp_path / "secure", secure=True, **options)
    assert secure.rows() == expected.without_sites().rows(), "every printed digit, and no column of a site"
    summary = gr.load_run(tmp_path / "secure").summary
    assert summary["statistic"]["exchanges"]["count"] == expected.exchanges == 5


def test_a_run_without_groups(frame, tmp_path):
    table = gr.table1(frame, site="hospital", columns=["age"], out=tmp_path / "run")
    assert [c.kind for c in table.columns] == ["overall", *["site"] * 4] and table.group == ""
    assert table.cell("age").mean == pytest.approx(frame["age"].mean(), rel=1e-12)


def test_rows_without_a_group_are_left_out(frame, tmp_path):
    rows = frame.copy()
    rows.loc[rows.index[:20], "disease"] = None
    table = gr.table1(rows, site="hospital", group="disease", columns=["age"], out=tmp_path / "run")
    assert table.columns[0].n == 900 and table.groups == ("no", "yes")
    assert table.notes == ("rows without a value of 'disease', which are left out: 20",)
