"""A consortium of real processes to which faults happen, and the comparison of its run with an undisturbed one.

`Faulty.calm` runs an experiment without faults, keeps what it gave and puts every state aside, so that the same experiment
under the same name can be run again from the same start. The noise of sites is drawn from their names (`fixed_noise`): two
runs that answer the same Asks have the same bits.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from grandrounds.audit.ledger import Ledger
from grandrounds.capabilities.hospital.deploy.records import DONE, FAILED, STOPPED, RunRecords
from grandrounds.protocol.identity import load_public
from grandrounds.runs.run import Run
from tests.capabilities.hospital.deploy.real import ROUNDS, Real, end_group, until
from tests.engine.hospitals import final_model

NOISE = str(Path(__file__).parent / "fixed_noise")
SEED = int(os.environ.get("FAULTS_SEED", "35"))
KILLS = int(os.environ.get("FAULTS_KILLS", "50"))
REAL_KILLS = int(os.environ.get("FAULTS_REAL_KILLS", "10"))
"""Seed of the instants; kills of the server and of each site over pipes, and in whole consortia."""

PRIVATE = {
    "privacy": {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-5, "sampling_rate": 0.2, "min_rows": 10},
    "explain": {"sketch": "none"},
}
SECURE = {**PRIVATE, "privacy": {**PRIVATE["privacy"], "secure": True}}

Charges = dict[str, dict[str, Any]]
"""Site -> name of a charge -> its releases."""


@dataclass(frozen=True)
class Outcome:
    """The model, the Decisions and the charges of a run."""

    model: np.ndarray
    decisions: list[dict[str, Any]]
    charges: Charges

    @property
    def missing(self) -> list[dict[str, str]]:
        return [decision["missing"] for decision in self.decisions]

    def check_same(self, calm: Outcome) -> None:
        """Require the bits and the charges of an undisturbed run."""
        assert self.missing == calm.missing
        assert np.array_equal(self.model, calm.model), float(np.abs(self.model - calm.model).max())
        assert self.charges == calm.charges

    def check_stated(self, calm: Outcome) -> None:
        """Require the bits of an undisturbed run, or the names of missing sites and why; in any case right charges."""
        if not any(self.missing):
            self.check_same(calm)
        assert len(self.decisions) == len(calm.decisions)
        assert all(reason for missing in self.missing for reason in missing.values())
        for site, charges in self.charges.items():
            if calm.charges.get(site):  # without noise nothing is charged
                check_once(site, charges, self.decisions)
            else:
                assert not charges


def check_once(site: str, charges: dict[str, Any], decisions: list[dict[str, Any]]) -> None:
    """Require one charge for each round that counts a site, at most one for a round that it is missing from."""
    by_round = Counter(int(json.loads(name)[1].split("/")[1]) for name in charges)
    assert not [name for name in charges if name.endswith(' again"]')], "a release was charged twice"
    assert all(count == 1 for count in by_round.values()), by_round
    for decision, round in zip(decisions, range(1, len(decisions) + 1), strict=True):
        if site in decision["weights"]:
            assert by_round[round] == 1, f"round {round} counts {site} without a charge"


@dataclass
class Faulty(Real):
    """A consortium to which faults happen. `kills` counts them."""

    server_process: subprocess.Popen[bytes] | None = None
    kills: Counter[str] = field(default_factory=Counter)

    def start_server(self, *, wait: bool = True) -> None:
        """Start the server as a process of this one, so that it can be killed while it starts."""
        words = [ROUNDS, "server", "start", str(self.out), "--health", "0", "--foreground"]
        with (self.folder / "server.out").open("ab") as log:
            self.server_process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment.get("server", {})},
            )
        if wait:
            until((self.link.state / "ready").exists, seconds=120, what="the server")

    def kill_server(self) -> None:
        """kill -9 of SuperLink, gateway, scheduler and run."""
        assert self.server_process is not None
        (self.link.state / "ready").unlink(missing_ok=True)
        server = psutil.Process(self.server_process.pid)
        inside = server.children(recursive=True)
        for process in (server, *inside):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.server_process.wait()
        psutil.wait_procs(inside, timeout=20)
        self.kills["server"] += 1

    def close(self) -> None:
        for process in self.sites.values():
            end_group(process.pid, signal.SIGTERM)
        for process in self.sites.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            end_group(process.pid, signal.SIGKILL)
        for node in self.nodes:
            with suppress(psutil.NoSuchProcess):
                node.kill()
        self.sites.clear()
        self.nodes.clear()
        if self.server_process is not None:
            self.server_process.terminate()
            try:
                self.server_process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill_server()
            self.server_process = None

    def put_aside(self) -> None:
        """Forget all runs, at the server and at the sites; keys and policies stay."""
        folders = [self.link.runs, self.link.state, *(self.site_folder(name) / "state" for name in self.names)]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def calm(self, name: str, settings: dict[str, Any]) -> Outcome:
        """Run an experiment without faults, and forget it."""
        with self.at_work():
            self.submit(name, settings)
            outcome = self.outcome(self.done(name, seconds=600))
        self.put_aside()
        return outcome

    def outcome(self, run: Run) -> Outcome:
        with Ledger.open(run.folder / "ledger.db") as ledger:
            assert ledger.verify(load_public(run.folder / "server.pub")) == []
        return Outcome(final_model(run), [round["decision"] for round in run.rounds], self.charges(run.folder.name))

    def charges(self, name: str) -> dict[str, dict[str, Any]]:
        """Read every site's charges of a run."""
        budgets = {site: self.site_folder(site) / "state" / "purse.json" for site in self.names}
        charges = {site: json.loads(path.read_text())["keys"] for site, path in budgets.items()}
        return {s: {k: v for k, v in keys.items() if json.loads(k)[0] == name} for s, keys in charges.items()}

    def is_over(self, name: str) -> bool:
        record = RunRecords(self.link.state / "runs").get(name) or {}
        assert record.get("state") not in (FAILED, STOPPED), self.end_of_log(name)
        return record.get("state") == DONE

    def await_round(self, name: str, *, seconds: float = 400.0) -> None:
        """Wait for one more finished round, or for the end of the run."""
        before = len(self.rounds_of(name))
        until(lambda: len(self.rounds_of(name)) > before or self.is_over(name), seconds=seconds, what="a round")

    def end_of_log(self, name: str) -> str:
        log = self.link.logs / f"run-{name}.log"
        return log.read_text()[-2000:] if log.exists() else "the run has no log"

    def is_up(self, name: str) -> bool:
        """Check that a site's keeper, worker and SuperNode run."""
        try:
            self.worker(name)
        except (psutil.NoSuchProcess, StopIteration, KeyError):
            return False
        return True


def instants(stream: str, *, longest: float) -> Iterator[float]:
    """Random waits of 0 to `longest` seconds, the same for every call with this name."""
    rng = random.Random(f"{SEED} {stream}")
    while True:
        yield rng.uniform(0.0, longest)


@contextmanager
def fixed_noise() -> Iterator[None]:
    """Let workers that are started here draw their noise from their names."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([NOISE, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def report(fault: str, times: object, outcome: str, began: float) -> None:
    """Print one line of the table in docs/failures.md, and append it to the file that FAULTS_REPORT names."""
    line = f"| {fault} | {times} | {outcome} | {time.monotonic() - began:.0f} s |"
    print(line)
    if path := os.environ.get("FAULTS_REPORT"):
        with Path(path).open("a") as f:
            f.write(line + "\n")
