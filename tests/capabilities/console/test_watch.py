"""The page of a run's watches: alarms in sentences with their states, the timeline, damaged and foreign files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.core.errors import BadInput
from grandrounds.report.figures.watch import evidence_over_patients
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.capabilities.watch.records import alarm, alarmed_run, status
from tests.report import EVIL
from tests.store import copied


@pytest.fixture(scope="module")
def template(runs, tmp_path_factory) -> Path:
    """A run with a watch of site a, whose column is a script, and a run without one."""
    root = tmp_path_factory.mktemp("watched")
    for name in ("watched", "plain"):
        copied(runs / "trust", root / name)
    alarmed_run(root / "watched", "a", column=EVIL)
    return root


@pytest.fixture
def folder(template, tmp_path) -> Path:
    return shutil.copytree(template, tmp_path / "runs")


def signed(folder: Path) -> Signed:
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(folder), users)), tokens)


def test_the_page_has_alarms_with_their_states_and_a_link_from_the_run(folder):
    client = signed(folder).client("viewer")
    text = client.get("/watch", params={"run": "watched"}).text
    assert EVIL not in text
    assert text.index("A3 ") < text.index("A2 ") < text.index("A1 "), "the newest alarm is first"
    for words in (
        "Age has been higher since patient 71.", "No outcome is known yet.", "Check the unit of the column.",
        "Acknowledged by M. Curie", "the new monitor",
        "Silenced by M. Curie until 620 patients are read", "Action: unit corrected by IT",
        "Not delivered by mail 12ab34cd: exit code 1", "verifies, with its alarms and figures", "These watches are simulated",
    ):  # fmt: skip
        assert words in text
    assert 'href="/watch?run=watched"' in client.get("/run", params={"run": "watched"}).text
    assert 'href="/watch' not in client.get("/run", params={"run": "plain"}).text
    assert "No watch of this run is at hand." in client.get("/watch", params={"run": "plain"}).text


def test_the_page_is_for_users_alone(folder):
    console = signed(folder)
    assert console.client().get("/watch", params={"run": "watched"}).status_code == 303
    assert console.client().get("/api/run/watch", params={"run": "watched"}).status_code == 401
    assert console.client("viewer").get("/watch", params={"run": "nobody"}).status_code == 404


def test_the_api_has_states_checks_and_the_figure(folder):
    client = signed(folder).client("viewer")
    (watch,) = client.get("/api/run/watch", params={"run": "watched"}).json()
    assert (watch["site"], watch["patients"], watch["open"]) == ("a", 120, 1)
    assert {a["id"]: a["state"] for a in watch["alarms"]} == {"A1": "acknowledged", "A2": "silenced", "A3": "open"}
    assert [c["name"] for c in watch["checks"]] == ["score up", "age missing", "age up"], "the nearest to an alarm first"
    assert watch["record"]["verifies"]
    drawn = client.get("/api/run/watch/figure", params={"run": "watched", "site": "a"}).json()
    assert {t["name"]: t["y"] for t in drawn["data"]}["score up"] == [-1.5, -1.5]
    marks = next(t for t in drawn["data"] if t["name"] == "alarm")
    assert (marks["x"], marks["text"]) == ([118, 119, 120], ["A1", "A2", "A3"])
    assert client.get("/api/run/watch/figure", params={"run": "watched", "site": "b"}).status_code == 404


def test_an_altered_watch_says_so(folder):
    path = folder / "watched" / "at_sites" / "a" / "watch" / "watch.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "alarms": content["alarms"][1:]}))
    client = signed(folder).client("viewer")
    text = client.get("/watch", params={"run": "watched"}).text
    assert "The record of this watch does not verify" in text
    assert "alarm A1 of entry 1 is not there" in text
    assert "Acknowledged by M. Curie" in text, "the record has the alarm still"


@pytest.mark.parametrize("damage", ["{", '{"patients": "many"}', "[]"])
def test_a_damaged_watch_is_named_and_the_page_works(folder, damage):
    (folder / "watched" / "at_sites" / "a" / "watch" / "watch.json").write_text(damage)
    client = signed(folder).client("viewer")
    page = client.get("/watch", params={"run": "watched"})
    assert page.status_code == 200
    assert "This watch cannot be shown:" in page.text
    assert str(folder) not in page.text
    assert client.get("/api/run/watch/figure", params={"run": "watched", "site": "a"}).status_code == 422


def test_links_are_not_followed(folder, tmp_path):
    watch = folder / "watched" / "at_sites" / "a" / "watch"
    client = signed(folder).client("viewer")
    (tmp_path / "secret.json").write_text(json.dumps(status(7)))
    (watch / "watch.json").unlink()
    (watch / "watch.json").symlink_to(tmp_path / "secret.json")
    text = client.get("/watch", params={"run": "watched"}).text
    assert "is a link" in text
    assert client.get("/api/run/watch/figure", params={"run": "watched", "site": "a"}).status_code == 422
    watch.rename(tmp_path / "moved")
    watch.symlink_to(tmp_path / "moved")
    assert "No watch of this run is at hand." in client.get("/watch", params={"run": "watched"}).text


def test_the_figure_shows_checks_with_alarms_first_and_then_the_closest():
    names = [f"check {n}" for n in range(10)]
    timeline = [{"patients": 10 * t, "evidence": {name: -n - t / 10 for n, name in enumerate(names)}} for t in (1, 2)]
    drawn = evidence_over_patients(timeline, [alarm("check 9", 15, id="A1"), alarm("check 8", 15, id="A2")], site=EVIL, checks=10)
    shown = [t["name"] for t in drawn["data"]]
    assert shown == ["check 8", "check 9", "check 0", "check 1", "check 2", "check 3", "threshold", "alarm"]
    assert drawn["data"][-1]["text"] == ["A1, A2"], "alarms at one patient share a mark"
    assert EVIL not in json.dumps(drawn)
    assert "6 of 10 checks" in drawn["layout"]["title"]["text"]
    with pytest.raises(BadInput, match="no patients yet"):
        evidence_over_patients([], [], site="a", checks=3)


def test_a_browser_draws_the_timeline_without_a_complaint(folder, chromium):
    users, tokens = known_users()
    for served in serving(AppState(RunIndex(folder), users), tokens):
        page = chromium.new_page()
        window = Window(page, served.url)
        window.sign_in(tokens["viewer"])
        window.go("/watch?run=watched")
        window.drawn("watch")
        assert page.locator("figure .plot").get_attribute("aria-label")
        assert page.locator("article.alarm").count() == 3
        assert window.wrong == []
        page.close()
