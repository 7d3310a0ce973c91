"""A hospital of a deployed consortium looks at its own patients: its own file, the server's run folder, and nobody's rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grandrounds.capabilities.cases.case import explain_case
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.data.image_files import read_npz
from grandrounds.runs.run import Run
from tests.capabilities.cases.at_hospitals import deployed, own_files
from tests.capabilities.console.conftest import Signed, known_users
from tests.store import copied, shared_folder
from tests.support import bright_squares, patients, refused

NET = {"model": {"name": "mlp", "hidden": [6]}}
RUNS = {"common": {}, "net": NET, "apart": {**NET, "method": {"name": "local", "rounds": 2}}}
ABOUT_ONE = ("", "/what-if", "/others", "/figure", "/picture")


@shared_folder
def home(root: Path) -> None:
    table = patients([80, 60, 40])
    own_files(root, table)
    for name, settings in RUNS.items():
        deployed(root / "runs" / name, table, **settings)


def console(root, site: str, data) -> tuple[Signed, str]:
    """A console of a hospital, and what it says at its start."""
    users, tokens = known_users()
    run_index = RunIndex(root / "runs")
    cases = SiteCases(run_index, site, data=str(data))
    said = cases.check()
    return Signed(create_app(AppState(run_index, users, cases=cases)), tokens), said


@pytest.fixture(scope="module")
def clinician(home):
    signed, said = console(home, "b", home / "b.csv")
    assert said == "60 patients of b from b.csv"
    return signed.client("clinician")


def listed(client, run: str) -> list[dict]:
    pages = client.get("/api/case/patients", params={"run": run}).json()["pages"]
    asked = (client.get("/api/case/patients", params={"run": run, "page": k + 1, "sort": "row"}) for k in range(pages))
    return [p for page in asked for p in page.json()["patients"]]


@pytest.mark.parametrize("run", RUNS)
def test_every_patient_of_the_file_is_listed_scored_and_explained(clinician, home, run):
    held, rows = Run(home / "runs" / run), pd.read_csv(home / "b.csv")
    shown = listed(clinician, run)
    assert [p["case"] for p in shown] == list(range(1, 61)) and {p["part"] for p in shown} == {None}
    assert [p["risk"] for p in shown] == pytest.approx(held.model_for("b").predict(rows).risk.tolist())
    assert [p["outcome"] for p in shown] == [str(int(word)) for word in rows["died"]]
    told = clinician.get("/api/case", params={"run": run, "case": 12}).json()
    known = explain_case(held, 12, table=str(home / "b.csv"), site="b")
    assert told["record"] == {**json.loads(json.dumps(known.to_dict())), "site": "b"}
    record = told["record"]
    parts = record["base"] + sum(step["contribution"] for step in record["waterfall"])
    assert parts == pytest.approx(record["score"]) and told["band"]["rows"] > 0
    trained = sum(site["train"] for site in held.summary["rows"].values())
    assert record["percentiles"]["patients"] == trained > 100
    reasons = [*record["amplifiers"], *record["mitigators"]]
    assert any(0 < r["percentile"] < 100 for r in reasons if r["percentile"] is not None)
    if run == "common":
        assert record["start"] == f"the mean of the {trained} training patients of all sites"
    else:
        assert record["start"] == "the mean of 59 other rows of b.csv"
        assert "other hospitals' patients are not among them" in told["first"][-1]
    page = clinician.get("/case", params={"run": run, "case": 12})
    assert page.status_code == 200 and record["start"] in page.text
    assert ("patients are not among them" in page.text) == (run != "common")
    assert "Row 12 of b.csv" in page.text and str(home) not in page.text


def test_a_what_if_moves_from_the_same_start(clinician, home):
    held, row = Run(home / "runs" / "net"), pd.read_csv(home / "b.csv").iloc[[11]]
    asks = {"run": "net", "case": 12}
    before = clinician.get("/api/case", params=asks).json()["record"]
    told = clinician.post("/api/case/what-if", params=asks, json={"lactate": 4.5}).json()
    assert told["after"] == pytest.approx(float(held.model.predict(row.assign(lactate=4.5)).risk[0]), abs=1e-7)
    gained = np.log(told["after"] / (1 - told["after"])) - before["score"]
    assert sum(r["change"] for r in told["reasons"]) == pytest.approx(gained, abs=0.01), "paths are followed in steps"


def test_other_sites_models_are_asked_and_what_counts_elsewhere_is_shown(clinician, home):
    told = clinician.get("/api/case/others", params={"run": "apart", "case": 12}).json()
    assert [m["sites"] for m in told["models"]] == [["b"], ["a"], ["c"]]
    for model in told["models"]:
        held = explain_case(Run(home / "runs" / "apart"), 12, table=str(home / "b.csv"), site=model["sites"][0])
        assert model["probability"] == pytest.approx(held.probability)
        assert model["reasons"] == pytest.approx({r.column: r.contribution for r in held.attributions})
    recorded = clinician.get("/api/case/others", params={"run": "net", "case": 12}).json()["recorded"]
    assert [b["figure"] for b in recorded] == ["elsewhere-deployed"]
    for run, name in (("apart", "by-model"), ("net", "elsewhere-deployed"), ("net", "waterfall")):
        assert clinician.get("/api/case/figure", params={"run": run, "case": 12, "figure": name}).status_code == 200


def test_nobody_elses_row_can_be_reached_and_the_run_folder_holds_none(clinician, home, tmp_path):
    theirs = pd.read_csv(home / "a.csv")["lactate"].dropna().to_numpy()
    for run in RUNS:
        asks = {"run": run, "case": 61, "figure": "waterfall"}
        for path in ("/case", *(f"/api/case{rest}" for rest in ABOUT_ONE)):
            to = clinician.post if path.endswith("/what-if") else clinician.get
            assert to(path, params=asks).status_code in (404, 422), path
        held = b"".join(p.read_bytes() for p in (home / "runs" / run).rglob("*") if p.is_file())
        assert not any(repr(float(v)).encode() in held or v.tobytes() in held for v in theirs)
    copied(home / "runs", tmp_path / "runs")  # what a hospital has: the folder, and its own file
    shutil.copy(home / "b.csv", tmp_path)
    alone = console(tmp_path, "b", tmp_path / "b.csv")[0].client("clinician")
    asks = {"run": "net", "case": 12}
    assert alone.get("/api/case", params=asks).json() == clinician.get("/api/case", params=asks).json()


def test_a_file_of_one_patient_is_listed_and_a_net_asks_for_more(home, tmp_path):
    pd.read_csv(home / "b.csv").head(1).to_csv(tmp_path / "one.csv", index=False)
    client = console(home, "b", tmp_path / "one.csv")[0].client("clinician")
    assert [len(listed(client, run)) for run in RUNS] == [1, 1, 1]
    for path in ("/api/case", "/case", "/api/case/others"):
        answer = client.get(path, params={"run": "net", "case": 1})
        assert answer.status_code == 422 and "no other row of one.csv: give a file with more" in answer.text
        assert client.get(path, params={"run": "common", "case": 1}).status_code == 200


def test_a_hospital_that_took_no_part_is_answered_too(home):
    client = console(home, "elsewhere", home / "c.csv")[0].client("clinician")
    told = client.get("/api/case", params={"run": "net", "case": 5}).json()
    assert "elsewhere took no part in this run" in told["first"]
    assert told["record"]["start"] == "the mean of 39 other rows of c.csv"


def test_without_a_file_the_console_says_what_it_needs(home):
    run_index = RunIndex(home / "runs")
    with refused("missing-site-data", match="--site b.*--data"):
        SiteCases(run_index, "b").check()
    with refused("missing-site-data", match="run 'net'"):
        SiteCases(run_index, "b").open("net")


def test_pictures_of_a_hospital_are_shown_with_their_heat_maps(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    pictures = read_npz(bright_squares(tmp_path / "squares.npz", 48, ("north", "south"), purpose="deployed"))
    more = {"model": {"name": "small-cnn"}, "train": {"lr": 0.1, "batch": 16}, "engine": {"device": "cpu"}}
    deployed(tmp_path / "runs" / "squares", pictures, method={"rounds": 1}, **more)
    own = pictures.take(np.flatnonzero(pictures.site == "south"))
    np.savez(tmp_path / "south.npz", images=own.pixels, label=own.label.astype(str))
    signed, said = console(tmp_path, "south", tmp_path / "south.npz")
    assert said == "24 patients of south from south.npz"
    client, asks = signed.client("clinician"), {"run": "squares", "case": 3}
    known = explain_case(Run(tmp_path / "runs" / "squares"), 3, table=str(tmp_path / "south.npz"))
    told = client.get("/api/case", params=asks).json()
    assert told["record"] == {**json.loads(json.dumps(known.to_dict())), "site": "south"} and told["band"]["rows"] > 0
    for layer in ("picture", *known.heats):
        answer = client.get("/api/case/picture", params={**asks, "layer": layer})
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/png"
    assert client.get("/case", params=asks).status_code == 200
    assert client.get("/api/case", params={**asks, "case": 25}).status_code == 404
