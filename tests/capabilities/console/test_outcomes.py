"""Runs that predict a number or the time to an event: pages have the words and metrics of the task, and none of classes."""

from __future__ import annotations

from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.cases.test_outcome import LABELS, table
from tests.capabilities.console.conftest import Signed, known_users
from tests.store import shared_folder

OF_CLASSES = ("AUROC", "accuracy", "threshold", "majority", "log-odds", "flagged")
MAIN = {"regression": "R2", "survival": "C-index"}


@shared_folder
def root(root: Path) -> None:
    """Runs of each task, descriptions of the patients, and a watch."""
    table().to_csv(root / "t.csv", index=False)
    for task in MAIN:
        data = {"table": str(root / "t.csv"), "site": "hospital", "features": ["age", "sex"], **LABELS[task]}
        told = {"name": task, "data": data, "method": {"rounds": 2}, "evaluation": {"subgroup": "sex"}}
        gr.run(gr.Experiment.parse(told), out=root / "runs" / task)
    described = {"table": str(root / "t.csv"), "site": "hospital", "label": "died"}
    for method in ("table1", "survival"):
        data = {**described, **({"duration": "time"} if method == "survival" else {})}
        told = {"name": method, "data": data, "method": {"name": method, "exact": {"group": "sex"}}}
        gr.run(gr.Experiment.parse(told), out=root / "runs" / f"of-{method}")
    gr.watch_consortium(root / "runs" / "regression", out=root / "runs" / "of-watch")


@pytest.fixture(scope="module")
def client(root):
    users, tokens = known_users()
    run_index = RunIndex(root / "runs")
    return Signed(create_app(AppState(run_index, users, cases=SiteCases(run_index, "b"))), tokens).client("all")


@pytest.mark.parametrize("task", MAIN)
def test_the_page_of_a_run(client, task):
    text = client.get("/run", params={"run": task, "section": "hospitals"}).text
    assert f"Sites, lowest {MAIN[task]} first" in text and "<h2>Subgroups</h2>" in text
    assert not [word for word in OF_CLASSES if word in text]
    head = client.get("/api/run", params={"run": task}).json()
    assert head["task"] == task and head["tiles"][0][0] == MAIN[task]
    for figure in head["figures"]:
        assert client.get("/api/run/figure", params={"run": task, "figure": figure["name"]}).status_code == 200
    listed = {line["name"]: line for line in client.get("/api/runs").json()}
    assert listed[task]["headline"].startswith(MAIN[task])


@pytest.mark.parametrize("task", MAIN)
def test_the_page_of_a_patient(client, task):
    told = client.get("/api/case/patients", params={"run": task}).json()
    first = told["patients"][0]
    assert told["prediction"].endswith(LABELS[task]["label"]) and told["threshold"] is None and first["verdict"] is None
    text = client.get("/case", params={"run": task, "case": first["case"]}).text
    assert "Contributions of columns" in text and not [word for word in OF_CLASSES if word in text]
    query = {"run": task, "case": first["case"]}
    record = client.get("/api/case", params=query).json()["record"]
    assert record["task"] == task
    if task == "regression":
        assert record["prediction"] == pytest.approx(first["risk"], rel=1e-5)
    figure = client.get("/api/case/figure", params={**query, "figure": "waterfall"})
    assert figure.status_code == 200 and "Contributions to the" in figure.json()["layout"]["title"]["text"]
    refused = client.get("/api/case/others", params=query)
    assert refused.status_code == 422 and "compared for classes" in refused.json()["error"]


def test_runs_of_one_task_are_compared_by_its_metrics(client):
    text = client.get("/compare", params={"run": ["regression", "regression"]}).text
    assert "R2" in text and "AUROC" not in text


WATCHED = "Features that moved, by number of sites"


@pytest.mark.parametrize("method, title", [("table1", "Table 1 by sex"), ("survival", "Survival"), ("watch", WATCHED)])
def test_a_run_without_a_model_has_its_table_and_no_scores(client, method, title):
    name = f"of-{method}"
    text = client.get("/run", params={"run": name, "section": "estimates"}).text
    assert f"<h2>{title}</h2>" in text and not [word for word in OF_CLASSES if word in text]
    told = client.get("/api/run/tables", params={"run": name}).json()
    assert told[0]["title"] == title and told[0]["rows"] and len(told) == (3 if method == "watch" else 1)
    figures = [f["name"] for f in client.get("/api/run", params={"run": name}).json()["figures"]]
    assert ("survival" in figures) == (method == "survival")
    for figure in figures:
        assert client.get("/api/run/figure", params={"run": name, "figure": figure}).status_code == 200
