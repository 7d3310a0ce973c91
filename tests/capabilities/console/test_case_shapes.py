"""A patient of an additive model and of a risk card: the place on each shape, the filled-in card, and what if."""

from __future__ import annotations

from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.case_shapes import meets
from grandrounds.models.risk_card import Term, show_risk
from tests.capabilities.console.conftest import Signed, known_users
from tests.runs.test_run import frame
from tests.store import shared_folder
from tests.support import patients


@shared_folder
def folder(root: Path) -> None:
    """Runs of an additive model and of a risk card on patients of three hospitals."""
    frame(patients([70, 60, 50])).to_csv(root / "patients.csv", index=False)
    data = {"table": str(root / "patients.csv"), "label": "died", "site": "hospital"}
    for name, settings in (("gam", {}), ("card", {"method": {"card": {"terms": 5}}})):
        experiment = gr.Experiment.parse({"name": name, "data": data, "model": {"name": name}, **settings})
        gr.run(experiment, out=root / "runs" / name)


@pytest.fixture
def clinician(folder):
    users, tokens = known_users()
    run_index = RunIndex(folder / "runs")
    return Signed(create_app(AppState(run_index, users, cases=SiteCases(run_index, "b"))), tokens).client("clinician")


def test_the_dot_lies_on_the_shape_where_the_contribution_says(clinician):
    told = clinician.get("/api/case", params={"run": "gam", "case": 80}).json()
    columns = [s["column"] for s in told["shapes"]]
    assert columns and "This patient on each shape" in clinician.get("/case", params={"run": "gam", "case": 80}).text
    contributions = {a["column"]: a["contribution"] for a in (*told["amplifiers"], *told["mitigators"])}
    assert columns == sorted(columns, key=lambda c: -abs(contributions[c])), "the largest contribution first"
    place = {}
    for case in (80, 90):
        query = {"run": "gam", "case": case, "figure": "shape", "column": columns[0]}
        mark = clinician.get("/api/case/figure", params=query).json()["data"][-1]
        told = clinician.get("/api/case", params={"run": "gam", "case": case}).json()
        own = next(a["contribution"] for a in (*told["amplifiers"], *told["mitigators"]) if a["column"] == columns[0])
        assert mark["name"] == "this patient"
        place[case] = (mark["y"][0], own)
    (a, own_a), (b, own_b) = place.values()
    # a contribution is the effect less a mean over other patients; a curve has about forty values
    assert a - b == pytest.approx(own_a - own_b, abs=0.05 + 0.05 * abs(own_a - own_b))


def test_a_fit_from_sums_counts_exchanges_in_the_list_and_on_its_page(clinician):
    line = next(one for one in clinician.get("/api/runs").json() if one["name"] == "gam")
    assert line["is_exact"] and line["of"] == line["rounds"]
    told = f"{line['rounds']} exchanges"
    assert told not in clinician.get("/runs").text, "the list counts those of unfinished runs"
    page = " ".join(clinician.get("/run", params={"run": "gam"}).text.split())
    assert f'<span id="rounds">{line["rounds"]}</span> exchanges' in page and "learning rate" not in page


def test_a_column_without_a_shape_has_no_figure(clinician):
    for column in ("nothing", "hospital"):
        query = {"run": "gam", "case": 80, "figure": "shape", "column": column}
        assert clinician.get("/api/case/figure", params=query).status_code == 404


def test_what_if_takes_values_in_original_units(clinician):
    controls = {c["column"]: c for c in clinician.get("/api/case", params={"run": "gam", "case": 80}).json()["controls"]}
    assert 30 < controls["age"]["low"] < controls["age"]["high"] < 100
    answer = clinician.post("/api/case/what-if", params={"run": "gam", "case": 80}, json={"lactate": controls["lactate"]["high"]})
    told = answer.json()
    assert answer.status_code == 200 and [r["column"] for r in told["reasons"]] == ["lactate"]
    assert told["after"] != told["before"]


def test_the_filled_in_card_gives_the_risk_of_the_program(clinician):
    listed = clinician.get("/api/case/patients", params={"run": "card"}).json()["patients"]
    for patient in listed[::6]:
        told = clinician.get("/api/case", params={"run": "card", "case": patient["case"]}).json()
        filled = told["card"]
        assert filled["shown"] == show_risk(patient["risk"]) and told["shapes"] == []
        assert filled["total"] == sum(line["points"] for line in filled["lines"] if line["applies"])
    text = clinician.get("/case", params={"run": "card", "case": listed[0]["case"]}).text
    assert "This patient on the risk card" in text and f"<b>{show_risk(listed[0]['risk'])}</b>" in text


@pytest.mark.parametrize(
    "kind, value, met",
    [("at most", 40.0, [40.0]), ("above", 40.0, [40.1]), ("level", "typical", ["typical"]), ("missing", None, [None])],
)
def test_a_missing_value_meets_no_line_but_one_of_missing_values(kind, value, met):
    term = Term("line", "age", kind, value, 1)
    assert [v for v in (40.0, 40.1, "typical", "other", None) if meets(term, v)] == met
