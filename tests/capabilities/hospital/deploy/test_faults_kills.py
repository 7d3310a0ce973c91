"""Server and sites killed at random instants, 50 times each, over pipes: the same bits, and no charge twice or forgotten.

`make test-faults`. FAULTS_SEED and FAULTS_KILLS choose the instants and their number.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from grandrounds.core.toml import dumps
from grandrounds.runs.run import Run
from tests.capabilities.hospital.deploy.faulty import (
    KILLS,
    PRIVATE,
    SECURE,
    Faulty,
    Outcome,
    fixed_noise,
    instants,
    report,
)
from tests.capabilities.hospital.deploy.piped import Piped
from tests.capabilities.hospital.deploy.test_hospitals_for_real import table

pytestmark = pytest.mark.faults

PLANS = {
    "private": {"method": {"name": "fedavg", "rounds": 20}, **PRIVATE},
    "secure": {"method": {"name": "fedavg", "rounds": 20}, **SECURE},
    "scaffold": {"method": {"name": "scaffold", "rounds": 20}, "explain": {"sketch": "none"}},
}
LIMIT = 1500.0
"""Seconds of one run with its kills."""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    with fixed_noise():
        yield Faulty(tmp_path_factory.mktemp("kills"), table(), limit=600)


@contextmanager
def at_work(consortium: Faulty):
    piped = Piped(consortium)
    try:
        yield piped
    finally:
        piped.close()
        consortium.put_aside()


def finish(piped: Piped, name: str, *, ended: threading.Event | None = None) -> Outcome:
    """Wait for the end of a run."""
    assert piped.run is not None
    code = piped.run.wait(LIMIT)
    if ended is not None:
        ended.set()
    assert code == 0, piped.consortium.end_of_log(name)
    return piped.consortium.outcome(Run(piped.consortium.link.runs / name))


@pytest.fixture(scope="module")
def calm(consortium):
    known: dict[str, Outcome] = {}

    def run(name: str) -> Outcome:
        if name not in known:
            (consortium.folder / f"{name}.toml").write_text(dumps({"name": name, **PLANS[name]}))
            with at_work(consortium) as piped:
                piped.start_run(name)
                known[name] = finish(piped, name)
        return known[name]

    return run


@pytest.mark.parametrize("name", ["private", "scaffold"])
def test_a_server_killed_at_random_instants(consortium, calm, name):
    expected, began, waits = calm(name), time.monotonic(), instants(f"server {name}", longest=6.0)
    kills, runs, wanted = 0, 0, -(-KILLS // 2)
    while kills < wanted:
        with at_work(consortium) as piped:
            piped.start_run(name)
            while kills < wanted:
                time.sleep(next(waits))
                assert piped.run is not None
                if piped.run.poll() is not None:
                    break
                piped.kill_run()
                kills += 1
                piped.start_run(name)
            finish(piped, name).check_same(expected)
        runs += 1
    report(f"server's run killed, {name}", kills, f"same bits and charges in {runs} runs", began)


def kill_sites(piped: Piped, kills: Counter[str], wanted: int, ended: threading.Event) -> list[threading.Thread]:
    """Kill each site at random instants of the rounds: the worker, or every fifth time keeper and worker.

    A site that was killed answers a message before it is killed again: two workers that die at one message are a refusal.
    """

    def kill(site: str) -> None:
        keeper, waits, answered = piped.keepers[site], instants(f"{site} {kills[site]}", longest=1.5), 0
        while kills[site] < wanted and not ended.wait(next(waits)):
            if keeper.answers > answered and piped.consortium.rounds_of(piped.name):
                answered = keeper.answers
                kills[site] += keeper.kill(whole=kills[site] % 5 == 0)

    threads = [threading.Thread(target=kill, args=(site,), daemon=True) for site in piped.keepers]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize(("name", "share"), [("private", 0.6), ("scaffold", 0.4)])
def test_each_site_killed_at_random_instants(consortium, calm, name, share):
    expected, began, kills, wanted = calm(name), time.monotonic(), Counter[str](), round(share * KILLS)
    runs = 0
    while min(kills[site] for site in consortium.names) < wanted:
        with at_work(consortium) as piped:
            ended = threading.Event()
            piped.start_run(name)
            threads = kill_sites(piped, kills, wanted, ended)
            outcome = finish(piped, name, ended=ended)
            for thread in threads:
                thread.join()
            outcome.check_stated(expected)
        runs += 1
    told = told_missing(outcome)
    report(f"each of {len(kills)} sites killed, {name}", dict(kills), f"{told} in {runs} runs; charges right", began)


def test_server_and_sites_killed_within_secure_sums(consortium, calm):
    """Masks are lost with a worker, so its site is missing from that sum. Of three sites all are needed: the run then ends with
    a statement, and charges are those of a run without faults, as far as it came.
    """
    expected, began, kills, wanted = calm("secure"), time.monotonic(), Counter[str](), max(1, KILLS // 5)
    waits, outcomes = instants("secure", longest=10.0), []
    while kills["server"] < wanted:
        with at_work(consortium) as piped:
            ended = threading.Event()
            piped.start_run("secure")
            threads = kill_sites(piped, kills, wanted, ended)
            while kills["server"] < wanted:
                time.sleep(next(waits))
                assert piped.run is not None
                if piped.run.poll() is not None:
                    break
                piped.kill_run()
                kills["server"] += 1
                piped.start_run("secure")
            outcome = finish_sums(piped, ended)
            for thread in threads:
                thread.join()
            if outcome is None:
                charges = consortium.charges("secure")
                assert all(charges[site].items() <= expected.charges[site].items() for site in charges)
                outcomes.append("sum halted, stated")
            else:
                outcome.check_stated(expected)
                outcomes.append(told_missing(outcome))
    report("server and each site killed within secure sums", dict(kills), "; ".join(outcomes), began)


RESUMES = 3


def finish_sums(piped: Piped, ended: threading.Event) -> Outcome | None:
    """Wait for the end of a run of secure sums; None if a sum is halted and resuming it does not help."""
    for _ in range(RESUMES):
        assert piped.run is not None
        if piped.run.wait(LIMIT) == 0:
            return finish(piped, "secure", ended=ended)
        assert "secure sum halted" in piped.consortium.end_of_log("secure")
        piped.start_run("secure")
    if piped.run.wait(LIMIT) == 0:
        return finish(piped, "secure", ended=ended)
    ended.set()
    assert "secure sum halted" in piped.consortium.end_of_log("secure")
    return None


def told_missing(outcome: Outcome) -> str:
    """State the outcome of a run for the table."""
    gone: Counter[str] = Counter(reason for missing in outcome.missing for reason in missing.values())
    return f"missing {dict(gone)}" if gone else "same bits"


