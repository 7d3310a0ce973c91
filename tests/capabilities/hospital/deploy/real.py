"""A consortium of processes on one machine, started by the commands that people type, and the same experiment simulated.

SuperLink with TLS, node keys and a database, nginx before it, and at each site a SuperNode, a keeper and the process that
works with the site's own file.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from grandrounds.capabilities.hospital.deploy.control import ONLINE, Control
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.records import FAILED, STOPPED, RunRecords
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.core.errors import GrandRoundsError
from grandrounds.core.names import folder_name
from grandrounds.core.toml import dumps
from grandrounds.data.agreement.draft import draft_image_schema, draft_schema
from grandrounds.data.agreement.schema import AgreedSchema
from grandrounds.data.images import ImageSet
from grandrounds.data.row_files import split_images, to_npz
from grandrounds.data.table import Table
from grandrounds.experiment.experiment import Experiment
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run
from grandrounds.runs.runner import execute_plan
from tests.capabilities.hospital.deploy.consortia import free_port

ROUNDS = str(Path(sys.executable).parent / "rounds")
LABEL, SITE = "died", "hospital"
OPEN = {"smallest = 5": "smallest = 1", "notes = false": "notes = true", "epsilon = 10.0": "epsilon = 1e9"}
"""A policy that takes nothing away from answers, so that they are those of a simulation."""


def until(there: Callable[[], Any], *, seconds: float, what: str) -> Any:
    """What `there` gives once it gives something."""
    end = time.monotonic() + seconds
    while not (found := there()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.3)
    return found


def rounds(*words: str) -> str:
    """What a command prints; an error with its words where it fails."""
    done = subprocess.run([ROUNDS, *words], capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise AssertionError(
            f"rounds {' '.join(words)} gave {done.returncode}: {done.stderr[-2000:]}{done.stdout[-2000:]}"
        )
    return done.stdout


def write_csv(path: Path, table: Table, *, without: str = "") -> Path:
    names = [name for name in table.columns if name != without]
    with path.open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(names)
        for row in zip(*(table.columns[name].tolist() for name in names), strict=True):
            out.writerow(["" if isinstance(v, float) and math.isnan(v) else v for v in row])
    return path


@dataclass(frozen=True)
class Dealt:
    """One file for each hospital, all of them in one, and what was agreed. `here`: where a simulation finds its rows."""

    whole: Path
    files: dict[str, Path]
    agreed: AgreedSchema
    here: dict[str, Any]

    @classmethod
    def of(cls, rows: Table | ImageSet, folder: Path) -> Dealt:
        return cls._pictures(rows, folder) if isinstance(rows, ImageSet) else cls._table(rows, folder)

    @classmethod
    def _table(cls, table: Table, folder: Path) -> Dealt:
        site = np.asarray(table.columns[SITE]).astype(str)
        whole = write_csv(folder / "all.csv", table)
        files = {}
        for name in dict.fromkeys(site.tolist()):
            own = table.take(np.flatnonzero(site == name))
            files[name] = write_csv(folder / f"{folder_name(name)}.csv", own, without=SITE)
        return cls(whole, files, draft_schema(table, label=LABEL, site=SITE), {"table": str(whole), "site": SITE})

    @classmethod
    def _pictures(cls, pictures: ImageSet, folder: Path) -> Dealt:
        whole = folder / "all.npz"
        whole.write_bytes(to_npz(replace(pictures, columns={**pictures.columns, "site": pictures.site})))
        files = {name: folder / f"{folder_name(name)}.npz" for name in dict.fromkeys(pictures.site.tolist())}
        for name, own in split_images(pictures, None).items():
            files[name].write_bytes(to_npz(own))
        nowhere = {"pictures": None, "masks": None, "label": "labels", "site": "site", "table": str(whole)}
        return cls(whole, files, draft_image_schema(pictures), nowhere)


@dataclass
class Real:
    """Sites whose rows are those of a table, by its column `hospital`, or of pictures, by their site. `dial`: ports that
    sites dial, if not the gateway's."""

    folder: Path
    table: Table | ImageSet
    limit: float = 600.0
    port: int = 0
    in_memory: bool = False
    dial: dict[str, int] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)  # further settings of [server]
    environment: dict[str, dict[str, str]] = field(default_factory=dict)  # of a site's processes, by its name
    sites: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    nodes: list[psutil.Process] = field(default_factory=list)  # SuperNodes whose keeper was killed

    def __post_init__(self) -> None:
        self.dealt = Dealt.of(self.table, self.folder)
        self.names = tuple(self.dealt.files)
        self.port = self.port or free_port()
        said = {
            "name": "real",
            "server": {"address": "127.0.0.1", "port": self.port, "superlink_port": free_port(), **self.server},
            "sites": [{"name": name} for name in self.names],
            "data": {n: v for n, v in self.dealt.agreed.to_dict().items() if n != "schema"},
        }
        (self.folder / "consortium.toml").write_text(dumps(said))
        self.out = self.folder / "out"
        self.provision()
        for name in self.names:
            self._settle(self.site_folder(name), self.dial.get(name, self.port))
        self.link = Link.from_folder(self.out)

    def provision(self) -> None:
        """Folders with keys, made here: the sites take part at once."""
        rounds("provision", str(self.folder / "consortium.toml"), "--out", str(self.out), "--make-keys", "--policy", "research")

    def _settle(self, folder: Path, dialled: int) -> None:
        """Ports that are free here, and a policy that leaves answers as they are."""
        said = (folder / "site.toml").read_text()
        said = re.sub(
            r"(?m)^port = (\d+)$", lambda m: f"port = {dialled if int(m[1]) == self.port else free_port()}", said
        )
        said = re.sub(r"(?m)^seconds = 600$", f"seconds = {self.limit:.0f}", said)
        (folder / "site.toml").write_text(said)
        policy = (folder / "policy.toml").read_text()
        for before, after in OPEN.items():
            assert before in policy, before
            policy = policy.replace(before, after)
        (folder / "policy.toml").write_text(policy)

    def site_folder(self, name: str) -> Path:
        return Folders(self.out).site(name)

    # Starting and ending

    def start(self) -> None:
        self.start_server()
        for name in self.names:
            self.start_site(name)
        self.all_there()

    @contextmanager
    def at_work(self) -> Iterator[Real]:
        """Started, and ended whatever is done with it."""
        try:
            self.start()
            yield self
        finally:
            self.close()

    def start_server(self) -> None:
        rounds("server", "start", str(self.out), "--health", "0", *(["--in-memory"] if self.in_memory else []))

    def start_site(self, name: str, *options: str) -> None:
        folder = self.site_folder(name)
        words = [ROUNDS, "site", "start", str(folder), "--data", str(self.dealt.files[name]), *options]
        with (self.folder / f"{folder_name(name)}.out").open("ab") as log:
            self.sites[name] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment.get(name, {})},
            )

    def stop_site(self, name: str) -> None:
        """As its people stop it."""
        process = self.sites.pop(name)
        end_group(process.pid, signal.SIGINT)
        process.wait(30)

    def all_there(self, *, seconds: float = 150.0) -> None:
        until(lambda: self.online() == set(map(folder_name, self.names)), seconds=seconds, what="all sites online")

    def online(self) -> set[str]:
        try:
            with Control.local(self.link) as control:
                return {node.name for node in control.nodes() if node.status == ONLINE}
        except GrandRoundsError:
            return set()

    def close(self) -> None:
        for process in self.sites.values():
            end_group(process.pid, signal.SIGTERM)
        for process in self.sites.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            end_group(process.pid, signal.SIGKILL)
        for node in self.nodes:
            if node.is_running():
                node.kill()
        subprocess.run([ROUNDS, "server", "stop", str(self.out)], capture_output=True, timeout=90)

    # What can be killed

    def keeper(self, name: str) -> psutil.Process:
        """`rounds site start` of a site."""
        return psutil.Process(self.sites[name].pid)

    def worker(self, name: str) -> psutil.Process:
        """The process that works with a site's data."""
        inside = self.keeper(name).children(recursive=True)
        return next(p for p in inside if "grandrounds.capabilities.hospital.keeper.runtime.worker" in p.cmdline())

    def kill_keeper(self, name: str) -> None:
        """kill -9 of the keeper and of the process that works with the data; the SuperNode stays."""
        worker = self.worker(name)
        self.nodes += [p for p in self.keeper(name).children(recursive=True) if p.pid != worker.pid]
        self.keeper(name).kill()
        worker.kill()
        self.sites[name].wait()

    def kill_site(self, name: str) -> None:
        """kill -9 of everything at a site, as when its machine loses power."""
        end_group(self.sites[name].pid, signal.SIGKILL)
        self.sites[name].wait()

    def kill_server(self) -> None:
        """kill -9 of everything at the server."""
        keeper = psutil.Process(int((self.link.state / "server.lock").read_text()))
        inside = keeper.children(recursive=True)
        for process in (keeper, *inside):
            process.kill()
        psutil.wait_procs([keeper, *inside], timeout=20)

    # Runs

    def submit(self, name: str, settings: dict[str, Any]) -> None:
        file = self.folder / f"{name}.toml"
        file.write_text(dumps({"name": name, **settings}))
        rounds("server", "submit", str(file), "--server", str(self.out), "--name", name)

    def done(self, name: str, *, seconds: float = 300.0) -> Run:
        """The run, once it is over; an error with its log where it failed."""
        folder = self.link.runs / name

        def over() -> bool:
            record = RunRecords(self.link.state / "runs").get(name) or {}
            if record.get("state") in (FAILED, STOPPED):
                log = (self.link.logs / f"run-{name}.log").read_text()
                raise AssertionError(f"run {name} {record['state']}: {log[-3000:]}")
            return (folder / "summary.json").exists() and record.get("state") == "done"

        until(over, seconds=seconds, what=f"run {name}")
        return Run(folder)

    def run(self, name: str, settings: dict[str, Any], *, seconds: float = 300.0) -> Run:
        self.submit(name, settings)
        return self.done(name, seconds=seconds)

    def rounds_of(self, name: str) -> list[dict[str, Any]]:
        """Rounds that count so far."""
        try:
            lines = (self.link.runs / name / "checkpoint" / "rounds.jsonl").read_text().splitlines()
            return [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return []

    def simulated(self, name: str, settings: dict[str, Any]) -> Run:
        """The same experiment with all rows in this process."""
        data = {**settings.get("data", {}), **self.dealt.agreed.settings(), **self.dealt.here}
        folder = RunFolder(self.folder / "simulated" / name)
        folder.create()
        execute_plan(Experiment.parse({"name": name, **settings, "data": data}).plan(), folder)
        return Run(folder.path)

    def output(self, name: str) -> str:
        """All that `rounds site start` printed."""
        return (self.folder / f"{folder_name(name)}.out").read_text()

    def log(self, name: str) -> list[dict[str, Any]]:
        """What the site wrote down of letters."""
        return [json.loads(line) for line in (self.site_folder(name) / "state" / "log.jsonl").read_text().splitlines()]


def end_group(pid: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, which)
