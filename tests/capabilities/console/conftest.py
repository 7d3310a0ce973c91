"""A console over a few small real runs: as an application, as a server, and in a real browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

import grandrounds as gr
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth import passwords
from grandrounds.capabilities.console.auth.users import Role, Users
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.server import Address, make_server
from grandrounds.capabilities.console.views import audit, privacy
from grandrounds.data.table import Table
from tests.report import EVIL
from tests.runs.test_run import frame
from tests.store import shared
from tests.support import patients

BASE = "http://127.0.0.1"
DATA = {"table": "patients.csv", "label": "died", "site": "hospital"}
RUNS = {
    "plain": {"method": {"name": "fedavg", "rounds": 3}},
    "by-reasons": {
        "method": {"name": "sse-agg", "rounds": 3},
        "reference": {"rows": {"rows": 25}},
        "explain": {"every": 1},
    },
    "trust": {"method": {"name": "fedxchain", "rounds": 3}},
    "private": {"method": {"name": "veil", "rounds": 2, "veil": {"k": 2}}, "privacy": {"epsilon": 5.0}},
}


@pytest.fixture(autouse=True)
def quick_passwords(monkeypatch):
    """A hash at full cost takes a tenth of a second; one test keeps it."""
    monkeypatch.setattr(passwords, "MEMORY_KIB", 64)


@pytest.fixture(autouse=True)
def pages_of_a_busy_machine(monkeypatch):
    """After a second a page asks to wait, which two busy cores may need; tests of that set the wait themselves."""
    for view in (audit, privacy):
        monkeypatch.setattr(view, "PAGE_WAIT", view.LIMIT)


def make_runs(root: Path) -> None:
    """Runs of four methods; of the first a site's name is a script."""
    table = patients([60, 50, 40, 30])
    site = table.columns["hospital"].astype(object)
    named = Table.from_mapping({**table.columns, "hospital": np.where(site == "b", EVIL, site)}, source=table.source)
    for name, settings in RUNS.items():
        experiment = gr.Experiment.parse({"name": name, "data": DATA, **settings})
        gr.run(experiment, out=root / name, table=named if name == "plain" else table)


@pytest.fixture(scope="session")
def runs() -> Path:
    return shared(make_runs)


def make_hospital(root: Path) -> None:
    """One run, icu, whose patients have names."""
    table = frame(patients([60, 50, 40]))
    table["mrn"] = [f"Jane Doe {k:04d}" for k in range(len(table))]
    table.to_csv(root / "patients.csv", index=False)
    data = {"table": str(root / "patients.csv"), "label": "died", "site": "hospital", "patient": "mrn"}
    gr.run(gr.Experiment.parse({"name": "icu", "data": data, "method": {"rounds": 2}}), out=root / "runs" / "icu")


@pytest.fixture(scope="session")
def hospital() -> tuple[RunIndex, SiteCases]:
    """The run icu, and the patients of hospital b."""
    run_index = RunIndex(shared(make_hospital) / "runs")
    return run_index, SiteCases(run_index, "b")


@pytest.fixture(scope="session")
def everything() -> Path:
    """A folder that every page has something to show of: see every_page.py."""
    from tests.capabilities.console.every_page import fill

    return shared(fill)


@dataclass
class Signed:
    """A client for each role, that brings its token with each request."""

    app: object
    tokens: dict[str, str]

    def client(self, role: str | None = None) -> TestClient:
        found = TestClient(self.app, base_url=BASE, follow_redirects=False)
        if role is not None:
            found.headers["authorization"] = f"Bearer {self.tokens[role]}"
        return found


def known_users() -> tuple[Users, dict[str, str]]:
    """A user of each role and one with all, and their tokens."""
    users = Users()
    roles = {role.value: [role.value] for role in Role} | {"all": [role.value for role in Role]}
    for name, held in roles.items():
        users.add(name, held)
    return users, {name: users.issue(name, days=1) for name in roles}


@pytest.fixture
def app_state(runs) -> AppState:
    users, _ = known_users()
    return AppState(RunIndex(runs), users)


@pytest.fixture
def signed(runs) -> Signed:
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(runs), users)), tokens)


@dataclass
class Served:
    """A console that listens. `tokens`: by role."""

    url: str
    tokens: dict[str, str]


def serving(app_state: AppState, tokens: dict[str, str], *, port: int = 0) -> Iterator[Served]:
    """Serve until the test is over; without a port, at one that is free."""
    if not port:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
    server = make_server(create_app(app_state), Address(port=port))
    server.config.timeout_graceful_shutdown = 1
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Served(f"{BASE}:{port}", tokens)
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def console(runs) -> Iterator[Served]:
    users, tokens = known_users()
    yield from serving(AppState(RunIndex(runs), users), tokens)


class Window:
    """A page of the browser that remembers what went wrong in it."""

    def __init__(self, page, url: str) -> None:
        self.page, self.url, self.wrong = page, url, []
        page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.wrong.append(str(e)))

    def sign_in(self, token: str) -> None:
        self.page.goto(f"{self.url}/")
        self.page.fill("#secret", token)
        self.page.click("button.primary")
        self.page.wait_for_url(lambda url: "/sign-in" not in url)  # the start page of the role

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    def until(self, words: str) -> None:
        """Wait until an expression of JavaScript is true. It goes as a function: the page's policy forbids eval."""
        self.page.wait_for_function(f"() => {words}")

    def drawn(self, name: str) -> None:
        """Wait until a figure is drawn."""
        place = self.page.locator(f'figure[data-figure="{name}"]')
        place.scroll_into_view_if_needed()
        place.locator(".main-svg").first.wait_for()


@pytest.fixture
def window(chromium, console) -> Iterator[Window]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    yield Window(page, console.url)
    context.close()
