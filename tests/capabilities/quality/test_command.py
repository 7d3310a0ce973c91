"""`rounds quality` and the page of `rounds site check`."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from tests.cli.test_commands import refused as command_refused
from tests.command import rounds
from tests.support import patients


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    frame = pd.DataFrame(dict(patients([220, 200, 210, 190]).columns))
    frame.to_csv(folder / "clean.csv", index=False)
    odd = frame["hospital"] == "b"
    frame.loc[odd, "lactate"] *= 9.008
    frame.to_csv(folder / "patients.csv", index=False)
    frame[odd].drop(columns="hospital").to_csv(folder / "b.csv", index=False)
    done = rounds("site", "schema", "clean.csv", "--label", "died", "--site", "hospital", "--quantiles", cwd=folder)
    (folder / "consortium.toml").write_text(done.stdout)
    return folder


def test_sites_are_compared_and_the_page_names_the_unit(home):
    done = rounds("quality", "patients.csv", "--site", "hospital", "--schema", "consortium.toml", "--out", "run",
                  "--html", "sites.html", cwd=home)  # fmt: skip
    assert done.returncode == 1 and "1 of 4 sites differ from all others; largest: b in lactate" in done.stdout
    page = (home / "sites.html").read_text()
    assert "looks like mg/dL where mmol/L is agreed" in page and "Distance of each site from the others" in page
    again = rounds("quality", "run", "--json", cwd=home)
    assert json.loads(again.stdout)["findings"][0]["site"] == "b"
    assert "differ from all others" in rounds("show", "run", cwd=home).stdout
    assert rounds("audit", "verify", "run", cwd=home).returncode == 0


def test_equal_sites_end_with_success(home):
    done = rounds("quality", "clean.csv", "--site", "hospital", "--label", "died", "--out", "clean", cwd=home)
    assert done.returncode == 0 and "No site differs from all others: 4 sites, 820 rows." in done.stdout


def test_a_site_checks_its_table_with_a_page_and_against_secure_totals(home):
    done = rounds("quality", "patients.csv", "--site", "hospital", "--schema", "consortium.toml", "--secure", "--out", "secure",
                  "--json", cwd=home)  # fmt: skip
    assert done.returncode == 0 and json.loads(done.stdout)["by_site"] == []
    (home / "totals.json").write_text(done.stdout)
    found = rounds("site", "check", "--data", "b.csv", "--schema", "consortium.toml", "--totals", "totals.json",
                   "--html", "check.html", cwd=home)  # fmt: skip
    assert found.returncode == 1 and "differs: lactate: looks like mg/dL" in found.stdout
    assert "stays here: check.html" in found.stdout
    page = (home / "check.html").read_text()
    assert "Compared with the totals of the consortium" in page and "It stays at the hospital" in page
    assert (home / "check.html").stat().st_mode & 0o077 == 0, "it may contain values of patients"
    plain = json.loads(rounds("site", "check", "--data", "b.csv", "--schema", "consortium.toml", "--json", cwd=home).stdout)
    assert not plain["fits"] and {"level": "error", "code": "units", "column": "lactate"} in plain["leaves"]


def test_a_plan_for_hospitals_has_the_bins_of_the_schema(home):
    done = rounds("quality", "--schema", "consortium.toml", "--plan", "quality.toml", "--epsilon", "2", cwd=home)
    assert done.returncode == 0 and "rounds server submit quality.toml" in done.stdout
    text = (home / "quality.toml").read_text()
    assert "[method.quality.bins.lactate]" in text and "epsilon = 2" in text and 'encoding = "public"' in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("quality", "patients.csv", "--site", "nowhere", "--label", "died"), "[site-not-set]"),
        (("quality", "patients.csv", "--site", "hospital"), "[label-not-set]"),
        (("quality", "--plan", "q.toml"), "[missing-option]"),
        (("quality", "patients.csv", "--site", "hospital", "--label", "died", "--years", "soon"), "[bad-option]"),
        (("site", "check", "--data", "b.csv", "--schema", "consortium.toml", "--totals", "b.csv"), "[unreadable-file]"),
    ],
)
def test_a_wrong_call_is_refused_in_a_sentence(home, words, code):
    command_refused(rounds(*words, cwd=home), code)
