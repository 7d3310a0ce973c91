"""Pictures of a hospital in its console: layers as PNGs, their numbers, whose they are, and how they lie over each other."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.case import explain_case
from grandrounds.capabilities.cases.image import SAME_ANSWER
from grandrounds.capabilities.cases.image_page import image_case_page, to_display
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.core.arrays import save
from grandrounds.data.image_files import read_npz
from grandrounds.methods.guard.candidates import MAJORITY
from grandrounds.methods.guard.site import FILE, digest_model
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.store import copied, shared_folder
from tests.support import bright_squares

pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image")

RUNS = {"common": {"rounds": 2}, "apart": {"name": "local", "rounds": 1}}


@shared_folder
def hospitals(root: Path) -> None:
    """Two runs on bright squares of three sites, with a truth mask of each."""
    made = np.load(bright_squares(root / "plain.npz", 90, ("north", "south", "west"), purpose="pictures"))
    np.savez(root / "squares.npz", **made, masks=made["images"][..., 0] > 120)
    base = {
        "data": {"table": str(root / "squares.npz")},
        "model": {"name": "small-cnn"},
        "train": {"lr": 0.1, "batch": 16},
        "engine": {"device": "cpu"},
    }
    for name, method in RUNS.items():
        gr.run(gr.Experiment.parse({**base, "method": method}), out=root / "runs" / name)


@pytest.fixture(scope="module")
def app_state(hospitals):
    users, tokens = known_users()
    run_index = RunIndex(hospitals / "runs")
    return AppState(run_index, users, cases=SiteCases(run_index, "south")), tokens


@pytest.fixture(scope="module")
def clinician(app_state):
    return Signed(create_app(app_state[0]), app_state[1]).client("clinician")


def first(client, run: str) -> int:
    return client.get("/api/case/patients", params={"run": run}).json()["patients"][0]["case"]


def pixels(client, run: str, case: int, layer: str, **more) -> np.ndarray:
    answer = client.get("/api/case/picture", params={"run": run, "case": case, "layer": layer, **more})
    assert answer.headers["content-type"] == "image/png" and answer.headers["cache-control"] == "no-store"
    return np.asarray(image.open(io.BytesIO(answer.content)))


def test_a_pictures_record_and_layers_are_those_of_rounds_explain(clinician, hospitals):
    number = first(clinician, "common")
    case = explain_case(gr.load_run(hospitals / "runs" / "common"), number)
    told = clinician.get("/api/case", params={"run": "common", "case": number}).json()
    assert told["record"] == json.loads(json.dumps(case.to_dict()))
    assert [layer["name"] for layer in told["layers"]] == [*case.heats, "mask"]
    assert told["layers"][2]["inside"] == pytest.approx(case.numbers["integrated_gradients"].inside)
    assert list(told["classes"].values()) == sorted(case.probabilities, reverse=True)
    np.testing.assert_array_equal(pixels(clinician, "common", number, "picture"), to_display(case.pixels))
    mask = pixels(clinician, "common", number, "mask")
    times = len(mask) // len(case.mask)
    np.testing.assert_array_equal(mask[times // 2 :: times, times // 2 :: times, 3] > 0, case.mask)
    heat = case.heats["integrated_gradients"]
    drawn = pixels(clinician, "common", number, "integrated_gradients").astype(float).sum(axis=2)
    hottest = np.unravel_index(np.abs(heat).argmax(), heat.shape)
    assert drawn[tuple(times * k + times // 2 for k in hottest)] > 0.9 * drawn.max()


def test_a_hospital_without_a_model_has_no_heat_map(hospitals, tmp_path):
    copied(hospitals / "runs" / "common", tmp_path / "runs" / "common")
    theta = np.asarray(gr.load_run(tmp_path / "runs" / "common").model.theta)
    facts = {"site": "south", "choice": MAJORITY, "common_sha256": digest_model(theta)}
    folder = tmp_path / "runs" / "common" / "at_sites" / "south"
    folder.mkdir(parents=True)
    save(folder / FILE, {"deployed": np.zeros_like(theta)}, facts)
    run_index, (users, tokens) = RunIndex(tmp_path / "runs"), known_users()
    clinician = Signed(create_app(AppState(run_index, users, cases=SiteCases(run_index, "south"))), tokens).client("clinician")
    number = first(clinician, "common")
    told = clinician.get("/api/case", params={"run": "common", "case": number}).json()
    assert told["record"]["by"].startswith("no model") and told["record"]["heat"] == {}
    assert SAME_ANSWER in told["notes"] and [layer["name"] for layer in told["layers"]] == ["mask"]
    page = clinician.get("/case", params={"run": "common", "case": number}).text
    assert "Heat maps" not in page and SAME_ANSWER in page
    case = explain_case(gr.load_run(tmp_path / "runs" / "common"), number)
    assert not case.heats and "Heat maps" not in image_case_page(case)


def test_another_sites_picture_is_not_there(clinician, hospitals):
    sites = read_npz(hospitals / "squares.npz").site
    theirs = int(np.flatnonzero(sites == "north")[0]) + 1
    for path in ("/case", "/api/case", "/api/case/picture", "/api/case/others"):
        assert clinician.get(path, params={"run": "common", "case": theirs}).status_code == 404, path
    numbers = [p["case"] for p in clinician.get("/api/case/patients", params={"run": "common"}).json()["patients"]]
    assert numbers and all(sites[n - 1] == "south" for n in numbers)


def test_what_a_picture_has_not_is_refused_in_words(clinician):
    asks = {"run": "common", "case": first(clinician, "common")}
    for path, more, status in (
        ("/api/case/picture", {"layer": "../picture"}, 404),
        ("/api/case/picture", {"by": "north"}, 404),  # there is one common model
        ("/api/case/figure", {"figure": "waterfall"}, 422),
    ):
        answer = clinician.get(path, params={**asks, **more})
        assert answer.status_code == status and answer.json()["error"]
    answer = clinician.post("/api/case/what-if", params=asks, json={"age": 3})
    assert answer.status_code == 422 and answer.json()["error"]


def test_each_sites_own_net_is_asked_about_the_picture(clinician, hospitals):
    number = first(clinician, "apart")
    told = clinician.get("/api/case/others", params={"run": "apart", "case": number}).json()
    run = gr.load_run(hospitals / "runs" / "apart")
    assert [m["sites"] for m in told["models"]] == [["south"], ["north"], ["west"]]
    for model in told["models"]:
        assert model["probability"] == pytest.approx(explain_case(run, number, site=model["sites"][0]).probability)
    by = [pixels(clinician, "apart", number, "integrated_gradients", by=site) for site in ("north", "west")]
    assert (by[0] != by[1]).any()


def test_heat_lies_over_the_picture_as_strongly_as_the_slider_says(chromium, app_state, clinician):
    for console in serving(*app_state):
        context = chromium.new_context(viewport={"width": 820, "height": 1180})
        page = context.new_page()
        page.set_default_timeout(30_000)
        window = Window(page, console.url)
        window.sign_in(app_state[1]["clinician"])
        for run, layers in (("common", 4), ("apart", 7)):
            window.go(f"/case?run={run}&case={first(clinician, run)}")
            window.until("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
            over = page.locator(".panel .over")
            opacity = "all => all.map(i => getComputedStyle(i).opacity)"
            assert over.evaluate_all(opacity) == ["0.6"] * layers
            page.fill(".panel[data-layer=normgrad] input", "25")
            assert over.evaluate_all(opacity)[:3] == ["0.6", "0.25", "0.6"]
            page.fill("#opacity", "0")
            assert over.evaluate_all(opacity) == ["0"] * layers
            wide = "document.documentElement.scrollWidth"
            assert page.evaluate(f"() => {wide}") <= 820
        assert window.wrong == []
        context.close()
