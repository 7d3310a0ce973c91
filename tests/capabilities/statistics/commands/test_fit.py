"""`rounds fit`: the printed table holds the numbers of statsmodels, and wrong input ends with one sentence and exit code 2."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.capabilities.statistics.pooled_regressions import NUMBERS, WORDS, complete, heart, raw_design
from tests.command import rounds

FEATURES = ",".join([*NUMBERS, *WORDS])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The heart data set as a user's file."""
    path = tmp_path_factory.mktemp("fit") / "patients.csv"
    heart().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def fitted(table):
    """The command of the manual, and the files that it wrote."""
    options = "--label", "disease", "--site", "hospital", "--features", FEATURES, "--intercept", "common"
    files = "--csv", table.parent / "c.csv", "--latex", table.parent / "c.tex"
    done = rounds("fit", "glm", "--table", table, *options, *files, "--out", table.parent / "run")
    assert done.returncode == 0, done.stderr
    return done


def test_the_table_holds_the_numbers_of_statsmodels(fitted):
    import statsmodels.api as sm

    frame = complete(heart(), [*NUMBERS, *WORDS])
    y = (frame["disease"] == "yes").astype(float)
    pooled = sm.GLM(y, raw_design(frame, NUMBERS, WORDS), sm.families.Binomial()).fit(tol=1e-13)
    lines = fitted.stdout.splitlines()
    ends = pooled.conf_int()
    for name in pooled.params.index:
        line = next(row for row in lines if row.startswith(f"{name} ") and row.count(".") >= 6)
        cells = line[len(name) :].split()
        expected = pooled.params[name], pooled.bse[name], pooled.tvalues[name]
        np.testing.assert_allclose([float(c) for c in cells[:3]], expected, rtol=6e-3, atol=6e-5)
        np.testing.assert_allclose([float(c) for c in cells[4:6]], ends.loc[name], rtol=6e-3, atol=6e-5)
    for words in ("Logistic regression", "disease", f"{len(frame):,}", f"{pooled.llf:,.2f}", f"{pooled.aic:,.2f}"):
        assert words in fitted.stdout


def test_it_tells_exchanges_rows_left_out_and_the_folder(fitted, table):
    assert "exchange 1, " in fitted.stderr
    assert "Reference levels: sex=female, chest_pain=asymptomatic" in fitted.stdout
    assert "rows with a missing value were left out" in fitted.stdout
    assert f"run folder: {table.parent / 'run'}" in fitted.stdout


def test_files_are_written(fitted, table):
    rows = list(csv.DictReader((table.parent / "c.csv").open()))
    assert rows[0]["name"] == "(intercept)" and len(rows) == 8
    assert r"\toprule" in (table.parent / "c.tex").read_text()


def test_show_prints_the_table_again(fitted, table):
    done = rounds("show", table.parent / "run")
    start = fitted.stdout.index("Logistic regression")
    block = fitted.stdout[start : fitted.stdout.index("disclosure:")]
    assert block in done.stdout


def test_the_page_shows_what_the_command_prints(tmp_path):
    page = (Path(__file__).parents[4] / "docs" / "exact.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("$ rounds fit glm heart"))
    done = rounds(*command.split()[2:], cwd=tmp_path)
    assert done.stdout in page
    assert len(page.split()) <= 2200


def test_json_and_quiet(table, tmp_path):
    options = "--label", "disease", "--site", "hospital", "--features", "age,sex"
    done = rounds("fit", "glm", table, *options, "--json", "--out", tmp_path / "a")
    assert json.loads(done.stdout)["estimates"]["original"]["model"] == "logistic" and not done.stderr
    done = rounds("fit", "glm", table, *options, "--quiet", "--out", tmp_path / "b")
    assert done.stdout.strip() == str(tmp_path / "b")


@pytest.fixture(scope="module")
def survival(tmp_path_factory):
    """The lung cancer rows that come with lifelines, as a user's file."""
    from lifelines.datasets import load_lung

    path = tmp_path_factory.mktemp("cox") / "lung.csv"
    load_lung().dropna(subset=["inst"]).to_csv(path, index=False)
    return path


def test_cox_prints_hazard_ratios_of_lifelines(survival, tmp_path):
    from lifelines import CoxPHFitter

    options = "--time", "time", "--event", "status", "--site", "inst", "--features", "age,sex,ph.ecog"
    done = rounds("fit", "cox", "--table", survival, *options, "--csv", tmp_path / "c.csv", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    columns = ["time", "status", "inst", "age", "sex", "ph.ecog"]
    frame = pd.read_csv(survival)[columns].dropna()
    pooled = CoxPHFitter().fit(frame, "time", "status", strata=["inst"], fit_options={"precision": 1e-12})
    rows = {r["name"]: r for r in csv.DictReader((tmp_path / "c.csv").open())}
    for name, coefficient in pooled.params_.items():
        assert float(rows[name]["coef"]) == pytest.approx(coefficient, rel=1e-6)
        assert float(rows[name]["hazard_ratio"]) == pytest.approx(np.exp(coefficient), rel=1e-6)
    assert "hazard ratio" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("glm",), "--table"),
        (("glm", "--table", "TABLE"), "--label"),
        (("glm", "--table", "TABLE", "--label", "disease", "--features", "agee"), "agee"),
        (("glm", "--table", "TABLE", "--label", "disease", "--family", "gamma"), "gamma"),
        (("glm", "--table", "TABLE", "--formula", "disease ~ log(age)"), "log"),
        (("glm", "--table", "TABLE", "--formula", "disease ~ age", "--features", "age"), "formula"),
        (("glm", "--table", "TABLE", "--label", "age", "--features", "sex"), "--family"),
        (("glm", "--table", "TABLE", "--label", "disease", "--features", "age", "--ridge", "-1"), "ridge"),
        (("glm", "--table", "TABLE", "--label", "disease", "--features", "age", "--errors", "lines"), "errors"),
        (
            ("glm", "--table", "TABLE", "--label", "disease", "--features", "age", "--set", "privacy.epsilon=1"),
            "DP|epsilon",
        ),
        (("cox", "--table", "TABLE", "--features", "age"), "--event"),
        (("cox", "--table", "TABLE", "--event", "disease", "--features", "age"), "--time"),
        (("cox", "--table", "TABLE", "--event", "disease", "--time", "age", "--ridge", "much"), "--ridge"),
        (("cox", "--table", "TABLE", "--formula", "disease ~ age"), "Surv"),
        (("cox", "--table", "TABLE", "--event", "disease", "--time", "age", "--baseline", "none"), "baseline"),
        (("glm", "hearts", "--features", "age"), "heart"),
    ],
)
def test_wrong_input_ends_with_one_sentence(arguments, named, table, tmp_path):
    import re

    words = [str(table) if a == "TABLE" else a for a in arguments]
    done = rounds("fit", *words, "--site", "hospital", cwd=tmp_path)
    assert done.returncode == 2
    error = next(line for line in done.stderr.splitlines() if line.startswith("error:"))
    assert re.search(named, error), error
    assert "Traceback" not in done.stderr
