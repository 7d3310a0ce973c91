"""Measure an exchange over Flower against Flower's own, and the cost of idle sites and servers.

`python bench/flower.py` starts two consortia on this machine, in turn: SuperLink with a database, nginx, SuperNodes with TLS and
node keys; first two sites, then four. An exchange sends 1,000 float32 to each site, whose worker sends them back.

- `stock`: Flower's own SuperLink, SuperNodes and `Grid.send_and_receive`.
- `ours`: the programs and loops that `rounds server start` and `rounds site start` run.

In both an echo in this process is the worker, without Flower's start of a process for each message, which favours `stock`. The
first exchange of a run is left out: nodes fetch the run itself. Then `rounds server start` and `rounds site start` run
without a run, and their CPU time and memory (PSS) are read from /proc. Targets: an exchange within 0.25 of stock, an idle site
below 1% of a core, an idle server below 5%.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from tests.capabilities.hospital.deploy.flower_support import Consortium, HeldRun, until

from grandrounds.protocol.flower_message import MESSAGE_TYPE, pack, unpack
from smoke import pick, skip

SITES = ("north", "south", "east", "west")
NUMBERS = pick((2, 4), (1,))
"""Numbers of sites."""

TARGET, IDLE_SITE, IDLE_SERVER = 0.25, 1.0, 5.0
"""Ratio of an exchange to stock; percent of a core of an idle site and an idle server."""


def exchange_stock(run: HeldRun, nodes: tuple[str, ...], data: bytes) -> None:
    """Exchange a message with each node as a Flower app does."""
    from flwr.app import Message

    replies = run.grid.send_and_receive([Message(pack(data), int(node), MESSAGE_TYPE) for node in nodes])
    assert [unpack(reply.content) for reply in replies] == [data] * len(nodes)


def exchange_ours(run: HeldRun, nodes: tuple[str, ...], data: bytes) -> None:
    """Exchange a message with each node as a run does."""
    replies = run.exchange([(node, data) for node in nodes])
    assert [reply.data for reply in replies.values()] == [data] * len(nodes)


def measure(folder: Path, *, stock: bool, exchanges: int, size: int) -> dict[int, list[float]]:
    """Seconds of exchanges by number of sites."""
    consortium = Consortium(folder, *SITES, handler=lambda data: data, through_gateway=True, stock=stock)
    if consortium.gateway is None:
        skip("nginx is not installed: the gateway is a part of what is measured")
    exchange, seconds = exchange_stock if stock else exchange_ours, {}
    everyone = consortium.sites
    try:
        consortium.sites = everyone[: NUMBERS[0]]
        consortium.start()
        for number in NUMBERS:
            for site in everyone[len(consortium.sites) : number]:
                site.node.start()
                site.start_worker()
            consortium.sites = everyone[:number]
            until(lambda n=number: len(consortium.online()) == n, seconds=180)  # type: ignore[misc]
            run = consortium.run()
            nodes = run.addresses(number)
            times = []
            for _ in range(exchanges + 1):
                data, began = os.urandom(size), time.monotonic()
                exchange(run, nodes, data)
                times.append(time.monotonic() - began)
            run.finish()
            seconds[number] = times[1:]
    finally:
        consortium.sites = everyone
        consortium.close()
    return seconds


def measure_idle(folder: Path, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    """CPU in percent of a core and memory in MB of each program of an idle server and an idle site."""
    from tests.capabilities.hospital.deploy.real import Real
    from tests.capabilities.hospital.deploy.test_hospitals_for_real import table

    with Real(folder, table()).at_work() as real:
        time.sleep(40.0)  # until pages are warm and nodes calm
        roots = {"server": server_root(real), "site": psutil.Process(next(iter(real.sites.values())).pid)}
        before = {name: cpu_times(root) for name, root in roots.items()}
        began = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name, root in roots.items():
            found[name] = {}
            for program, used in cpu_times(root).items():
                percent = 100 * (used - before[name].get(program, 0.0)) / passed
                found[name][program] = {"percent": percent, "mb": memory(root)[program]}
    return found


def server_root(real: Any) -> psutil.Process:
    from grandrounds.capabilities.hospital.deploy.server import server_process

    return psutil.Process(server_process(real.link))


def _family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def _program(process: psutil.Process) -> str:
    """Name a process by its command line."""
    line = " ".join(process.cmdline())
    names = {
        "flower.launcher": "SuperNode", "superlink_launcher": "SuperLink", "nginx": "gateway", "runtime.worker": "worker",
        "server start": "rounds server start", "site start": "rounds site start (keeper)",
    }  # fmt: skip
    return next((name for part, name in names.items() if part in line), process.name())


def cpu_times(root: psutil.Process) -> dict[str, float]:
    """CPU seconds of a process and its children, by program."""
    found: dict[str, float] = {}
    for process in _family(root):
        used = process.cpu_times()
        found[_program(process)] = found.get(_program(process), 0.0) + used.user + used.system
    return found


def memory(root: psutil.Process) -> dict[str, float]:
    """Memory of a process and its children in MB (PSS: shared pages count in parts), by program."""
    found: dict[str, float] = {}
    for process in _family(root):
        found[_program(process)] = found.get(_program(process), 0.0) + process.memory_full_info().pss / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=pick(8, 1), help="Exchanges of a number of sites in one turn.")
    parser.add_argument("--turns", type=int, default=1, help="Turns of stock and ours.")
    parser.add_argument("--floats", type=int, default=1000, help="Numbers of a message.")
    parser.add_argument("--idle", type=float, default=pick(60.0, 0.0), help="Seconds of the idle measurement; 0: leave it out.")
    parser.add_argument("--json", type=Path, help="Write all figures here.")
    args = parser.parse_args()
    times: dict[str, dict[int, list[float]]] = {kind: {n: [] for n in NUMBERS} for kind in ("stock", "ours")}
    for _ in range(args.turns):
        for kind in times:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(Path(folder), stock=kind == "stock", exchanges=args.exchanges, size=4 * args.floats)
            for number, seconds in found.items():
                times[kind][number] += seconds
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    ratios = {}
    for number in NUMBERS:
        for kind in times:
            taken = times[kind][number]
            print(
                f"{number} sites, {kind:5}: mean {statistics.mean(taken):.2f} s of {len(taken)} (median "
                f"{statistics.median(taken):.2f}, {min(taken):.2f} to {max(taken):.2f})"
            )
        ratios[number] = statistics.mean(times["ours"][number]) / statistics.mean(times["stock"][number])
        print(f"{number} sites: {ratios[number]:.2f} of stock (target {TARGET})")
    idle = {}
    if args.idle:
        with tempfile.TemporaryDirectory() as folder:
            idle = measure_idle(Path(folder), args.idle)
        for name, target in (("site", IDLE_SITE), ("server", IDLE_SERVER)):
            percent = sum(one["percent"] for one in idle[name].values())
            mb = sum(one["mb"] for one in idle[name].values())
            print(f"idle {name}: {percent:.2f}% of a core (target {target}), {mb:.0f} MB")
            for program, one in idle[name].items():
                print(f"  {program}: {one['percent']:.2f}%, {one['mb']:.0f} MB")
    if args.json:
        args.json.write_text(json.dumps({"seconds": times, "ratio": ratios, "idle": idle}, indent=1))


if __name__ == "__main__":
    main()
