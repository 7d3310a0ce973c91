"""Grand Rounds against other simulators and against bare loops, on four small workloads (see `workloads.py`).

    python bench/anchors.py [--workloads W1,W2] [--passes 3] [--peers pfl,fluke] [--json FILE]

From a checkout with `pip install -e ".[dev]"`. The first call writes the data and makes a virtual environment for each
peer in --cache (a few GB where pip takes torch with CUDA; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu keeps
it small). What cannot be installed is left out; the command exits with status 1 if a
port fails. All ports then run turn by turn, each in a process of its own with one
thread, as often as --passes says; one turn before that is not counted.

Whole run: process start to exit. For Grand Rounds that is `rounds run FILE.toml` (and `python -m grandrounds.job` with
the same plan): it reads the file, evaluates and checkpoints after every round, and writes the run folder with its
report; the other ports train, and evaluate once at the end. Round: training and averaging alone, the median of
all rounds but the first. Ratios are taken within a pass, and the median of the passes is shown. A peer with
the better figure is the best peer, for each figure and pass anew; so is the fastest floor. With --clock cpu all
figures are CPU seconds of the processes: steadier where other work shares the cores, but without waiting for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import grandrounds  # noqa: F401  (one BLAS thread for writing the data, too)
from grandrounds.core import toml
from grandrounds.data.store import cache_folder
from grandrounds.experiment.experiment import Experiment
from smoke import SMOKE, pick
from workloads import WORKLOADS, experiment, write_all

HERE = Path(__file__).resolve().parent
TORCH = "torch>=2.6,<2.14"
DENSE = tuple(name for name, w in WORKLOADS.items() if w.widths)
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
RUN, JOB, PARTS = "rounds run", "grandrounds.job", "inside"

Row = dict[str, Any]
"""One process: workload, port, pass, accuracy, and seconds by the clocks "wall" and "cpu" of what it reports: run, round."""


@dataclass(frozen=True)
class Port:
    """One way to run a workload. `needs` is what its own environment gets; without, it runs in this one."""

    name: str
    kind: str  # ours, floor or peer
    script: str = ""
    variant: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    workloads: tuple[str, ...] = tuple(WORKLOADS)


PORTS = (
    Port(RUN, "ours"),
    Port(JOB, "ours"),
    Port(PARTS, "ours", "ours.py"),
    Port("L1", "floor", "torch_loop.py", ("optim",)),
    Port("L1-plainsgd", "floor", "torch_loop.py", ("plain",)),
    Port("L2-numpy", "floor", "numpy_floor.py", workloads=DENSE),
    Port("L2-jax", "floor", "jax_floor.py", needs=("jax==0.10.2",), workloads=DENSE),
    Port("pfl", "peer", "pfl_peer.py", needs=(TORCH, "pfl==0.6.0")),
    Port("fluke", "peer", "fluke_peer.py", needs=(TORCH, "fluke-fl==0.8.1")),
)
TITLES = {
    RUN: "**Grand Rounds**, `rounds run`",
    JOB: "Grand Rounds, `grandrounds.job`",
    PARTS: "Grand Rounds, its rounds alone, from the same start as below",
    "L1": "floor: torch loop, torch.optim",
    "L1-plainsgd": "floor: torch loop, SGD by hand",
    "L2-numpy": "floor: all sites at once, NumPy",
    "L2-jax": "floor: all sites at once, JAX",
    "pfl": "peer: pfl 0.6.0",
    "fluke": "peer: fluke 0.8.1",
}


@dataclass(frozen=True)
class Bar:
    """What is asked of Grand Rounds: `figure` (run or round) against `rival`, by workload."""

    figure: str
    rival: str  # peer, floor, or the name of a port
    faster: bool  # at least so many times faster than the rival; otherwise at most so many times as slow
    limits: dict[str, float]


BARS = (
    Bar("round", "peer", faster=True, limits={"W1": 10, "W2": 10, "W3": 10}),
    Bar("round", "floor", faster=False, limits={"W1": 1.5, "W2": 1.5, "W3": 1.5}),
    Bar("round", "L1-plainsgd", faster=False, limits={"W4": 1.05}),
    Bar("run", "peer", faster=True, limits={"W1": 3, "W2": 3, "W3": 5, "W4": 1.2}),
)


# --- preparation ------------------------------------------------------------------------------------


def environment(port: Port, cache: Path) -> Path | None:
    """The Python that runs a port, its environment made where it is not there yet; None, with a sentence, where it cannot be."""
    if not port.needs:
        return Path(sys.executable)
    if SMOKE:  # peers are not installed for this
        try:
            return Path(sys.executable) if [version(re.split("[<=>]", p)[0]) for p in port.needs] else None
        except PackageNotFoundError as e:
            say(f"{port.name} is left out: {e.name} is not installed")
            return None
    folder = cache / "environments" / port.name
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists() and ready.read_text() == repr(port.needs):
        return python
    say(f"{port.name}: making an environment with {' and '.join(port.needs)}")
    shutil.rmtree(folder, ignore_errors=True)
    commands = [[sys.executable, "-m", "venv", str(folder)]]
    # one after another, and the earlier ones named again: torch keeps the build it came with
    for count in range(1, len(port.needs) + 1):
        commands.append([str(python), "-m", "pip", "install", "--quiet", *port.needs[:count]])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            say(f"{port.name} is left out: it could not be installed ({last_line(done.stderr)})")
            return None
    ready.write_text(repr(port.needs))
    return python


def write_plans(names: Iterable[str], folder: Path) -> None:
    """The experiment of each workload, as a user writes it and resolved."""
    for name in names:
        file = folder / f"{name}.toml"
        file.write_text(toml.dumps(experiment(name, folder)))
        (folder / f"{name}.plan.json").write_text(json.dumps(Experiment.load(file).plan()))


# --- one process ------------------------------------------------------------------------------------


def command(port: Port, workload: str, python: Path, data: Path, out: Path) -> list[str]:
    plan = str(data / f"{workload}.plan.json")
    if port.name == RUN:
        return [str(python.with_name("rounds")), "run", str(data / f"{workload}.toml"), "--out", str(out)]
    if port.name == JOB:
        return [str(python), "-m", "grandrounds.job", plan, "--out", str(out)]
    script = str(HERE / "ports" / port.script)
    return [str(python), script, workload, *([plan, str(out)] if port.name == PARTS else port.variant)]


def run(port: Port, workload: str, python: Path, data: Path) -> Row:
    """Run one port once, from process start to exit."""
    paths = [str(HERE)]
    if not port.needs and "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    env = os.environ | ONE_THREAD | {"ANCHORS_DATA": str(data), "PYTHONPATH": os.pathsep.join(paths)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # a checkout would be compiled at each start, an installed package never
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        out = Path(scratch) / "run"
        words = command(port, workload, python, data, out)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(words, env=env, cwd=scratch, capture_output=True, text=True)
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row: Row = {"workload": workload, "port": port.name, "run": {"wall": wall, "cpu": cpu}}
        if done.returncode:
            return row | {"error": last_line(done.stderr)}
        if port.name in (RUN, JOB):
            return row | {"accuracy": json.loads((out / "summary.json").read_text())["final"]["accuracy"]}
    said = [line for line in done.stdout.splitlines() if line.startswith("ANCHOR ")]
    told: Row = json.loads(said[-1].removeprefix("ANCHOR "))
    return row | told


# --- figures ----------------------------------------------------------------------------------------


class Results:
    """All rows of one workload, read by one clock."""

    def __init__(self, rows: list[Row], clock: str) -> None:
        self.rows = [r for r in rows if "error" not in r]
        self.clock = clock

    def of(self, port: str) -> list[Row]:
        return [r for r in self.rows if r["port"] == port]

    def accuracy(self, port: str) -> float:
        return statistics.median(r["accuracy"] for r in self.of(port))

    def seconds(self, port: str, figure: str) -> float | None:
        values = [r[figure][self.clock] for r in self.of(port) if figure in r]
        return statistics.median(values) if values else None

    def against(self, port: str, figure: str, rival: str) -> float | None:
        """The port's seconds divided by the rival's (the best of a kind) in the same pass; the median of the passes."""
        names = [p.name for p in PORTS if rival in (p.kind, p.name)]
        ratios = []
        for mine in self.of(port):
            others = [r for r in self.rows if r["pass"] == mine["pass"] and r["port"] in names]
            theirs = [r[figure][self.clock] for r in others if figure in r]
            if figure in mine and theirs:
                ratios.append(mine[figure][self.clock] / min(theirs))
        return statistics.median(ratios) if ratios else None


def table(name: str, results: Results) -> str:
    """Markdown: seconds, times faster than the best peer, times as slow as the fastest floor."""
    w = WORKLOADS[name]
    lines = [
        f"### {name}: {w.sites} sites, {w.rounds} rounds",
        "",
        "| what | whole run s | x faster than best peer | round ms | x faster than best peer | x of fastest floor | "
        "evaluation ms | checkpoint ms | accuracy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for port in TITLES:
        if not results.of(port):
            continue
        whole = port != PARTS  # which is no run as anyone would have it
        cells = [
            text(results.seconds(port, "run") if whole else None),
            text(inverse(results.against(port, "run", "peer")) if whole else None),
            text(results.seconds(port, "round"), 1e3),
            text(inverse(results.against(port, "round", "peer"))),
            text(results.against(port, "round", "floor")),
            text(results.seconds(port, "evaluate"), 1e3),
            text(results.seconds(port, "checkpoint"), 1e3),
            f"{results.accuracy(port):.4f}",
        ]
        lines.append(f"| {TITLES[port]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def judged(name: str, results: Results, other: Results) -> list[str]:
    """A line for each bar of a workload: PASS, FAIL, or that it could not be measured; beside it, the `other` clock."""
    lines = []
    for bar in BARS:
        if name not in bar.limits:
            continue
        what, port = {"run": ("whole run", RUN), "round": ("round", PARTS)}[bar.figure]
        rival = {"peer": "the best peer", "floor": "the fastest floor"}.get(bar.rival, bar.rival)
        limit = bar.limits[name]
        asked = f"at least {limit:g} times faster than" if bar.faster else f"at most {limit:g} times as slow as"
        found, beside = (r.against(port, bar.figure, bar.rival) for r in (results, other))
        if bar.faster:
            found, beside = inverse(found), inverse(beside)
        if found is None or beside is None:
            lines.append(f"- not measured: {name} {what} {asked} {rival}")
            continue
        verdict = "PASS" if (found >= limit if bar.faster else found <= limit) else "FAIL"
        lines.append(
            f"- {verdict}: {name} {what} {asked} {rival}: {found:.2f} ({beside:.2f} by the {other.clock} clock)"
        )
    return lines


def inverse(ratio: float | None) -> float | None:
    return None if ratio is None else 1 / ratio


def text(value: float | None, scale: float = 1.0) -> str:
    """Three digits, or nothing."""
    if value is None:
        return ""
    value *= scale
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def last_line(words: str) -> str:
    return (words.strip().splitlines() or ["no message"])[-1]


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# --- all of it --------------------------------------------------------------------------------------


def measure(jobs: list[tuple[Port, str, Path]], passes: int, data: Path) -> list[Row]:
    """Every job once in each pass, turn by turn; the turn before the first is not counted."""
    rows: list[Row] = []
    for turn in range(pick(0, 1), passes + 1):
        for port, workload, python in jobs:
            if turn == 0 and workload != jobs[0][1]:  # once for each port: what is imported is then in memory
                continue
            row = run(port, workload, python, data)
            failed = f"failed: {row['error']}" if "error" in row else f"{row['run']['wall']:.2f} s"
            say(f"{f'pass {turn}' if turn else 'not counted'}: {workload} {port.name} {failed}")
            if turn:
                rows.append(row | {"pass": turn, "load": os.getloadavg()[0]})
    return rows


def chosen(words: str, known: Iterable[str], what: str) -> list[str]:
    names = [w.strip() for w in words.split(",") if w.strip()]
    unknown = [n for n in names if n not in set(known)]
    if unknown:
        raise SystemExit(f"{what} '{unknown[0]}' is not known; there are: {', '.join(known)}")
    return names


def main() -> None:
    every = {kind: ",".join(p.name for p in PORTS if p.kind == kind) for kind in ("floor", "peer")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=pick(",".join(WORKLOADS), "W1"))
    parser.add_argument("--passes", type=int, default=pick(3, 1))
    parser.add_argument("--peers", default=every["peer"], help="peers to run (default: %(default)s)")
    parser.add_argument("--floors", default=every["floor"], help="floors to run (default: %(default)s)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="what is shown (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "anchors", help="data and environments")
    parser.add_argument("--json", type=Path, help="write every single measurement")
    args = parser.parse_args()
    names = chosen(args.workloads, WORKLOADS, "workload")
    wanted = chosen(args.floors, every["floor"].split(","), "floor") + chosen(
        args.peers, every["peer"].split(","), "peer"
    )
    cache = args.cache.resolve()
    data = cache / "data"
    write_all(data, names)
    write_plans(names, data)
    ports = [p for p in PORTS if p.kind == "ours" or p.name in wanted]
    pythons = {p.name: python for p in ports if (python := environment(p, cache)) is not None}
    jobs = [(p, w, pythons[p.name]) for w in names for p in ports if p.name in pythons and w in p.workloads]
    rows = measure(jobs, args.passes, data)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    print_all(rows, names, args.clock)
    failed = list(dict.fromkeys(f"{r['port']} with {r['workload']} ({r['error']})" for r in rows if "error" in r))
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


def print_all(rows: list[Row], names: list[str], clock: str) -> None:
    """What it ran on, a table for each workload, and the bars."""
    load, cores = statistics.median(r["load"] for r in rows), os.cpu_count() or 1
    packages = ", ".join(f"{package} {version(package)}" for package in ("grandrounds", "numpy", "torch"))
    passes = max(r["pass"] for r in rows)
    machine = f"{cores} cores ({platform.machine()})"
    print(f"{machine}, Python {platform.python_version()}, {packages}; {passes} passes, load {load:.1f}; {clock} clock")
    if load > cores:
        print("The machine was busy with other work: trust the cpu clock, and run it again.")
    verdicts = []
    for name in names:
        mine = [r for r in rows if r["workload"] == name]
        results, other = Results(mine, clock), Results(mine, "cpu" if clock == "wall" else "wall")
        print(f"\n{table(name, results)}")
        verdicts += judged(name, results, other)
    print("\n" + "\n".join(verdicts))


if __name__ == "__main__":
    main()
