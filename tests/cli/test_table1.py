"""`rounds table1` and `gr.table1`."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.data.sets import heart
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
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Table 1 by disease\n") and "Kruskal-Wallis" in done.stdout
    rows = {(r["variable"], r["level"]): r for r in csv.DictReader((tmp_path / "t.csv").open())}
    age = frame["age"]
    assert rows["age", "mean (SD)"]["Overall"] == f"{age.mean():.1f} ({age.std():.1f})"
    q1, median, q3 = frame["cholesterol"].quantile([0.25, 0.5, 0.75])
    assert rows["cholesterol", "median [Q1, Q3]"]["Overall"] == f"{median:.1f} [{q1:.1f}, {q3:.1f}]"
    assert (tmp_path / "t.tex").read_text().startswith("\\begin{tabular}")


def test_a_data_set_has_its_own_site_column():
    done = rounds("table1", "heart", "--columns", "age", "--json")
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


def test_a_column_without_values(frame):
    table = gr.table1(frame.assign(empty=np.nan), site="hospital", columns=["age", "empty"])
    assert table.left_out == {"empty": "no value in any row"} and "empty is left out" in table.summary()
    with refused("no-columns"):
        gr.table1(frame.assign(empty=np.nan), site="hospital", columns="empty")


def test_python_takes_a_frame_a_path_and_a_data_set(frame, path):
    options = {"columns": ("age", "sex", "chest_pain"), "group": "disease"}
    tables = [gr.table1(d, site="hospital", **options) for d in (frame, path, str(path))]
    assert tables[0] == tables[1] == tables[2] == gr.table1("heart", **options)
    assert isinstance(tables[0], gr.TableOne)
    assert tables[0].to_frame().loc[("sex, n (%)", "male"), "yes"] == "459 (90.2)"
    with refused("unknown-source"):
        gr.table1(3, site="hospital")
