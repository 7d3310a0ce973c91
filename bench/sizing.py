"""Memory, disk and bandwidth of a real consortium by the number of sites and parameters.

    python bench/sizing.py [--grid 2x1e3,2x1e6,...] [--rounds 3] [--out sizing.json]

Every line is a consortium of real processes on one machine: SuperLink with a database, nginx with TLS, and at each site a
SuperNode, a keeper and a worker. Sites train a network with two hidden layers on 60 rows each, so that the model, not the
data, decides; add the size of your own table to the worker's memory.

Memory is the most resident memory of each process (VmHWM), sampled four times a second; of a site's processes the largest site
counts. Disk is the size of the run's folder and of Flower's database after the run, and the state of the largest site. Bytes
are those of messages (`state/counts.json`), in both directions, of one site in one round.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.capabilities.hospital.deploy.real import Real
from tests.support import patients

from grandrounds.capabilities.hospital.deploy.counts import FILE, ROUND, Counts
from grandrounds.capabilities.hospital.deploy.run_worker import REQUESTS
from smoke import pick

GRID = pick("2x1e3,2x1e6,2x1e7,2x5e7,4x1e6,12x1e3", "2x1e3")
ROWS, MB = 60, 1e6


def network(parameters: int) -> list[int]:
    """Two hidden layers that have about this many parameters together."""
    width = max(2, round(math.sqrt(parameters)))
    return [width, width]


class Memory:
    """The most resident memory of each kind of process below some processes."""

    def __init__(self, real: Real) -> None:
        self._real, self._over = real, threading.Event()
        self.most: dict[str, float] = defaultdict(float)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            with suppress(psutil.Error, OSError, ValueError):
                server = psutil.Process(int((self._real.link.state / "server.lock").read_text()))
                for process in (server, *server.children(recursive=True)):
                    self._note(process)
            for site in list(self._real.sites.values()):
                with suppress(psutil.Error, OSError):
                    keeper = psutil.Process(site.pid)
                    for process in (keeper, *keeper.children(recursive=True)):
                        self._note(process)

    def _note(self, process: psutil.Process) -> None:
        with suppress(psutil.Error, OSError, StopIteration):
            kind = _kind(" ".join(process.cmdline()))
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            most = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
            self.most[kind] = max(self.most[kind], float(most))


def _kind(command: str) -> str:
    words = {
        "run_worker": "server: run", "runtime.worker": "site: worker", "flower-supernode": "site: SuperNode",
        "flower.launcher": "site: SuperNode", "superlink": "server: SuperLink", "nginx": "server: nginx",
        "site start": "site: keeper", "server start": "server: scheduler",
    }  # fmt: skip
    return next((kind for word, kind in words.items() if word in command), "other")


def size(folder: Path) -> int:
    return sum(os.lstat(Path(where) / name).st_size for where, _, names in os.walk(folder) for name in names)


def round_seconds(log: Path) -> list[float]:
    """Seconds of each round, from the server's log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [float(line["seconds"]) for line in lines if line["event"] == ROUND]


def measure(sites: int, parameters: int, rounds: int) -> dict[str, Any]:
    """Run once and return bytes by kind."""
    with tempfile.TemporaryDirectory(prefix="sizing-") as folder:
        real = Real(Path(folder), patients([ROWS] * sites), limit=3600.0)
        settings = {
            "method": {"name": "fedavg", "rounds": rounds},
            "model": {"name": "mlp", "hidden": network(parameters)},
            "train": {"epochs": 1},
            "explain": {"sketch": "none"},
        }
        with Memory(real) as memory, real.at_work():
            run = real.run("size", settings, seconds=3000.0)
            counts = Counts.load(real.link.state / FILE)
            carried = {way: max(n for (_, w), n in counts.bytes.items() if w == way) for way in ("down", "up")}
            seconds = round_seconds(real.link.logs / REQUESTS)
            disk = {
                "server: run": size(real.link.runs / "size"),
                "server: database": sum(p.stat().st_size for p in real.link.state.glob("link.db*")),
                "site": max(size(real.site_folder(name) / "state" / "runs") for name in real.names),
            }
            return {
                "sites": sites, "parameters": int(run.summary["parameters"]), "rounds": rounds, "memory": dict(memory.most),
                "disk": disk, "bytes a round": {way: n / rounds for way, n in carried.items()}, "seconds": seconds,
                "load": os.getloadavg()[0],
            }  # fmt: skip


def show(found: list[dict[str, Any]]) -> None:
    """Print the tables of docs/sizing.md."""
    kinds = [f"server: {name}" for name in ("scheduler", "SuperLink", "nginx", "run")]
    kinds += [f"site: {name}" for name in ("keeper", "worker", "SuperNode")]
    print(f"| sites | parameters | {' | '.join(kinds)} |\n|{'---:|' * (2 + len(kinds))}")
    for one in found:
        cells = " | ".join(f"{one['memory'].get(kind, 0) / MB:,.0f}" for kind in kinds)
        print(f"| {one['sites']} | {one['parameters']:,} | {cells} |")
    print("\n| sites | parameters | run MB | database MB | site MB | down MB | up MB | seconds a round | load |\n|" + "---:|" * 9)
    for one in found:
        disk, carried = one["disk"], one["bytes a round"]
        cells = [disk["server: run"], disk["server: database"], disk["site"], carried["down"], carried["up"]]
        middle = sorted(one["seconds"])[len(one["seconds"]) // 2]
        print(
            f"| {one['sites']} | {one['parameters']:,} | {' | '.join(f'{n / MB:,.2f}' for n in cells)} | {middle:.1f} "
            f"| {one['load']:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", default=GRID, help="sites x parameters")
    parser.add_argument("--rounds", type=int, default=pick(3, 1))
    parser.add_argument("--out", type=Path, help="write the figures as JSON lines")
    args = parser.parse_args()
    found = []
    for cell in args.grid.split(","):
        sites, _, parameters = cell.partition("x")
        found.append(measure(int(sites), int(float(parameters)), args.rounds))
        if args.out is not None:
            with args.out.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
    show(found)


if __name__ == "__main__":
    main()
