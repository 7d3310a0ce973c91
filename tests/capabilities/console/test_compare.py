"""Runs side by side: the figures of `rounds compare`, what cannot be compared, and what a paper prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.compare import Cell as Figure
from grandrounds.capabilities.console.views.compare import mark_best
from grandrounds.runs.run import load_run, run_plan
from grandrounds_studies import studies
from grandrounds_studies.results import Results
from grandrounds_studies.running import read
from grandrounds_studies.study import Cell
from tests.capabilities.console.conftest import DATA, Signed, Window, known_users, make_runs, serving
from tests.command import rounds
from tests.report import EVIL
from tests.store import copied, shared, shared_folder
from tests.support import patients

ARMS = [f"{method}-{seed}" for method in ("fedavg", "fedprox") for seed in (0, 1)]
CELL = Cell("logistic, lr 0.01", "FedAvg", 0)


@shared_folder
def root(root: Path) -> None:
    """Two methods with two seeds each, the comparison of them, a run of other data, and a study with one run."""
    table = patients([60, 50, 40])
    for name in ARMS:
        method, seed = name.split("-")
        told = {"name": "c", "seed": int(seed), "data": DATA, "method": {"name": method, "rounds": 2, "mu": 5.0}}
        gr.run(gr.Experiment.parse(told), out=root / name, table=table)
    done = rounds("compare", *(root / name for name in ARMS), "--out", root / "held", "--quiet")
    assert done.returncode == 0, done.stderr
    copied(shared(make_runs) / "plain", root / "plain")
    study = studies()["fedxchain/table-2"]
    run = run_plan(study.plan(CELL), out=root / "table-2" / "runs" / CELL.name)
    results = Results(study, {CELL: read(study, run)}, seeds=1)
    (root / "table-2" / "results.json").write_text(json.dumps(results.to_dict()))
    shutil.copytree(run.folder, root / "by-hand")


@pytest.fixture
def compared(root):
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(root), users)), tokens)


def by_arm(told):
    return {(a["label"], metric): cell for a in told["arms"] for metric, cell in a["cells"].items()}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("chosen", [{"run": ARMS}, {"comparison": "held"}])
def test_figures_are_those_of_the_command(compared, root, chosen):
    said = json.loads(rounds("compare", *(root / n for n in ARMS), "--json").stdout)
    told = compared.client("viewer").get("/api/compare", params=chosen).json()
    cells = by_arm(told)
    differences = {(d["arm"], d["metric"]): d for d in told["differences"]}
    assert told["first"] == said["first"] == "fedavg" and len(said["rows"]) == 12
    for row in said["rows"]:
        cell = cells[row["arm"], row["metric"]]
        assert (cell["mean"], cell["low"], cell["high"], cell["n"]) == (row["mean"], row["low"], row["high"], 2)
        assert cell["low"] is None and cell["over"] == "", "two runs have no interval"
        if row["arm"] != "fedavg":
            pair, found = row["paired_to_first"], differences[row["arm"], row["metric"]]
            assert [found[k] for k in ("difference", "low", "high", "p")] == [
                pair[k] for k in ("difference", "low", "high", "p")
            ]
    megabytes = [sum(load_run(root / n).summary["cost"][k] for k in ("bytes_down", "bytes_up")) / 1e6 for n in ARMS[:2]]
    assert cells["fedavg", "megabytes"]["mean"] == pytest.approx(sum(megabytes) / 2)
    assert cells["fedavg", "epsilon"]["mean"] is None and cells["fedavg", "epsilon"]["note"] == "nothing promised"


def test_the_best_of_a_column_is_marked_in_words_and_less_may_be_better(compared):
    client = compared.client("viewer")
    told = client.get("/api/compare", params={"run": ARMS}).json()
    cells = by_arm(told)
    for metric, best in (("log_loss", min), ("auroc", max)):
        means = {arm: cells[arm, metric]["mean"] for arm in ("fedavg", "fedprox")}
        assert means["fedavg"] != means["fedprox"]
        marked = [arm for arm in means if cells[arm, metric]["best"]]
        assert marked == [best(means, key=means.get)]
    page = client.get("/compare", params={"run": ARMS}).text
    assert page.count(">best</span>") == sum(c["best"] for c in cells.values()) > 0


def test_arms_that_read_the_same_are_both_best_and_a_count_of_harm_is_best_when_low():
    def marked(metric, *means):
        cells = [Figure(mean=mean) for mean in means]
        mark_best(metric, cells)
        return [cell.best for cell in cells]

    assert marked("training_drift", 0.0571, 0.0574, 0.09) == [True, True, False]
    assert marked("harmed_sites", 0.0, 2.0) == [True, False]
    assert marked("mean_nsds", 0.1, 0.2) == [False, False], "neither end is better"


def test_a_table_in_which_hospitals_alone_are_best_says_so(root, tmp_path):
    table = patients([60, 50, 40])
    for name, rate in (("fedavg", 1e-9), ("local", 0.1)):
        told = {"name": "c", "data": DATA, "method": {"name": name, "rounds": 1}, "train": {"lr": rate}}
        gr.run(gr.Experiment.parse(told), out=tmp_path / name, table=table)
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")
    view = client.get("/api/compare", params={"run": ["fedavg", "local"]}).json()
    assert "Nothing is known of chance" in view["conclusion"][0]
    assert "Hospitals alone" in view["conclusion"][1] and "log loss" in view["conclusion"][1]
    assert "there federation shows no gain" in client.get("/compare", params={"run": ["fedavg", "local"]}).text


def test_settings_that_differ_are_a_table_of_arms(compared):
    client = compared.client("viewer")
    found = client.get("/api/compare", params={"run": ARMS}).json()
    assert found["settings"] == [{"name": "method.name", "values": ["fedavg", "fedprox"]}], "not the seed, nor the name"
    page = client.get("/compare", params={"run": ARMS}).text
    assert "Settings that differ" in page and 'id="settings"' in page


def test_a_single_run_has_the_interval_of_its_own_summary(compared, root):
    view = compared.client("viewer").get("/api/compare", params={"run": ["fedavg-1"]}).json()
    assert view["notes"] == ["This is one run: choose a second one to compare it with."] and "intervals" not in view["figures"]
    cells = by_arm(view)
    final = load_run(root / "fedavg-1").summary["final"]
    cell = cells["fedavg", "auroc"]
    assert (cell["low"], cell["high"], cell["over"]) == (final["auroc_low"], final["auroc_high"], "test rows")
    assert cells["fedavg", "decision_accuracy"]["low"] is None


def test_arms_of_other_patients_have_no_paired_difference(tmp_path):
    table = patients([60, 50, 40])
    for test, seed in ((0.2, 0), (0.2, 1), (0.4, 0), (0.4, 1)):
        told = {"name": "c", "seed": seed, "data": DATA, "method": {"rounds": 1}, "split": {"test": test}}
        gr.run(gr.Experiment.parse(told), out=tmp_path / f"{test:.0%}-{seed}", table=table)
    told = {"name": "c", "data": DATA, "method": {"name": "fedprox", "mu": 5.0, "rounds": 1}, "split": {"test": 0.2}}
    for seed in (0, 1):
        gr.run(gr.Experiment.parse({**told, "seed": seed}), out=tmp_path / f"prox-{seed}", table=table)
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")
    names = sorted(folder.name for folder in tmp_path.iterdir() if folder.is_dir())
    view = client.get("/api/compare", params={"run": names}).json()
    other = next(arm for arm in view["arms"] if "40%-0" in arm["runs"])
    same = next(arm for arm in view["arms"] if "prox-0" in arm["runs"])
    assert any("such arms have no paired difference" in note for note in view["notes"])
    assert {d["arm"] for d in view["differences"]} == {same["short"]} and other["short"] != same["short"]
    assert not client.get("/api/compare", params={"run": names[:4]}).json()["differences"]
    assert 'id="differences"' not in client.get("/compare", params={"run": names[:4]}).text


def test_what_cannot_be_compared_is_refused_in_words(compared, root):
    client = compared.client("viewer")

    def refused(status, **chosen):
        page, told = (client.get(place, params=chosen) for place in ("/compare", "/api/compare"))
        assert page.status_code == told.status_code == status
        return told.json()["error"]

    other = refused(422, run=["fedavg-0", "plain"])
    assert "not of the same rows" in other and "fedavg-0" in other and "plain" in other
    assert "of breast-cancer" in refused(422, run=["fedavg-0", "by-hand"])
    assert "no run" in refused(404, run=["fedavg-0", "../runs/plain"])
    assert "no comparison" in refused(404, comparison="../held")
    assert "not both" in refused(422, comparison="held", run=["fedavg-0"])
    assert "same seed and fold" in refused(422, run=["by-hand", f"table-2/runs/{CELL.name}"])
    assert client.get("/api/compare").status_code == 422


def test_an_unfinished_run_and_a_moved_one(compared, root, tmp_path):
    for name in ("fedavg-0", "fedprox-0", "held"):
        copied(root / name, tmp_path / name)
    copied(root / "fedavg-1", tmp_path / "fedavg-1")
    (tmp_path / "fedavg-1" / "summary.json").unlink()
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")
    assert "not finished" in client.get("/api/compare", params={"run": ["fedavg-0", "fedavg-1"]}).json()["error"]
    told = client.get("/api/compare", params={"comparison": "held"}).json()
    assert any("fedprox-1" in note for note in told["notes"])
    rows = json.loads((tmp_path / "held" / "comparison.json").read_text())["rows"]
    assert by_arm(told)["fedprox", "auroc"]["mean"] == next(
        r["mean"] for r in rows if r["arm"] == "fedprox" and r["metric"] == "auroc"
    )


@pytest.mark.parametrize(
    "bent",
    [
        lambda held: "{",
        lambda held: json.dumps([1]),
        lambda held: json.dumps({**held, "rows": [{"arm": 1}]}),
        lambda held: json.dumps({**held, "runs": {"fedavg": {"seed": "../../../etc"}}}),
        lambda held: json.dumps({**held, "rows": "x" * 50}),
        lambda held: "[" * 100_000,
    ],
)
def test_a_damaged_comparison_is_said_to_be(root, tmp_path, bent):
    held = json.loads((root / "held" / "comparison.json").read_text())
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "comparison.json").write_text(bent(held))
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")
    for place in ("/compare", "/api/compare"):
        answer = client.get(place, params={"comparison": "held"})
        assert answer.status_code == 422 and str(tmp_path) not in answer.text


def test_a_comparison_opens_no_run_outside_the_root(root, tmp_path):
    held = json.loads((root / "held" / "comparison.json").read_text())
    for place in (str(root / "fedavg-0"), "../../" + root.name + "/fedavg-0", "../held/../.."):
        held["runs"] = {"fedavg": {"seed 0 fold 0": place}}
        inside = tmp_path / "inside"
        (inside / "held").mkdir(parents=True, exist_ok=True)
        (inside / "held" / "comparison.json").write_text(json.dumps(held))
        users, tokens = known_users()
        told = Signed(create_app(AppState(RunIndex(inside), users)), tokens).client("viewer")
        found = told.get("/api/compare", params={"comparison": "held"}).json()
        assert all(a["runs"] == [] for a in found["arms"]) and "No longer in this folder" in found["notes"][0]


def test_what_is_published_stands_beside_ours_by_place_and_by_plan(compared, root):
    client = compared.client("viewer")
    ours = load_run(root / "by-hand").summary["final"]["accuracy"]
    by_place = client.get("/api/compare", params={"run": [f"table-2/runs/{CELL.name}"]}).json()["published"]
    by_plan = client.get("/api/compare", params={"run": ["by-hand"]}).json()["published"]
    (one,) = by_place
    assert (one["study"], one["published"], one["arm"]) == ("fedxchain/table-2", 0.923, "FedAvg")
    assert one["mean"] == pytest.approx(ours)
    same = [p for p in by_plan if p["study"] == "fedxchain/table-2"]
    assert [p["published"] for p in same] == [0.923] and same[0]["mean"] == pytest.approx(ours)
    assert client.get("/api/compare", params={"run": ["fedavg-0"]}).json()["published"] == []
    assert "0.923" in client.get("/compare", params={"run": ["by-hand"]}).text
    choices = client.get("/api/compare/choices").json()
    assert choices == {"comparisons": ["held"], "studies": ["table-2"]}
    study = client.get("/api/compare/study", params={"study": "table-2"}).json()
    assert study["name"] == "fedxchain/table-2" and study["claims"]
    assert client.get("/compare", params={"study": "table-2"}).status_code == 200
    assert client.get("/compare", params={"study": "table-3"}).status_code == 404


def test_figures_have_the_axes_that_are_asked_for(compared):
    client = compared.client("viewer")
    told = client.get("/api/compare", params={"run": ARMS}).json()
    assert {"intervals", "pareto", "course-auroc"} <= set(told["figures"])
    for name in told["figures"]:
        drawn = client.get("/api/compare/figure", params={"figure": name, "runs": json.dumps(ARMS)})
        assert drawn.status_code == 200 and drawn.json()["data"], name
    asked = {"figure": "pareto", "runs": json.dumps(ARMS), "x": "megabytes", "y": "auroc"}
    drawn = client.get("/api/compare/figure", params=asked).json()
    cells = by_arm(told)
    points = {t["name"].split(" (")[0]: (t["x"][0], t["y"][0]) for t in drawn["data"] if t["mode"] == "markers"}
    assert points == {
        arm: (cells[arm, "megabytes"]["mean"], cells[arm, "auroc"]["mean"]) for arm in ("fedavg", "fedprox")
    }
    for bad, status in (
        ({"x": "auroc"}, 422),
        ({"x": "nothing"}, 404),
        ({"figure": "none"}, 404),
        ({"runs": "{"}, 422),
    ):
        assert client.get("/api/compare/figure", params={**asked, **bad}).status_code == status


def test_everybody_who_is_signed_in_may_compare_and_nobody_else(compared):
    for role in ("viewer", "clinician", "auditor"):
        assert compared.client(role).get("/compare").status_code == 200
    places = ("/api/compare", "/api/compare/choices", "/api/compare/figure?figure=x", "/api/compare/study?study=x")
    assert all(compared.client().get(place).status_code == 401 for place in places)
    assert compared.client().get("/compare").status_code == 303


def test_a_script_for_a_site_is_shown_as_text(compared):
    page = compared.client("viewer").get("/compare", params={"run": ["plain"]}).text
    told = compared.client("viewer").get("/api/compare", params={"run": ["plain"]}).json()
    assert EVIL not in page
    notes = {cell["note"] for cell in by_arm(told).values()}
    assert any(notes) and "<script" not in page.split("<main")[1].replace("<script src", "")


def test_chosen_runs_are_compared_in_a_browser(chromium, root):
    users, tokens = known_users()
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    for served in serving(AppState(RunIndex(root), users), tokens):
        window = Window(context.new_page(), served.url)
        page = window.page
        window.sign_in(tokens["viewer"])
        assert page.is_disabled("#compare-chosen")
        for name in ("fedavg-0", "fedprox-0"):
            page.get_by_label(f"Choose {name} to compare").check()
        assert page.inner_text("#compare-chosen") == "Compare 2 runs"
        page.click("#compare-chosen")
        page.wait_for_url("**/compare?*")
        for name in ("intervals", "pareto", "course-accuracy"):
            window.drawn(name)
        page.select_option("#x", "log_loss")
        page.locator("figure[data-figure=pareto] .gtitle", has_text="against log loss").wait_for()
        page.select_option("#y", "log_loss")
        assert "two different" in page.inner_text("#axes-said")
        page.click("#theme")
        window.go("/compare")
        page.get_by_label("Compare fedavg-0").check()
        page.fill("#q", "fedprox")
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare?*q=fedprox*")
        assert page.locator("#choice tbody tr").count() == 2 and page.inner_text("#chosen") == "1 run chosen"
        page.get_by_label("Compare fedprox-1").check()
        page.click("#compare-chosen")
        window.drawn("intervals")
        assert window.wrong == []
    context.close()
