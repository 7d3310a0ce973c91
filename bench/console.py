"""Size, speed and memory of the console, each beside a baseline of the same run.

    python bench/console.py [--run FOLDER] [--rounds 2000] [--runs 5000] [--rounds-finished 40] [--no-browser]

Makes a run of 152 hospitals (a minute; or takes the finished run FOLDER), then measures:

- bytes of a first visit in a real Chromium with an empty cache: sign in, the list, the run with its first figures. Baseline:
  the same bytes without compression.
- seconds until the first figure is drawn, when the browser has the scripts. Baseline: the run's own report.html.
- memory and CPU seconds of the console for each page of a live run of `--rounds` rounds, which is made by repeating the rounds
  of the run. Baseline: reading the whole journal again, as a page did before.
- CPU seconds of the list of `--runs` runs and of one update of its progress. Baseline: the first time.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from smoke import SMOKE, pick

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
DRAWN = "() => document.querySelector('figure[data-figure] .main-svg') !== null"
REPORT = "() => document.querySelector('.plot .main-svg') !== null"
FILES = (
    *("summary.json", "round_logs.json", "explanations.json", "schema.json", "experiment.toml"),
    *("checkpoint/plan.json", "checkpoint/rounds.jsonl", "checkpoint/state.safetensors"),
)
LIGHT, FIRST_FIGURE, MEMORY, PAGE = 1.6, 1.0, 400.0, 1.0
"""Bars: megabytes, seconds, megabytes, CPU seconds."""

VISITS = pick(5, 1)
"""Warm visits."""


def make_run(folder: Path, rounds: int) -> None:
    command = [_rounds(), "run", pick("icu-cohort", "heart"), "--set", f"method.rounds={rounds}", "--set", "explain.every=10"]
    subprocess.run([*command, "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)


def make_live_run(source: Path, folder: Path, rounds: int) -> None:
    """Repeat the rounds of a finished run in the journal of an unfinished one."""
    from grandrounds.core.arrays import load, save

    (folder / "checkpoint").mkdir(parents=True)
    shutil.copy(source / "checkpoint" / "plan.json", folder / "checkpoint")
    lines = [json.loads(line) for line in (source / "checkpoint" / "rounds.jsonl").read_bytes().splitlines()]
    with (folder / "checkpoint" / "rounds.jsonl").open("wb") as f:
        for number in range(1, rounds + 1):
            record = lines[(number - 1) % len(lines)]
            record["round"] = record["decision"]["round"] = number
            f.write(json.dumps(record).encode() + b"\n")
        size = f.tell()
    arrays, facts = load(source / "checkpoint" / "state.safetensors")
    save(folder / "checkpoint" / "state.safetensors", arrays, {**facts, "journal": size, "round": rounds})
    (folder / "checkpoint" / "lock").touch()


def make_many_runs(source: Path, root: Path, count: int) -> None:
    """Make run folders whose files are hard links to those of one run."""
    for number in range(count):
        folder = root / f"run-{number:05d}"
        (folder / "checkpoint").mkdir(parents=True)
        for name in FILES:
            os.link(source / name, folder / name)


@dataclass
class Console:
    """A console in a process of its own."""

    url: str
    token: str
    process: subprocess.Popen[str]

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, key: str = "VmRSS") -> float:
        """Megabytes in memory, or at most (VmHWM)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{key}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    def cost(self, path: str, **query: object) -> tuple[float, httpx.Response]:
        """CPU seconds of the console for a request."""
        before = self.cpu()
        headers = {"authorization": f"Bearer {self.token}"}
        answer = httpx.get(self.url + path, params=query, headers=headers, timeout=600, follow_redirects=True)  # type: ignore[arg-type]
        answer.raise_for_status()
        return self.cpu() - before, answer


@contextmanager
def serve(root: Path) -> Iterator[Console]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [_rounds(), "console", "--runs", str(root), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        token = next(line for line in process.stdout if "grc_" in line).split()[-1]
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while time.monotonic() < end:
            try:
                httpx.get(f"{url}/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield Console(url, token, process)
    finally:
        process.terminate()
        process.wait(10)


def visit(browser: Any, console: Console, run: Path) -> None:
    """Measure a first visit and a warm one."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(120_000)
    cdp = page.context.new_cdp_session(page)
    cdp.send("Network.enable")
    sizes: dict[str, list[float]] = {"sent": [], "plain": []}
    cdp.on("Network.loadingFinished", lambda e: sizes["sent"].append(e["encodedDataLength"]))
    cdp.on("Network.dataReceived", lambda e: sizes["plain"].append(e["dataLength"]))
    page.goto(console.url)
    page.fill("#secret", console.token)
    page.click("button.primary")
    page.wait_for_load_state("networkidle")
    page.goto(f"{console.url}/run?run={run.name}&section=training")
    _first_figure(page, DRAWN)
    page.wait_for_load_state("networkidle")
    sent, plain = (sum(sizes[key]) / 1e6 for key in ("sent", "plain"))
    _print("bytes of a first visit", sent, "MB", LIGHT, plain, "without compression")
    address = f"{console.url}/run?run={run.name}&section=training"
    other = page.context.new_page()  # without the listeners that count bytes
    warm = [_seconds_to_figure(other, address, DRAWN) for _ in range(VISITS)]
    report = [_seconds_to_figure(other, (run / "report.html").resolve().as_uri(), REPORT) for _ in range(VISITS)]
    usual = statistics.median(report)
    _print(f"first figure, warm, median of {VISITS}", statistics.median(warm), "s", FIRST_FIGURE, usual, "report.html")
    _print("first figure, warm, slowest", max(warm), "s", FIRST_FIGURE, max(report), "report.html")


def _seconds_to_figure(page: Any, address: str, drawn: str) -> float:
    began = time.monotonic()
    page.goto(address)
    page.wait_for_function(drawn)
    return time.monotonic() - began


def _first_figure(page: Any, drawn: str) -> None:
    page.locator("figure[data-figure], .plot").first.scroll_into_view_if_needed()
    page.wait_for_function(drawn)


def measure_live(console: Console, run: Path, rounds: int) -> None:
    """Measure each page and figure of a live run."""
    from grandrounds.engine.checkpoint import Checkpoint

    before = console.memory()
    console.cost("/api/v1/progress")  # the console begins to read the run in the background
    whole, _ = _timed(lambda: Checkpoint(run / "checkpoint").records())
    first, _ = console.cost("/run", run=run.name)
    _print(f"first page of {rounds} rounds, read at start", first, "CPU s", None, whole, "whole journal, once")
    head = console.cost("/api/run", run=run.name)[1].json()
    costs = {path: console.cost(path)[0] for path in ("/", "/runs", "/privacy", "/audit", "/compare", "/board")}
    for section in ("summary", "weights", "training", "privacy", "settings"):
        costs[f"/run, {section}"] = console.cost("/run", run=run.name, section=section)[0]
    for place in head["figures"]:
        costs[f"figure {place['name']}"] = console.cost("/api/run/figure", run=run.name, figure=place["name"])[0]
    costs["round"] = console.cost("/api/run/round", run=run.name, round=rounds)[0]
    slowest = max(costs, key=lambda path: costs[path])
    _print(
        f"slowest of {len(costs)} pages and figures ({slowest})", costs[slowest], "CPU s", PAGE, whole, "whole journal"
    )
    _append(run)
    _print("page after a new round", console.cost("/run", run=run.name)[0], "CPU s", PAGE, whole, "whole journal")
    _print("memory after all of them", console.memory(), "MB", MEMORY, before, "an idle console")
    _print("memory at most", console.memory("VmHWM"), "MB", MEMORY, before, "an idle console")


def _append(run: Path) -> None:
    """Commit one more round."""
    from grandrounds.core.arrays import load, save

    journal, state = run / "checkpoint" / "rounds.jsonl", run / "checkpoint" / "state.safetensors"
    arrays, facts = load(state)
    with journal.open("rb") as f:
        record = json.loads(f.readline())
    record["round"] = record["decision"]["round"] = facts["round"] + 1
    with journal.open("ab") as f:
        f.write(json.dumps(record).encode() + b"\n")
        size = f.tell()
    save(state, arrays, {**facts, "journal": size, "round": facts["round"] + 1})


def measure_list(console: Console, count: int) -> None:
    first, _ = console.cost("/runs")
    console.cost("/api/v1/progress")
    time.sleep(3)  # until a scan is not valid any more
    again, _ = console.cost("/runs")
    _print(f"list of {count} runs", again, "CPU s", PAGE, first, "the first time")
    time.sleep(3)
    update, _ = console.cost("/api/v1/progress")
    _print(f"one update of {count} runs", update, "CPU s", PAGE, first, "the list, the first time")
    _print("memory", console.memory(), "MB", MEMORY)


def _print(
    label: str, value: float, unit: str, bar: float | None, baseline: float | None = None, named: str = ""
) -> None:
    ratio = f"; {value / baseline:.3f} of {named} ({baseline:.2f})" if baseline else ""
    verdict = "" if bar is None else f"; bar {bar:g}: {'met' if value <= bar else 'not met'}"
    print(f"{label:48s}{value:8.2f} {unit}{ratio}{verdict}", flush=True)


def _timed(do: Callable[[], object]) -> tuple[float, object]:
    began = time.process_time()
    result = do()
    return time.process_time() - began, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished run that is there already, in place of a new one")
    parser.add_argument("--rounds-finished", type=int, default=pick(40, 2), help="rounds of the new run")
    parser.add_argument("--rounds", type=int, default=pick(2000, 20), help="rounds of the live run")
    parser.add_argument("--runs", type=int, default=pick(5000, 20), help="runs of the long list")
    parser.add_argument("--no-browser", action="store_true", default=SMOKE and CHROMIUM is None)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    where = None if given.run is None else given.run.resolve().parent  # hard links stay on one file system
    with tempfile.TemporaryDirectory(dir=where) as folder:
        root = Path(folder)
        source = given.run.resolve() if given.run else root / "source" / "large"
        if given.run is None:
            make_run(source, given.rounds_finished)
        if not given.no_browser:
            from playwright.sync_api import sync_playwright

            one = root / "one"
            shutil.copytree(source, one / "large")
            with serve(one) as console, sync_playwright() as p:
                browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                visit(browser, console, one / "large")
                browser.close()
        live = root / "live" / "live"
        make_live_run(source, live, given.rounds)
        with (live / "checkpoint" / "lock").open() as lock, serve(live.parent) as console:
            fcntl.flock(lock, fcntl.LOCK_EX)
            measure_live(console, live, given.rounds)
        many = root / "many"
        make_many_runs(source, many, given.runs)
        with serve(many) as console:
            measure_list(console, given.runs)
    return 0


def _rounds() -> str:
    return str(Path(sys.executable).parent / "rounds")


if __name__ == "__main__":
    sys.exit(main())
