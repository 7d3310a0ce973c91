"""The list of runs: pages, search, order and groups, over five thousand runs of which each is a real folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.engineer import PAGE_SIZE, RunQuery, page_runs
from tests.capabilities.console.conftest import Signed, known_users
from tests.store import copied

COUNT = 5000


@pytest.fixture(scope="module")
def many(runs, tmp_path_factory) -> Path:
    """A folder with 5,000 runs: 4,000 of their own, the older the higher their number, and 1,000 of one comparison."""
    root = tmp_path_factory.mktemp("many")
    small = {"summary.json", "checkpoint/plan.json"}
    contents = {name: (runs / "trust" / name).read_bytes() for name in small}
    for k in range(COUNT):
        folder = root / (f"run-{k:04d}" if k < 4000 else f"arms/arm-{k:04d}")
        (folder / "checkpoint").mkdir(parents=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
            os.utime(folder / name, (2e9 - k, 2e9 - k))
    (root / "arms" / "comparison.json").write_text(json.dumps({"schema": 1}))
    return root


@pytest.fixture(scope="module")
def clients(many) -> Signed:
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(many), users)), tokens)


def listed(text: str) -> list[str]:
    return re.findall(r'<tr data-(?:run|group)="([^"]+)"', text)


def test_a_page_of_5000_runs_has_50_rows_and_leads_to_the_next(clients):
    client = clients.client("engineer")
    first = client.get("/").text
    assert listed(first) == [f"run-{k:04d}" for k in range(PAGE_SIZE)]
    assert "5000 finished" in first and "Page 1 of 81" in first and "4001 rows" in first
    second = client.get(re.search(r'rel="next" href="([^"]+)"', first)[1]).text
    assert listed(second)[0] == "run-0050" and 'rel="prev"' in second
    last = client.get("/runs", params={"page": 9999}).text
    assert listed(last) == ["arms"] and "1000 runs of one comparison" in last and 'rel="next"' not in last


def test_the_choice_of_runs_to_compare_has_pages_and_keeps_the_chosen(clients, many):
    client = clients.client("viewer")
    first = client.get("/compare").text
    assert first.count('aria-label="Compare ') == PAGE_SIZE and "Page 1 of 100" in first and len(first) < 60_000
    chosen = {"run": ["run-0001", "run-0060", "nobody"], "page": 2}
    second = client.get("/compare", params=chosen).text
    assert 'value="run-0060" checked aria-label' in second and 'value="run-0001" checked> <bdi>' in second
    assert "nobody" not in second and "<h2>Finished runs</h2>" in second
    found = client.get("/compare", params={"q": "arm-4500"}).text
    assert found.count('aria-label="Compare ') == 1 and "1 run<" in found
    assert "No run matches" in client.get("/compare", params={"q": "nobody"}).text


def test_the_list_of_ledgers_has_pages_and_search(clients):
    client = clients.client("auditor")
    first = client.get("/audit").text
    rows = lambda text: re.findall(r'<a href="/audit\?run=([^"]+)"', text)  # noqa: E731
    assert len(rows(first)) == PAGE_SIZE and "5000 runs<" in first and "Page 1 of 100" in first
    second = client.get(re.search(r'rel="next" href="([^"]+)"', first)[1]).text
    assert rows(second)[0] == "run-0050" and 'rel="prev"' in second
    assert rows(client.get("/audit", params={"q": "run-0123"}).text) == ["run-0123"]


def test_search_finds_runs_by_their_names(clients, many):
    found = page_runs(RunIndex(many), RunQuery(text="ARM-45 arms"))
    assert found.total == 100 and found.pages == 2
    text = clients.client("viewer").get("/runs", params={"q": "arm-4999"}).text
    assert listed(text) == ["arms/arm-4999"]
    nothing = clients.client("viewer").get("/runs", params={"q": "<script>alert(1)</script>"}).text
    assert "No run matches" in nothing and "<script>alert" not in nothing


def test_a_group_lists_its_runs_by_page_with_their_order(clients):
    text = clients.client("engineer").get("/runs", params={"group": "arms", "sort": "-name"}).text
    assert listed(text)[:2] == ["arms/arm-4999", "arms/arm-4998"] and "Page 1 of 20" in text
    after = re.search(r'rel="next" href="([^"]+)"', text)[1]
    assert "group=arms" in after and "sort=-name" in after, "a page keeps its group and its order"


@pytest.mark.parametrize("bad", [{"page": "0"}, {"page": "x"}, {"q": "a" * 201}])
def test_bad_parameters_are_refused(signed, bad):
    assert signed.client("viewer").get("/runs", params=bad).status_code == 422


def test_search_reads_data_method_and_model_and_filters_states(signed, runs):
    client = signed.client("viewer")
    assert listed(client.get("/runs", params={"q": "fedxchain"}).text) == ["trust"]
    assert listed(client.get("/runs", params={"q": "fedxchain private"}).text) == []
    assert listed(client.get("/runs", params={"state": "stopped"}).text) == []
    by_score = listed(client.get("/runs", params={"sort": "auroc"}).text)
    scores = {name: json.loads((runs / name / "summary.json").read_text())["final"]["auroc"] for name in by_score}
    assert len(by_score) == 4 and list(scores.values()) == sorted(scores.values())


def test_an_unknown_order_is_the_newest_first(signed):
    client = signed.client("viewer")
    assert listed(client.get("/runs", params={"sort": "password"}).text) == listed(client.get("/runs").text)


def test_a_run_that_did_not_finish_is_named_above_the_list(tmp_path, runs):
    copied(runs / "trust", tmp_path / "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    users, tokens = known_users()
    text = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("engineer").get("/").text
    assert re.search(r'<span class="tag (stopped|interrupted)">', text) and "3 of 3 rounds" in text
