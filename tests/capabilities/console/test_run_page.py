"""The list of runs and one run: the numbers of the folders, and what a browser makes of them."""

from __future__ import annotations

import re
import threading

import pytest

import grandrounds as gr
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.runs import data_name, run_lines
from grandrounds.core.errors import RunFailed
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.report.catalogue import FIGURES
from grandrounds.runs.run import load_run
from tests.capabilities.console.conftest import DATA, Signed, Window, known_users, serving
from tests.store import copied
from tests.support import patients


def test_the_list_has_every_run_with_the_figures_of_its_summary(signed, runs):
    listed = {line["name"]: line for line in signed.client("viewer").get("/api/runs").json()}
    assert set(listed) == {p.name for p in runs.iterdir()}
    for name, line in listed.items():
        summary = load_run(runs / name).summary
        assert line["state"] == "finished" and line["rounds"] == line["of"] == summary["rounds"]
        assert line["sites"] == summary["sites"]["all"] == 4
        assert line["metrics"]["auroc"] == summary["final"]["auroc"]
    assert listed["private"]["epsilon"] == pytest.approx(load_run(runs / "private").summary["privacy"]["epsilon"])
    assert listed["plain"]["epsilon"] is None


def test_a_run_that_stopped_and_one_at_work_are_told_apart(runs, tmp_path):
    copied(runs / "plain", tmp_path / "stopped")
    (tmp_path / "stopped" / "summary.json").unlink()
    (tmp_path / "stopped" / "round_logs.json").unlink()
    run_index = RunIndex(tmp_path)
    assert run_index.get("stopped").state == "interrupted"
    checkpoint = Checkpoint(tmp_path / "stopped" / "checkpoint")
    checkpoint.lock()
    assert run_index.get("stopped").state == "running"
    checkpoint.unlock()


def test_a_run_that_failed_in_its_first_round_reads_like_a_finished_one(tmp_path):
    """Its title has the outcome of the plan, and the line below counts no sites before a round is done."""
    data, table = {**DATA, "event": "1"}, patients([60, 50, 40, 30])
    few = {"name": "few", "data": data, "engine": {"faults": {"drop": 0.5}, "min_sites": 4}}
    with pytest.raises(RunFailed, match="only 2 of 4 sites answered"):
        gr.run(gr.Experiment.parse(few), out=tmp_path / "few", table=table)
    gr.run(gr.Experiment.parse({"name": "short", "data": data, "method": {"rounds": 1}}), out=tmp_path / "short", table=table)
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")
    pages = {name: client.get("/run", params={"run": name}).text for name in ("few", "short")}
    titles = {name: re.search(r"<h1>([^<]+)</h1>", page)[1] for name, page in pages.items()}
    assert titles["few"] == titles["short"] == "Risk of died = 1"
    lead = " ".join(re.sub(r"<[^>]+>", "", re.search(r'<p class="lead">(.*?)</p>', pages["few"], re.S)[1]).split())
    assert lead == "patients.csv: fedavg; logistic; failed after 0 of 20 rounds"
    command = re.search(r'<code id="command">([^<]+)</code>', pages["few"])[1]
    assert command == f"rounds resume {tmp_path.name}/few --set engine.min_sites=2"
    assert "Change it with --set engine.min_sites=N." in pages["few"]
    ending = client.get("/api/v1/runs/few/overview").json()["ending"]
    assert (ending["fix"], ending["settings"]) == ("Change it with --set engine.min_sites=N.", ["engine.min_sites=2"])


@pytest.mark.parametrize("name", ["plain", "by-reasons", "trust", "private"])
def test_every_figure_of_a_run_is_the_reports_own(signed, runs, name):
    client = signed.client("viewer")
    head = client.get("/api/run", params={"run": name}).json()
    assert head["final"]["accuracy"] == load_run(runs / name).summary["final"]["accuracy"]
    assert len(head["figures"]) >= 10
    report = (runs / name / "report.html").read_text()
    for place in head["figures"]:
        told = client.get("/api/run/figure", params={"run": name, "figure": place["name"]})
        assert told.status_code == 200, place
        title = re.match(r"<b>(.*?)</b>", told.json()["layout"]["title"]["text"])[1]
        own = {"sites-accuracy", "sites-auroc", "sites-log-loss", "sites-ece"}  # the report has one metric of sites
        own |= {"weights-by-signal", "thresholds"}  # of one round; explored on a page of its own
        assert place["name"] in own or title.replace("'", "&#x27;") in report or title in report, place["name"]
    for name_of in set(FIGURES) - {f["name"] for f in head["figures"]}:
        missing = client.get("/api/run/figure", params={"run": name, "figure": name_of})
        assert missing.status_code == 404, name_of


def test_a_round_and_why_a_site_has_its_weight_are_what_the_command_says(signed, runs):
    client, run = signed.client("viewer"), load_run(runs / "trust")
    told = client.get("/api/run/round", params={"run": "trust", "round": 2}).json()
    decision = run.record(2)["decision"]
    assert {s["site"]: s["weight"] for s in told["sites"]} == decision["weights"]
    assert told["sites"][0]["weight"] == max(decision["weights"].values()) and told["why"] == decision["why"]
    said = client.get("/api/run/why", params={"run": "trust", "round": 2, "site": "a"}).json()
    assert "\n".join(said) == run.why(2, "a")
    for bad in (
        {"round": 99, "site": "a"},
        {"round": 1, "site": "nobody"},
        {"round": 0, "site": "a"},
        {"round": "x", "site": "a"},
    ):
        assert client.get("/api/run/why", params={"run": "trust", **bad}).status_code in (404, 422)


def test_the_list_is_searched_and_sorted_in_a_browser(window, console):
    window.sign_in(console.tokens["viewer"])
    page = window.page
    names = lambda: page.locator("#runs tbody tr td:first-child a").all_inner_texts()  # noqa: E731
    assert len(names()) == 4 and "4 rows" in page.inner_text("#count")
    page.fill("#q", "fedxchain")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?*q=fedxchain*")
    assert names() == ["trust"] and page.inner_text("#count") == "1 row"
    page.select_option("#state", "running")
    page.click("text=Search >> nth=-1")
    page.wait_for_url("**state=running*")
    assert names() == []
    page.click("text=Show all")
    page.get_by_role("link", name="accuracy").click()
    page.wait_for_url("**sort=-accuracy*")
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    column = page.locator("#runs thead th").all_inner_texts().index("accuracy")
    shown = [float(t) for t in page.locator(f"#runs tbody tr td:nth-child({column + 1})").all_inner_texts()]
    assert shown == sorted(shown, reverse=True)
    assert page.get_by_role("link", name="Audit").count() == 0  # not for a viewer
    assert window.wrong == []


def test_a_run_is_drawn_and_a_click_on_a_site_says_why(window, console, runs):
    window.sign_in(console.tokens["viewer"])
    page = window.page
    places = {"training": "curves", "explanations": "pairs-deployed", "privacy": "presence", "weights": "weights-by-signal"}
    for section, name in places.items():
        window.go(f"/run?run=trust&section={section}&figure={name}")
        window.drawn(name)
    page.locator("#sites button", has_text="a ").first.click()
    run = load_run(runs / "trust")
    window.until(f"document.querySelector('#why').textContent.includes({run.why(3, 'a').splitlines()[0]!r})")
    assert page.locator("#why p").all_inner_texts() == run.why(3, "a").splitlines()
    page.locator("#round").focus()
    page.keyboard.press("Home")
    window.until(
        "document.querySelector('figure[data-figure=weights-by-signal] .gtitle')?.textContent.includes('Round 1')"
    )
    assert page.inner_text("#round-shown") == "1"
    window.until(f"document.querySelector('#why').textContent.includes({run.why(1, 'a').splitlines()[0]!r})")
    assert window.wrong == []


@pytest.mark.slow
def test_distances_of_pairs_have_a_slider_over_rounds_that_hears_the_keyboard(window, console):
    window.sign_in(console.tokens["viewer"])
    window.go("/run?run=by-reasons&section=explanations&figure=pairs-training")
    window.drawn("pairs-training")
    page = window.page
    distances = "JSON.stringify(document.querySelector('figure[data-figure=pairs-training] .plot').data[0].z)"
    last = page.evaluate(distances)
    page.locator("#slider-pairs-training").focus()
    page.keyboard.press("Home")
    window.until(f"{distances} !== '{last}'")
    assert page.locator('figure[data-figure="pairs-training"] output').inner_text() == "1"
    assert window.wrong == []


@pytest.mark.slow
def test_dark_and_light_and_a_tablet(window, console):
    window.sign_in(console.tokens["viewer"])
    page = window.page
    page.set_viewport_size({"width": 820, "height": 1180})
    window.go("/run?run=by-reasons&section=training")
    window.drawn("curves")
    paper = lambda: page.evaluate("getComputedStyle(document.querySelector('.chart')).backgroundColor")  # noqa: E731
    plot = "document.querySelector('figure[data-figure=curves] .plot').layout.paper_bgcolor"
    light = (paper(), page.evaluate(plot))
    page.click("#theme")
    window.until(f"{plot} !== '{light[1]}'")
    assert paper() != light[0]
    window.go("/")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("document.documentElement.scrollWidth") <= 820
    assert window.wrong == []


def test_a_run_at_work_is_followed_live(chromium, tmp_path):
    """A real run whose third round waits for the test: the pages show two rounds, then all of them."""
    two, go = threading.Event(), threading.Event()

    def progress(event) -> None:
        if event["event"] == "round" and event["round"] == 2:
            two.set()
            go.wait(60)

    experiment = gr.Experiment.parse({"name": "live", "data": DATA, "method": {"name": "fedavg", "rounds": 4}})
    work = threading.Thread(
        target=lambda: gr.run(experiment, out=tmp_path / "live", table=patients([40, 30, 30]), progress=progress)
    )
    work.start()
    assert two.wait(60)
    users, tokens = known_users()
    served = serving(AppState(RunIndex(tmp_path), users), tokens)
    console = next(served)
    try:
        context = chromium.new_context()
        listed, window = (Window(context.new_page(), console.url) for _ in range(2))
        listed.sign_in(tokens["viewer"])
        row = listed.page.locator('tr[data-run="live"]')
        assert row.locator(".tag").inner_text() == "running"
        assert listed.page.locator("#now progress").get_attribute("max") == "4"
        listed.go("/runs?q=fedavg+live&sort=name")
        window.go("/run?run=live")
        at = int(window.page.inner_text("#rounds"))
        assert at in (1, 2) and window.page.inner_text("#state") == "running"
        go.set()
        window.until("document.querySelector('#state').textContent === 'finished'")
        assert window.page.inner_text("#rounds") == "4"
        listed.until("document.querySelector('tr[data-run=live] .tag').textContent === 'finished'")
        assert row.locator("input[name=run]").count() == 1, "it can be compared now"
        assert listed.page.input_value("#q") == "fedavg live", "search and order stay"
        assert listed.page.locator("th[aria-sort=ascending]").inner_text() == "run"
        assert listed.page.inner_text("#count") == "1 row" and listed.wrong == []
        assert window.wrong == []
    finally:
        go.set()
        work.join(60)
        next(served, None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "heart", "table": None}, "heart"),
        ({"name": "own_data:wards", "table": None}, "wards"),
        ({"name": None, "table": "/srv/secret folder/patients.csv"}, "patients.csv"),
        ({"name": None, "table": None, "pictures": "/srv/lesions"}, "lesions"),
        ({"name": None, "table": "at the sites"}, "at the sites"),
        ({"name": None, "table": "postgresql://ada:hunter2@db/wards"}, "postgresql://ada:***@db/wards"),
    ],
)
def test_data_are_named_without_folders_or_secrets(data, words):
    assert data_name(data) == words


def test_what_is_wrong_with_a_run_names_no_folder_of_this_machine(tmp_path, runs):
    copied(runs / "plain", tmp_path / "spoilt")
    (tmp_path / "spoilt" / "summary.json").write_text("{")
    (line,) = run_lines(RunIndex(tmp_path))
    assert line.state == "unreadable" and "summary.json" in line.wrong and str(tmp_path) not in line.wrong
