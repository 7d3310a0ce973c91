"""What a server of real hospitals holds in memory, and how long it works, as hospitals and parameters grow.

    python bench/scale_remote.py [--grid 10x1e5,100x1e5,...] [--memory-up-to 1.2e9] [--spool FOLDER]

One FedAvg round as a run has it: every site is sent one letter with two Asks (score the model in use; train it) and answers
both. Messages, signatures (a key for each site), checks, the spool, the commitments for the ledger and the mean are the real
ones. All hospitals are one other process, which makes an answer when the server collects it, so that neither their memory
nor their time is the server's. Every line runs in processes of its own.

"in files" is the engine as it is; "in memory" is the same engine with the rows of all sites joined in memory instead.
Memory is the most anonymous memory (RssAnon, every 5 ms) that the round added to what the process held before. Pages of
mapped files are not in it: the system takes them back when it needs them. Seconds are processor seconds of the server's
process without those spent in the transport, and beside them seconds by the clock, which other work on the machine lengthens.

Rounds an hour are worked out, not measured:
    seconds = server + exchange + max(bytes of one site / site's line, bytes of all sites / server's line)
with training at the sites taken as 0, one exchange a round (by bench/flower.py 0.82 s with an earlier launcher, 3.74 s
with a stock SuperNode), 100 Mbit/s at a site and 1 Gbit/s at the server, and bytes of both directions one after the
other. A site's training time is added to it.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.plan import Settings
from grandrounds.engine.driver import Engine, EngineSettings
from grandrounds.engine.remote import RemoteEngine
from grandrounds.engine.transport import Reply
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import evaluate
from grandrounds.metrics import tally
from grandrounds.models.dense import Dense
from grandrounds.protocol.codec import bundle, encode_answer, parse_ask, unbundle
from grandrounds.protocol.envelope import Envelope, digest, peek, seal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answer, Ask
from grandrounds.protocol.sessions import KEY, EphemeralKey, Handshake, Session
from grandrounds.runs.ledger_recorder import Commitments
from smoke import pick

RUN, SERVER = "scale", "server"
GRID = pick("10x1e5,100x1e5,1000x1e5,10x1e6,100x1e6,1000x1e6,10x1e7,50x1e7,2x1e8", "3x1e3")
SITE_LINE, SERVER_LINE = 100e6 / 8, 1e9 / 8  # bytes a second
FAST, STOCK = 0.82, 3.74
AT_A_TIME = 32 * 2**20
MB = 2**20


def names(sites: int) -> list[str]:
    return [f"h{k:04d}" for k in range(sites)]


# ---- the hospitals' process ----


def hospitals(wire: Connection, sites: int, size: int) -> None:
    """Answers letters, one when it is asked for one, in the order that they came."""
    keys = {name: Identity.simulated(0, name) for name in names(sites)}
    layout, base = Dense((size - 1, 1)).layout, np.linspace(-1, 1, size, dtype=np.float32)
    waiting: list[tuple[str, str, list[Any], Envelope, bytes]] = []
    sessions: dict[str, Session] = {}
    server = Identity.simulated(0, SERVER).public
    while True:
        word = json.loads(wire.recv_bytes())
        if "to" in word:
            data = wire.recv_bytes()
            request = peek(data)
            body = sessions[word["to"]].decrypt(request) if request.session else request.body
            asks = [parse_ask(part) for part in unbundle(body)]
            hello = b"" if request.session else data
            waiting.append((word["to"], digest(data), [(a.task, a.id, a.meta["words"]) for a in asks], request, hello))
            del data, body
        elif "give" in word:
            site, about, asks, request, hello = waiting.pop(0)
            if hello:
                (_, id, words), key = asks[0], EphemeralKey()
                body = encode_answer(Answer(site, id, {KEY: key.public}), None)
                sealed = seal(keys[site], Envelope(site, SERVER, RUN, body, about=about))
                sessions[site] = Handshake(server, keys[site].public, hello, sealed).site_session(key, words[KEY])
                wire.send_bytes(sealed)
                continue
            bodies = [encode_answer(Answer(site, id, told(task, base, site)), layout) for task, id, _ in asks]
            envelope = Envelope(site, SERVER, RUN, bundle(bodies), about=about)
            wire.send_bytes(seal(keys[site], sessions[site].encrypt_answer(envelope, request)))
        else:
            return


def told(task: str, base: np.ndarray, site: str) -> dict[str, Any]:
    """What a site answers to a task: of the right shape."""
    number = int(site[1:]) + 1
    if task == "train":
        return {"model": base * np.float32(1 / number), "count": 100 + number, "steps": 7}
    if task == "evaluate":
        one = tally(np.zeros((1, 1)), np.zeros(1, np.int64), classes=2, group=np.zeros(1, np.int64), groups=1)
        return {f"test.{name}": array for name, array in one.arrays().items()}
    return {"train_rows": 100 + number, "val_rows": 0, "test_rows": 1}


# ---- the server's process ----


class Line:
    """A transport to the hospitals' process. It holds a few answers at a time and counts the seconds that it takes."""

    def __init__(self, wire: Connection, sites: int) -> None:
        self._wire, self._sites = wire, names(sites)
        self._tickets: list[str] = []
        self._sent = 0
        self.wall = self.cpu = 0.0
        self.bytes = [0, 0]

    def addresses(self) -> tuple[str, ...]:
        return tuple(self._sites)

    def send(self, messages: Sequence[tuple[str, bytes]]) -> list[str]:
        began = time.perf_counter(), time.process_time()
        made = []
        for address, data in messages:
            self._wire.send_bytes(json.dumps({"to": address}).encode())
            self._wire.send_bytes(data)
            self.bytes[0] += len(data)
            self._sent += 1
            made.append(str(self._sent))
        self._tickets += made
        self._count(began)
        return made

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        began = time.perf_counter(), time.process_time()
        out: list[Reply] = []
        while self._tickets and sum(len(r.data or b"") for r in out) < AT_A_TIME:
            self._wire.send_bytes(b'{"give": 1}')
            data = self._wire.recv_bytes()
            self.bytes[1] += len(data)
            out.append(Reply(self._tickets.pop(0), data))
        self._count(began)
        return out

    def _count(self, began: tuple[float, float]) -> None:
        self.wall += time.perf_counter() - began[0]
        self.cpu += time.process_time() - began[1]


def status(name: str) -> float:
    """MB of this process by the system's own account."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name)) / 1024


class Peak:
    """The most anonymous memory while it is watched, MB."""

    def __enter__(self) -> Peak:
        self.before = self.most = status("RssAnon")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, status("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def ask(task: str, **shared: Any) -> Any:
    """One exchange by itself."""
    return (yield Ask(task, shared=shared, report=("train_rows", "val_rows", "test_rows")))


def one(sites: int, size: int, how: str, spool: Path) -> dict[str, float]:
    """One round; what it took."""
    mine, theirs = socket.socketpair()
    other = subprocess.Popen(
        [sys.executable, __file__, "--hospitals", f"{theirs.fileno()}", "--one", f"{sites}x{size}"],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    wire = Connection(mine.detach())
    line = Line(wire, sites)
    keys = {name: Identity.simulated(0, name).public for name in names(sites)}
    identity = Identity.simulated(0, SERVER)
    engine = RemoteEngine(EngineSettings(RUN, 0), transport=line, identity=identity, keys=keys, spool=spool)
    if how == "memory":
        engine._join = Engine._join.__get__(engine)  # type: ignore[method-assign]
    spec = json.dumps({"name": "logistic", "inputs": [size - 1], "classes": 2, "hidden": []})
    engine.drive(ask("prepare", spec=spec), round=0)
    plan = Settings(Experiment.parse({"data": {"table": "data frame", "label": "y", "site": "s"}}).plan())
    method, tallies = build_method(plan.method, plan.train), []
    model = np.zeros(size, np.float32)
    line.wall, line.cpu, line.bytes = 0.0, 0.0, [0, 0]
    Path("/proc/self/clear_refs").write_text("5")  # begin VmHWM anew
    with Peak() as peak:
        wall, cpu = time.perf_counter(), time.process_time()
        engine.piggyback(evaluate(ModelAssignment(model), ("test",)), tallies.append)
        work = Commitments(identity, RUN).watched(method.round(Server(1, model, tuple(keys), 0)))
        found = engine.drive(work, round=1).assignment.model
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    _check(found, sites, tallies)
    wire.send_bytes(b"{}")
    other.wait()
    return {
        "anon": peak.most - peak.before, "hwm": status("VmHWM"), "wall": wall - line.wall, "cpu": cpu - line.cpu,
        "down": line.bytes[0], "up": line.bytes[1],
    }  # fmt: skip


def _check(found: np.ndarray, sites: int, tallies: list[Any]) -> None:
    """The mean is the one that follows from what the hospitals sent, and all of them were scored."""
    count = 100.0 + np.arange(1, sites + 1)
    share = (count / count.sum() / np.arange(1, sites + 1)).sum()
    np.testing.assert_allclose(found, np.linspace(-1, 1, len(found), dtype=np.float32) * share, rtol=1e-5, atol=1e-7)
    assert tallies[0].totals["test"].count.sum() == sites


# ---- the tables ----


def measured(grid: list[tuple[int, int]], up_to: float, spool: Path) -> dict[tuple[int, int, str], dict[str, float]]:
    found = {}
    for sites, size in grid:
        for how in ("files", "memory"):
            if how == "memory" and 4 * sites * size > up_to:
                continue
            command = [sys.executable, __file__, "--one", f"{sites}x{size}", "--how", how, "--spool", str(spool)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[sites, size, how] = json.loads(done.stdout)
            print(f"{sites} sites, {size:,} parameters, in {how}: {found[sites, size, how]}", file=sys.stderr)
    return found


def _per_hour(m: dict[str, float], sites: int, exchange: float) -> float:
    carried = m["down"] + m["up"]
    return 3600 / (m["cpu"] + exchange + max(carried / sites / SITE_LINE, carried / SERVER_LINE))


def tables(grid: list[tuple[int, int]], found: dict[tuple[int, int, str], dict[str, float]]) -> None:
    print("| parameters | sites | all answers MB | in files, MB | models' worth | in memory, MB | server s (clock) |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for sites, size in grid:
        m, other = found[sites, size, "files"], found.get((sites, size, "memory"))
        beside = "" if other is None else f"{other['anon']:,.0f}"
        print(
            f"| {size:,} | {sites:,} | {4 * sites * size / MB:,.0f} | {m['anon']:,.0f} | {m['anon'] * MB / (4 * size):.1f} "
            f"| {beside} | {m['cpu']:.2f} ({m['wall']:.1f}) |"
        )
    print()
    print(
        "| parameters | sites | MB down, up a site | server s | network s | rounds an hour | with a stock SuperNode |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for sites, size in grid:
        m = found[sites, size, "files"]
        carried = m["down"] + m["up"]
        line = max(carried / sites / SITE_LINE, carried / SERVER_LINE)
        print(
            f"| {size:,} | {sites:,} | {m['down'] / sites / MB:.1f}, {m['up'] / sites / MB:.1f} | {m['cpu']:.2f} | {line:.2f} "
            f"| {_per_hour(m, sites, FAST):,.0f} | {_per_hour(m, sites, STOCK):,.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", default=GRID, help="sites x parameters")
    parser.add_argument("--memory-up-to", type=float, default=1.2e9, help="bytes of all answers, for joining in memory")
    parser.add_argument("--spool", type=Path, help="a folder on a disk (default: the system's for temporary files)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--how", default="files", help=argparse.SUPPRESS)
    parser.add_argument("--hospitals", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        sites, size = (int(n) for n in args.one.split("x"))
        if args.hospitals is not None:
            hospitals(Connection(args.hospitals), sites, size)
        else:
            print(json.dumps(one(sites, size, args.how, args.spool)))
        return
    grid = [(int(k), int(float(p))) for k, _, p in (cell.partition("x") for cell in args.grid.split(","))]
    with tempfile.TemporaryDirectory(dir=args.spool) as folder:
        tables(grid, measured(grid, args.memory_up_to, Path(folder)))


if __name__ == "__main__":
    main()
