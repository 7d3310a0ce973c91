"""Pages of hospitals and thresholds: orders with intervals, hospitals that only trained, the slider, and what a run may show."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.report import EVIL
from tests.store import copied, shared_folder
from tests.support import patients, without_ledger

DATA = {"label": "died", "site": "hospital"}


@shared_folder
def folder(root: Path) -> None:
    """Runs of four hospitals: in the clear with a threshold of its own, by secure sums, and with a hospital that only trained."""
    table = patients([300, 240, 200, 160])
    clear = {"name": "clear", "data": DATA, "method": {"rounds": 2}, "explain": {"every": 1}}
    gr.run(gr.Experiment.parse({**clear, "evaluation": {"threshold": "youden"}}), table=table, out=root / "clear")
    secure = {"name": "secure", "data": DATA, "method": {"rounds": 2}, "privacy": {"secure": True}}
    gr.run(gr.Experiment.parse(secure), table=table, out=root / "secure")
    untested = {"name": "untested", "data": DATA, "split": {"test": 0.0}, "method": {"rounds": 1}}
    gr.run(gr.Experiment.parse(untested), table=table, out=root / "untested")
    shutil.copytree(root / "clear", root / "trained")
    summary = json.loads((without_ledger(root / "trained") / "summary.json").read_text())
    summary["rows"]["trainer"] = {"train": 77, "val": 0, "test": 0}
    (root / "trained" / "summary.json").write_text(json.dumps(summary))


def console_of(folder: Path) -> Signed:
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(folder), users)), tokens)


@pytest.fixture
def hospital_console(folder):
    return console_of(folder)


def get(console, path, **query):
    return console.client("board").get(path, params=query)


def test_hospitals_are_ordered_by_auroc_gain_or_net_benefit_and_each_has_an_interval(hospital_console):
    for order, key in (("auroc", "score"), ("gain", "gain"), ("benefit", "benefit_gain")):
        found = get(hospital_console, "/api/v1/runs/clear/hospitals", sort=order).json()
        values = [h[key]["value"] for h in found["hospitals"]]
        assert values == sorted(values) and len(values) == 4
        assert all(h[key]["low"] <= h[key]["value"] <= h[key]["high"] for h in found["hospitals"])
    assert get(hospital_console, "/api/v1/runs/clear/hospitals", sort="accuracy").status_code == 422
    page = get(hospital_console, "/hospitals", run="clear", sort="gain").text
    assert "at a hospital that took no part (5 are needed)" in page and "Hospitals are never ordered by accuracy" in page


def test_search_and_pages_of_hospitals(hospital_console):
    assert [h["name"] for h in get(hospital_console, "/api/v1/runs/clear/hospitals", q="B").json()["hospitals"]] == ["b"]
    found = get(hospital_console, "/api/v1/runs/clear/hospitals", limit=3, page=2).json()
    assert (found["pages"], found["total"], len(found["hospitals"])) == (2, 4, 1)
    assert "No hospital has this name" in get(hospital_console, "/hospitals", run="clear", find="nobody").text


def test_a_hospital_that_only_trained_has_a_row_and_a_page(hospital_console):
    page = get(hospital_console, "/hospitals", run="trained").text
    assert "trainer" in page and "trained only: it has no test patients" in page
    own = get(hospital_console, "/hospital", run="trained", site="trainer")
    assert own.status_code == 200 and "77" in own.text and "trained only" in own.text
    assert get(hospital_console, "/hospital", run="trained", site="nobody").status_code == 404


def test_one_hospital_stands_beside_the_consortium(hospital_console, folder):
    found = get(hospital_console, "/api/v1/runs/clear/hospitals/a").json()
    summary = json.loads((folder / "clear" / "summary.json").read_text())
    shown = summary["per_site"]
    by_label = {row["label"]: row for row in found["rows"]}
    assert by_label["AUROC"]["hospital"]["value"] == shown["a"]["auroc"]
    assert by_label["accuracy of decisions"]["hospital"]["value"] == pytest.approx(shown["a"]["decision_accuracy"])
    assert by_label["observed / expected events"]["hospital"]["low"] > 0
    for name in found["figures"]:
        answer = get(hospital_console, "/api/v1/runs/clear/hospitals/a/figure", figure=name)
        assert answer.status_code == 200 and answer.json()["data"]
    assert set(found["figures"]) == {"importances", "weight"}


def test_decisions_at_each_threshold_agree_with_the_scores_of_the_run(hospital_console, folder):
    found = get(hospital_console, "/api/v1/runs/clear/thresholds").json()
    shown = json.loads((folder / "clear" / "summary.json").read_text())
    own = found["overall"]["steps"][found["overall"]["own"]]
    assert own["threshold"] == pytest.approx(found["threshold"])
    for key in ("sensitivity", "specificity", "ppv"):
        assert own[key]["value"] == pytest.approx(shown["final"][key])
    assert own["accuracy"]["value"] == pytest.approx(shown["final"]["decision_accuracy"])
    for curve in found["hospitals"]:
        step = curve["steps"][curve["own"]]
        assert step["sensitivity"]["value"] == pytest.approx(shown["per_site"][curve["name"]]["sensitivity"])
    steps = found["overall"]["steps"]
    assert all(a["sensitivity"]["value"] >= b["sensitivity"]["value"] for a, b in pairwise(steps))
    page = get(hospital_console, "/thresholds", run="clear").text
    assert "accuracy of these decisions" in page and "This is the run&#39;s threshold" in page


def test_under_secure_sums_thresholds_are_of_all_hospitals_only(hospital_console):
    found = get(hospital_console, "/api/v1/runs/secure/thresholds").json()
    assert found["hospitals"] == [] and "secure aggregation" in found["hidden"]
    page = get(hospital_console, "/thresholds", run="secure")
    assert "single hospitals have no figures at other thresholds" in page.text and 'id="each"' not in page.text
    assert get(hospital_console, "/thresholds", run="secure", site="a").status_code == 404
    assert get(hospital_console, "/api/v1/runs/secure/thresholds/figure", site="a").status_code == 404


def test_a_run_without_test_rows_has_no_thresholds(hospital_console):
    answer = get(hospital_console, "/thresholds", run="untested")
    assert answer.status_code == 200 and "No row was set aside for a test" in answer.text
    assert get(hospital_console, "/api/v1/runs/untested/thresholds").json() is None


def test_a_damaged_record_is_named(folder, tmp_path):
    damaged = without_ledger(copied(folder / "clear", tmp_path / "damaged"))
    summary = json.loads((damaged / "summary.json").read_text())
    summary["score_counts"]["all"]["events"] = [1]
    (damaged / "summary.json").write_text(json.dumps(summary))
    answer = get(console_of(tmp_path), "/thresholds", run="damaged")
    assert answer.status_code == 422 and "score counts cannot be read" in answer.text


def test_names_of_hospitals_are_escaped(signed):
    page = signed.client("board").get("/hospitals", params={"run": "plain"}).text
    assert EVIL not in page and "<bdi>" in page
    own = signed.client("board").get("/hospital", params={"run": "plain", "site": EVIL})
    assert own.status_code == 200 and EVIL not in own.text
    assert EVIL not in signed.client("board").get("/thresholds", params={"run": "plain"}).text


def test_the_slider_shows_the_decisions_at_each_threshold(chromium, folder):
    users, tokens = known_users()
    for console in serving(AppState(RunIndex(folder), users), tokens):
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        window = Window(context.new_page(), console.url)
        window.sign_in(tokens["board"])
        window.go("/thresholds?run=clear")
        window.until("document.getElementById('explorer').dataset.ready === 'yes'")
        before = window.page.inner_text("[data-key=sensitivity] b")
        assert window.page.is_disabled("#own")
        window.page.locator("#threshold").fill("1")
        low = window.page.inner_text("[data-key=sensitivity] b")
        assert float(low.rstrip("%")) >= float(before.rstrip("%"))
        assert "run's threshold" not in window.page.inner_text("#meaning")
        window.page.click("#own")
        assert window.page.inner_text("[data-key=sensitivity] b") == before
        window.drawn("thresholds")
        window.go("/hospitals?run=clear")
        window.drawn("hospitals")
        assert window.wrong == []
        context.close()


def test_figures_of_hospitals_are_in_the_catalogue(hospital_console):
    for figure in ("hospitals", "thresholds"):
        answer = get(hospital_console, "/api/run/figure", run="clear", figure=figure)
        assert answer.status_code == 200
        numbers = [x for trace in answer.json()["data"] for x in trace["x"]]
        assert np.isfinite(numbers).all()
