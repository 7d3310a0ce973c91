"""A site whose worker is killed, or whose disk is full, at any write: nothing is charged twice, and nothing is lost."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.capabilities.hospital.keeper.store import Opening, Store
from grandrounds.privacy.site_budget import SiteBudget
from grandrounds.protocol.messages import AskId
from tests.engine.disturbed import decisions, hospitals
from tests.engine.hospitals import PLAIN, final_model
from tests.engine.memory_transport import MemoryTransport

PRIVATE = {"privacy": {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-3, "sampling_rate": 0.2, "min_rows": 10}}
CASES = {"dp-sgd": PRIVATE, "scaffold": {"method": "scaffold"}}


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "run")
    made.open(Opening({}, "train", "", 1.0, ()))
    return made


def test_the_place_of_an_answer_tells_interrupted_work_from_an_answer_that_left(store):
    id = AskId("run", 3, 0)
    assert store.begin(id, "d") and not store.begin(id, "d"), "interrupted: no answer to it ever left"
    assert store.answer("d") is None
    store.keep(id, "d", b"answer")
    store.abandon("d")
    assert store.answer("d") == b"answer"
    store.keep(AskId("run", 9, 0), "later", b"x")
    assert store.begin(id, "d"), "its answer left, and is no longer stored"
    store.abandon("d")
    assert store.begin(id, "d")


def test_unfinished_files_of_a_killed_worker_are_no_answers_and_no_set_up(store):
    store.set_up("open", b"ask")
    for folder in ("answers", "setup", "."):
        (store.folder / folder / ".000001-abc.0123456789abcdef.part").write_bytes(b"half")
    store.keep(AskId("run", 7, 0), "d", b"answer")
    assert store.answer("d") == b"answer"
    store.remove_leftovers()
    assert store.setup() == [b"ask"] and not list(store.folder.rglob("*.part"))


# Killed at every write ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The worker's process ends here: nothing catches it, as nothing catches a SIGKILL."""


def kill() -> None:
    raise Killed


def fill_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class FailingWrites:
    """Calls `fail` at a chosen point of the next writes: point 2n is before the n-th file is in place, 2n + 1 after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> None:
        self.point, self.failures = -1, 0
        self._fail, self.seen = fail, 0
        write = Path.replace

        def replace_file(path: Path, target: Path) -> Path:
            self._pass()
            done = write(path, target)
            self._pass()
            return done

        monkeypatch.setattr(Path, "replace", replace_file)

    def arm(self, point: int) -> None:
        self.point, self.seen = point, 0

    def _pass(self) -> None:
        self.seen += 1
        if self.seen == self.point + 1:
            self.point, self.failures = -1, self.failures + 1
            self._fail()


class FailingSite:
    """A keeper whose writes fail at the first point, then at the second, and so on, until a message is answered.

    A killed keeper has lost its session with the server, which greets it again and repeats the Asks.
    """

    def __init__(self, writes: FailingWrites, make: Callable[[], Keeper], is_time: Callable[[], bool]) -> None:
        self.writes, self._make, self._is_time, self._keeper = writes, make, is_time, make()
        self._point = 0

    def handle(self, data: bytes) -> bytes:
        failures = self.writes.failures
        self.writes.arm(self._point if self._is_time() else -1)
        try:
            reply = self._keeper.handle(data)
        except Killed:
            self._keeper = self._make()
            reply = self._keeper.handle(data)
        is_written, has_failed = self.writes.seen > 0, self.writes.failures > failures
        self.writes.arm(-1)
        if is_written or has_failed:
            self._point = self._point + 1 if has_failed else 0
        return reply


def run_private(folder: Path, case: str, writes: FailingWrites | None = None, *, rounds: int = 3, since: int = 0):
    """A run in which the writes of site b fail once it has so many charges; gives the run and the charges of every site."""
    held = hospitals(rounds=rounds, **CASES[case])
    folder.mkdir()

    def keeper(name: str) -> Keeper:
        budget = SiteBudget.open(folder / f"{name}.json", epsilon=1e6, delta=1e-3)
        made = held.keepers(folder / "state", access=replace(PLAIN, budget=budget))
        return next(one for one in made if one.me.name == name)

    def charges(name: str) -> dict[str, Any]:
        return json.loads((folder / f"{name}.json").read_text())["keys"]

    sites: dict[str, Any] = {name: keeper(name) for name in held.rows}
    if writes is not None:
        sites["b"] = FailingSite(writes, lambda: keeper("b"), lambda: len(charges("b")) >= since)
    run = held.deployed(folder, MemoryTransport(list(sites.values())))
    return run, {name: charges(name) for name in held.rows}


@pytest.mark.parametrize("case", CASES)
def test_a_worker_killed_before_and_after_every_write_gives_the_same_model_and_charges(tmp_path, monkeypatch, case):
    calm, charges = run_private(tmp_path / "calm", case)
    writes = FailingWrites(monkeypatch, kill)
    run, after = run_private(tmp_path / "killed", case, writes)
    assert writes.failures > 30
    assert [d["missing"] for d in decisions(run)] == [{}] * 3
    assert np.array_equal(final_model(run), final_model(calm))
    assert after == charges and (case != "dp-sgd" or len(charges["b"]) == 3)
    assert not list(tmp_path.rglob("*.part"))


def test_a_site_with_a_full_disk_says_so_and_is_charged_once_for_each_round(tmp_path, monkeypatch):
    """Its disk is full at another write of every round from the second on, until every write has failed."""
    writes = FailingWrites(monkeypatch, fill_disk)
    run, charges = run_private(tmp_path / "full", "dp-sgd", writes, rounds=14, since=1)
    missing = [d["missing"].get("b", "") for d in decisions(run)]
    assert set(missing) == {"", "refused (storage)"} and writes.failures >= 8
    by_round = Counter(int(json.loads(name)[1].split("/")[1]) for name in charges["b"])
    assert not [name for name in charges["b"] if name.endswith(' again"]')]
    for round, reason in enumerate(missing, start=1):
        assert by_round[round] == 1 or (reason and by_round[round] == 0)
    assert all(len(charges[site]) == 14 for site in "acd")
