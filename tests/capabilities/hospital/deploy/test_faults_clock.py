"""Clocks that jump by an hour at a site and at the server, and a site that comes back after a day. `make test-faults`.

Processes get their time from a small library (`moved_clock.c`), which reads its offset from a file; monotonic clocks are left
alone, as on a machine whose clock is set.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.capabilities.hospital.deploy.faulty import PRIVATE, Faulty, Outcome, fixed_noise, report
from tests.capabilities.hospital.deploy.piped import calm_over_pipes
from tests.capabilities.hospital.deploy.real import until
from tests.capabilities.hospital.deploy.test_faults_consortium import stated
from tests.capabilities.hospital.deploy.test_hospitals_for_real import gateway, table

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.faults,
    gateway,
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler for the library that moves clocks: apt-get install gcc"),
]

PLANS = {name: {"method": {"name": "fedavg", "rounds": 8}, **PRIVATE} for name in ("site", "server", "day")}
HOUR = 3600


class Clocks:
    """One file with an offset for the server and for each site."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._library = folder / "moved_clock.so"
        source = Path(__file__).with_name("moved_clock.c")
        subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", self._library, source, "-ldl"], check=True)
        self._files = {name: folder / f"clock {name}" for name in (*names, "server")}
        for name in self._files:
            self.set(name, 0)

    def set(self, name: str, seconds: int) -> None:
        """Set a clock; processes have the file open and read it anew within a second."""
        with self._files[name].open("r+" if self._files[name].exists() else "w") as file:
            file.write(f"{seconds:+09d}\n")

    def environment(self, name: str) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "CLOCK_OFFSET_FILE": str(self._files[name]),
        }


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    with fixed_noise():
        yield Faulty(tmp_path_factory.mktemp("clock"), table(), limit=600)


@pytest.fixture(scope="module")
def calm(faulty):
    return calm_over_pipes(faulty, PLANS)


@pytest.fixture
def clocks(faulty, calm):
    made = Clocks(faulty.folder, faulty.names)
    faulty.environment = {name: made.environment(name) for name in (*faulty.names, "server")}
    with faulty.at_work():
        yield made
    faulty.put_aside()


def run(faulty: Faulty, calm: dict[str, Outcome], name: str, jump: Callable[[], None]) -> str:
    """Submit a run, disturb it after two rounds and state its outcome."""
    faulty.submit(name, PLANS[name])
    until(lambda: len(faulty.rounds_of(name)) >= 2, seconds=400, what="rounds")
    jump()
    outcome = faulty.outcome(faulty.done(name, seconds=1200))
    outcome.check_stated(calm[name])
    return stated(outcome)


def test_clock_of_a_site_jumps_by_an_hour(faulty, calm, clocks):
    began = time.monotonic()

    def jump() -> None:
        clocks.set("north", HOUR)
        faulty.await_round("site", seconds=600)
        clocks.set("north", -HOUR)

    report("clock of a site jumps an hour ahead, then back by two", 2, run(faulty, calm, "site", jump), began)


def test_clock_of_the_server_jumps_by_an_hour(faulty, calm, clocks):
    began = time.monotonic()
    told = run(faulty, calm, "server", lambda: clocks.set("server", HOUR))
    report("clock of the server jumps an hour ahead", 1, told, began)


def test_a_site_that_comes_back_after_a_day(faulty, calm, clocks):
    """It loses power; all clocks show a day later when it starts again, while the run goes on."""
    began = time.monotonic()

    def away() -> None:
        faulty.kill_site("north")
        for name in (*faulty.names, "server"):
            clocks.set(name, 25 * HOUR)
        faulty.await_round("day", seconds=600)
        faulty.start_site("north")

    report("a site away for a day", 1, run(faulty, calm, "day", away), began)
