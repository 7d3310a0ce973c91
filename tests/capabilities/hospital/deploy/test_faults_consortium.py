"""Faults of a whole consortium: sites killed, gateway restarted, networks cut, disks full, and twelve sites at once.

Each run ends with the bits of an undisturbed run, or names the missing sites and why; no charge is made twice or
forgotten. `make test-faults`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr")

from grandrounds.capabilities.hospital.deploy.records import FAILED, RunRecords
from grandrounds.data.table import Table
from tests.capabilities.hospital.deploy.consortia import free_port
from tests.capabilities.hospital.deploy.cut import Wire
from tests.capabilities.hospital.deploy.faulty import (
    PRIVATE,
    REAL_KILLS,
    SECURE,
    SEED,
    Faulty,
    Outcome,
    fixed_noise,
    report,
)
from tests.capabilities.hospital.deploy.piped import calm_over_pipes
from tests.capabilities.hospital.deploy.real import rounds, until
from tests.capabilities.hospital.deploy.test_hospitals_for_real import gateway, table
from tests.support import patients

pytestmark = [pytest.mark.faults, gateway]

SHORT = {"method": {"name": "fedavg", "rounds": 6}, **PRIVATE}
LONG = {"method": {"name": "fedavg", "rounds": 16}, **PRIVATE}
PLANS = {"killed": LONG, "gateway": SHORT, "cut-10": SHORT, "cut-60": SHORT, "cut-300": SHORT, "full": SHORT, "room": SHORT}
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system to fill")


@pytest.fixture(scope="module")
def wire():
    gateway = free_port()
    found = Wire(gateway)
    yield gateway, found
    found.close()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, wire):
    port, line = wire
    with fixed_noise():
        made = Faulty(tmp_path_factory.mktemp("consortium"), table(), limit=600, port=port, dial={"south": line.port})
        yield made
        made.close()


@pytest.fixture
def calm(faulty, name):
    """The plan of a test without faults."""
    return calm_over_pipes(faulty, {name: PLANS[name]})[name]


@pytest.fixture
def working(faulty, calm):
    with faulty.at_work():
        yield faulty
    faulty.put_aside()


def begin(faulty: Faulty, name: str, *, rounds: int = 2) -> None:
    faulty.submit(name, PLANS[name])
    until(lambda: len(faulty.rounds_of(name)) >= rounds, seconds=400, what="rounds")


def stated(outcome: Outcome) -> str:
    gone: Counter[str] = Counter(reason for missing in outcome.missing for reason in missing.values())
    return f"missing from {sum(gone.values())} rounds {dict(gone)}, charges right" if gone else "same bits and charges"


@pytest.mark.parametrize("name", ["killed"])
def test_sites_killed_at_random_instants(working, calm, name):
    """kill -9 of worker, of keeper and worker, or of keeper, worker and SuperNode, as when a machine loses power."""
    began, rng, kills = time.monotonic(), random.Random(f"{SEED} sites"), Counter[str]()
    begin(working, name)
    while sum(kills.values()) < REAL_KILLS and not working.is_over("killed"):
        time.sleep(rng.uniform(0.0, 3.0))
        site, what = rng.choice(working.names), rng.choice(["worker", "worker", "keeper", "power"])
        if not working.is_up(site):
            continue
        if what == "worker":
            working.worker(site).kill()
        else:
            {"keeper": working.kill_keeper, "power": working.kill_site}[what](site)
            working.start_site(site)
        kills[what] += 1
    outcome = working.outcome(working.done("killed", seconds=1200))
    outcome.check_stated(calm)
    report("sites killed in a whole consortium", dict(kills), stated(outcome), began)


@pytest.mark.parametrize("name", ["gateway"])
def test_gateway_restarted(working, calm, name):
    began = time.monotonic()
    begin(working, name)
    for _ in range(3):
        pid = int((working.link.logs / "gateway.pid").read_text())
        for process in [*psutil.Process(pid).children(), psutil.Process(pid)]:
            process.kill()
        until(lambda: _is_other(working, pid), seconds=60, what="another gateway")  # noqa: B023
        working.await_round("gateway", seconds=600)
    outcome = working.outcome(working.done("gateway", seconds=900))
    outcome.check_stated(calm)
    report("gateway killed, and started again by the server", 3, stated(outcome), began)


def _is_other(faulty: Faulty, pid: int) -> bool:
    try:
        return int((faulty.link.logs / "gateway.pid").read_text()) != pid
    except (OSError, ValueError):
        return False


@pytest.mark.parametrize(("name", "seconds"), [("cut-10", 10), ("cut-60", 60), ("cut-300", 300)])
def test_network_of_a_site_cut(working, calm, wire, name, seconds):
    began = time.monotonic()
    begin(working, name)
    wire[1].cut()
    time.sleep(seconds)
    wire[1].mend()
    outcome = working.outcome(working.done(name, seconds=1200))
    outcome.check_stated(calm)
    assert all(set(missing) <= {"south"} for missing in outcome.missing)
    report(f"network of a site cut for {seconds} s", 1, stated(outcome), began)


@contextmanager
def small_disk(folder: Path, megabytes: int):
    """Mount a small file system with the content of a folder; gives a function that fills it, and one that frees it."""
    copy = folder.with_name(f"{folder.name}.before")
    folder.mkdir(exist_ok=True, mode=0o700)
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(folder)], check=True)
    try:
        shutil.copytree(copy, folder, dirs_exist_ok=True)
        filler = folder / "filler"

        def fill() -> None:
            with filler.open("ab") as f:
                try:
                    for size in (2**16, 512, 1):
                        for _ in range(2**20):
                            f.write(b"\0" * size)
                            f.flush()
                except OSError:
                    return

        yield fill, lambda: filler.unlink(missing_ok=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["full"])
@is_root
def test_disk_of_the_server_full(faulty, calm, name):
    """The run fails with a sentence; once there is room it is resumed, with the same bits."""
    began = time.monotonic()
    faulty.link.prepare()
    with small_disk(faulty.link.runs, 64) as (fill, free), faulty.at_work():
        begin(faulty, name)
        fill()

        def has_failed() -> bool:
            record = RunRecords(faulty.link.state / "runs").get("full") or {}
            return record.get("state") == FAILED

        until(has_failed, seconds=300, what="the run fails")
        sentence = faulty.end_of_log("full").strip().splitlines()[-1]
        assert "error: cannot write to" in sentence and "No space left" in sentence, sentence
        free()
        rounds("server", "submit", "--resume", "full", "--server", str(faulty.out))
        faulty.outcome(faulty.done("full", seconds=900)).check_same(calm)
    faulty.put_aside()
    report("disk of the server full", 1, "the run fails with a sentence; resumed: same bits and charges", began)


@pytest.mark.parametrize("name", ["room"])
@is_root
def test_disk_of_a_site_full(faulty, calm, name):
    """The site refuses (storage) while its disk is full, and takes part again once there is room."""
    began = time.monotonic()
    with small_disk(faulty.site_folder("north") / "state", 64) as (fill, free), faulty.at_work():
        begin(faulty, name)
        fill()
        until(lambda: any(line.get("missing") for line in _decisions(faulty, "room")), seconds=300, what="a missing site")
        free()
        outcome = faulty.outcome(faulty.done("room", seconds=900))
    faulty.put_aside()
    outcome.check_stated(calm)
    assert {reason for missing in outcome.missing for reason in missing.values()} == {"refused (storage)"}
    assert outcome.missing[-1] == {}, "it takes part again"
    report("disk of a site full", 1, stated(outcome), began)


def _decisions(faulty: Faulty, name: str) -> list[dict]:
    return [record["decision"] for record in faulty.rounds_of(name)]


def test_twelve_sites_of_which_three_lose_power(tmp_path):
    """Secure sums over twelve sites; three are killed at once and started again."""
    began = time.monotonic()
    rows = patients([30] * 12)
    names = {site: f"site {site}" for site in dict.fromkeys(rows.columns["hospital"])}
    named = Table.from_mapping(
        {**rows.columns, "hospital": [names[site] for site in rows.columns["hospital"]]}, source="patients.csv"
    )
    settings = {"method": {"name": "fedavg", "rounds": 6}, **SECURE}
    with fixed_noise():
        made = Faulty(tmp_path, named, limit=600)
        calm = calm_over_pipes(made, {"twelve": settings})["twelve"]
        with made.at_work():
            made.submit("twelve", settings)
            until(lambda: len(made.rounds_of("twelve")) >= 2, seconds=900, what="rounds")
            for name in made.names[:3]:
                made.kill_site(name)
            for name in made.names[:3]:
                made.start_site(name)
            outcome = made.outcome(made.done("twelve", seconds=1800))
    outcome.check_stated(calm)
    report("12 sites, 3 of them lose power at once", 3, stated(outcome), began)
