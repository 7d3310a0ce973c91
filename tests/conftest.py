"""Rules for all tests.

No property test is held to a clock, since two cores may be busy with something else. Ctrl-C works in what tests start, also
where they were started in the background (a shell then has Ctrl-C ignored). Files of data sets that do not come with
the package are looked for in GRANDROUNDS_DATA alone, by tests that are marked `data`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from grandrounds.core import plugins
from grandrounds.data.images import ImageSet
from grandrounds.data.sets.images import xfed_masks
from grandrounds.data.store import VARIABLE
from grandrounds.engine.local import LocalEngine
from grandrounds.protocol.messages import Ask
from tests import store
from tests.durations import Durations

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)

settings.register_profile("unhurried", deadline=None)
settings.register_profile("full", deadline=None)  # make test-slow: properties with all their examples
settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


def pytest_collection_finish():
    """Thousands of tests stay till the end: the collector of garbage need not look at them again and again."""
    gc.collect()
    gc.freeze()


def draw_less(test) -> None:
    """A third of the examples of a property test, though no fewer than 20 of them; Hypothesis has no public way to say so."""
    if drawn := getattr(test, "_hypothesis_internal_use_settings", None):
        least = min(drawn.max_examples, 20)
        test._hypothesis_internal_use_settings = settings(drawn, max_examples=max(least, drawn.max_examples // 3))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark as slow the cases that thinned tests leave out; say which folder is missing where a test cannot be run."""
    own = os.environ.get(VARIABLE)
    cases: Counter[tuple[Path, str]] = Counter()
    for item in items:
        if thinned := item.get_closest_marker("thinned"):
            test = (item.path, item.originalname)
            if cases[test] % thinned.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
        for mark in item.iter_markers("data"):
            if own is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {VARIABLE}, the folder with the data sets"))
            elif missing := [name for name in mark.args if not (Path(own) / name).is_dir()]:
                item.add_marker(pytest.mark.skip(reason=f"there is no {', '.join(missing)} in {VARIABLE}"))
    if config.getoption("--hypothesis-profile") != "full":
        for test in {getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)}:
            draw_less(test)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """GRANDROUNDS_DATA, for tests that are marked `data`."""
    return Path(os.environ[VARIABLE])


@pytest.fixture
def heard(monkeypatch):
    """Every question that sites are asked, with their answers as the server hears them."""
    out: list[tuple[Ask, object]] = []
    ask = LocalEngine._ask

    def asking(self, question):
        answers = ask(self, question)
        out.append((replace(question, id=answers.id), answers))
        return answers

    monkeypatch.setattr(LocalEngine, "_ask", asking)
    return out


@pytest.fixture
def published() -> ImageSet:
    """XFed's own digits with their masks, for tests that are marked data("mnist", "xfed_masks")."""
    return xfed_masks("mnist")


@pytest.fixture(scope="session")
def chromium():
    """A real browser, for as long as tests of this process run."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def no_loop_of_a_browser(request):
    """Hide the event loop that a browser of earlier tests parks in this thread: `asyncio.run` would refuse to start."""
    if "chromium" in request.fixturenames:
        yield
        return
    parked = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(parked)


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory):
    """The secret that runs with code of their own are stamped with is in a folder of the tests, and the same for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        plugins.key_file().parent.mkdir(mode=0o700)
        plugins.key_file().touch(mode=0o600)
        plugins.key_file().write_bytes(store.secret())
        yield


@pytest.fixture(autouse=True, scope="session")
def unchanged_runs():
    """No test wrote into a run that tests share."""
    yield
    store.check_unchanged()
