"""Runs a guide for four hospitals as it is printed, command by command, and compares what comes out with what it shows.

`python -m tests.capabilities.hospital.deploy.guide` reads docs/hospitals.md, and with `first-round` after it
docs/first-round.md. It needs nginx and Flower, and takes some minutes: nodes are Flower's own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "hospitals.md"
FIRST_ROUND = ROOT / "docs" / "first-round.md"
EXAMPLE = ROOT / "examples" / "omop_hospitals.py"  # which the page of the first round asks for
STAYS = "rounds site start"
CTRL_C = "^C"
CUT = "..."
PORTS = ("9443", "9092", "9093", *(str(n) for n in range(9500, 9508)))
_PROMPT = re.compile(r"^(\w*)\$ (.+)$")
_FILE = re.compile(r"Save this as `([^`]+)`:\s*\n+```toml\n(.*?)^```", re.S | re.M)
_SESSION = re.compile(r"^```shell-session\n(.*?)^```", re.S | re.M)
_VARIES = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME"),
    (r"\d{4}-\d\d-\d\d +\d+|(?<=by )\d{4}-\d\d-\d\d", "DAY"),
    (r"\b[0-9a-f]{4}(?: [0-9a-f]{4}){9}\b", "FINGERPRINT"),
    (
        r"\b(?:[0-9a-fA-F]{16}|\d{9,20})\b",
        "NUMBER",
    ),  # a key's beginning, or Flower's number, which has 16 digits at times
    (r'"(seconds|down|up)": [\d.]+', "SIZE"),
    (r"[ ─━┳┃│╇┴┏┓┡┩└┘]+", " "),
)


@dataclass(frozen=True)
class Command:
    """One line that somebody types, and what the page shows under it."""

    terminal: str
    line: str
    shown: tuple[str, ...]


def files(page: str) -> dict[str, str]:
    """The files that a reader is told to save."""
    return dict(_FILE.findall(page))


def commands(page: str) -> Iterator[Command]:
    """Every command of the page's sessions, in order."""
    for block in _SESSION.findall(page):
        typed: list[tuple[str, str, list[str]]] = []
        for line in block.splitlines():
            if found := _PROMPT.match(line):
                typed.append((found[1], found[2], []))
            else:
                assert typed, f"a session begins with output: {line}"
                typed[-1][2].append(line)
        yield from (Command(terminal, line, tuple(shown)) for terminal, line, shown in typed)


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run (times, keys, numbers of runs, widths of tables)."""
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def shows(shown: tuple[str, ...], text: str) -> bool:
    """Whether lines are as shown; where the page cuts, what it does show must be there in this order."""
    wanted, there = plain("\n".join(shown)), plain(text)
    if CUT not in wanted:
        return wanted == there
    left = iter(there)
    return all(any(line == other for other in left) for line in wanted if line != CUT)


@dataclass
class Reader:
    """Somebody who types what the page says. `ports`: the page's ports -> those that are free here."""

    folder: Path
    ports: dict[str, str] = field(default_factory=lambda: dict(zip(PORTS, free_ports(), strict=True)))
    running: dict[str, tuple[subprocess.Popen[bytes], Path]] = field(default_factory=dict)

    def moved(self, text: str) -> str:
        """The page with ports of this machine."""
        return re.sub(r"\b\d{4}\b", lambda found: self.ports.get(found[0], found[0]), text)

    def read(self, page: str) -> None:
        """Do all of it; an AssertionError says where the page is not true."""
        page = self.moved(page)
        for name, text in files(page).items():
            (self.folder / name).write_text(text)
        if EXAMPLE.name in page:
            shutil.copy(EXAMPLE, self.folder)
        try:
            for command in commands(page):
                began = time.monotonic()
                self.type(command)
                print(f"{time.monotonic() - began:6.1f} s  {command.terminal}$ {command.line}", flush=True)
        finally:
            self.leave()

    def type(self, command: Command) -> None:
        """One command. Of a status and of a site that starts the page shows how they are after a while."""
        if command.line == CTRL_C:
            process, out = self.running.pop(command.terminal)
            process.send_signal(signal.SIGINT)
            process.wait(30)
            assert shows((CUT, *command.shown), out.read_text()), out.read_text()
        elif command.line.startswith(STAYS):
            self._settle()
            out = self.folder / f"{command.terminal}.out"
            with out.open("wb") as f:
                self.running[command.terminal] = (
                    subprocess.Popen(command.line.split(), cwd=self.folder, env=environment(), stdout=f, stderr=f),
                    out,
                )
            self._until(command, out.read_text, seconds=300)
        elif command.line.startswith("rounds server status"):
            self._until(command, lambda: self._said(command.line), seconds=420)
        else:
            text = self._said(command.line)
            assert shows(command.shown, text), f"{command.line} printed:\n{text}"

    def leave(self) -> None:
        """End what still runs."""
        for process, _ in self.running.values():
            process.send_signal(signal.SIGINT)
        for state in self.folder.glob("*/server/state"):
            self._said(f"rounds server stop {state.parts[-3]}")
        for process, _ in self.running.values():
            process.wait(30)

    def _until(self, command: Command, look, *, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not shows(command.shown, text := look()):
            over = time.monotonic() > end or "│ failed " in text
            assert not over, f"{command.line} printed at last:\n{text}\n{self._logs()}"
            time.sleep(1.0)

    def _said(self, line: str) -> str:
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=300
        )
        return (done.stdout + done.stderr).replace(f"{self.folder.resolve()}/", "")

    def _logs(self) -> str:
        """The end of each run's log, to see why."""
        return "\n".join(p.read_text()[-1500:] for p in self.folder.glob("*/server/logs/run-*.log"))

    def _settle(self) -> None:
        """Ports that are free here: a site's are its own to change."""
        for settings in [*self.folder.glob("*/sites/*/site.toml"), *self.folder.glob("*/site.toml")]:
            settings.write_text(self.moved(settings.read_text()))


def environment() -> dict[str, str]:
    """The reader's shell: `rounds` on the path, a screen that is wide enough."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": programs, "COLUMNS": "120"}


def free_ports() -> list[str]:
    """As many as the page has; that of the server's health page is the one after the SuperLink's."""
    taken: list[socket.socket] = []
    try:
        while True:
            first, second = _bound(0), None
            try:
                second = _bound(first.getsockname()[1] + 1)
                break
            except OSError:
                first.close()
        taken = [first, second, *(_bound(0) for _ in range(len(PORTS) - 2))]
        at = [str(s.getsockname()[1]) for s in taken]
    finally:
        for s in taken:
            s.close()
    return [at[2], at[0], at[1], *at[3:]]


def _bound(port: int) -> socket.socket:
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", port))
    except OSError:
        s.close()
        raise
    return s


def main() -> None:
    """Read a page in a folder that is thrown away."""
    page = ROOT / "docs" / f"{sys.argv[1]}.md" if len(sys.argv) > 1 else PAGE
    for number in (signal.SIGINT, signal.SIGTERM):  # nothing that was started outlives this
        signal.signal(number, lambda *_: sys.exit(130))
    with tempfile.TemporaryDirectory() as folder:
        Reader(Path(folder)).read(page.read_text(encoding="utf-8"))
    print("every command does what the page shows")


if __name__ == "__main__":
    main()
