"""Follow a tutorial as a reader does: save its files, type its commands, open its addresses.

A page is read in order. ```console blocks hold `$ ` lines and their output. Files follow "Save this as `NAME`:". A table headed
`| open | it says |` has addresses of the console that the page started, and text that must be on them. Values that differ from
run to run (times, hashes, tokens) are masked on both sides; everything else must be as shown, and `...` replaces lines that the
page leaves out. A command must end with code 0 unless the page asks for its code with `echo $?`.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.command import rounds

CUT = "..."
PORT = "8600"
STAYS = "rounds console"
CODE = "echo $?"
STILL = "The ledger is being checked"

_FENCE = re.compile(r"(?:Save this as `(?P<name>[^`]+)`:\s*\n+)?^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.S | re.M)
_LOOK = re.compile(r"^\| <(?P<url>http[^>]+)> \| (?P<words>.+?) \|$", re.M)
_VARIES = (
    (r"grc_[\w.-]+", "TOKEN"),
    (r"\d{4}-\d\d-\d\d(?:T[\d:]+\+00:00)?(?: +\d+(?= ))?", "TIME"),
    (r"(?:[0-9a-f]{4} ){5,}[0-9a-f]{4}\b", "PRINT"),
    (r"\b[0-9a-fA-F]{12,}\b(?:\.\.\.|…)?", "HASH"),
    (r"\b[\d.]+ (?=s a round|CPU seconds|s of rounds|MB in memory)", "SOME "),
    # of Flower's simulation, which is not the same to the last digit each time: who is found, and how right it is to a tenth
    (r"(?<=(?:FedAvg|SSEAgg): accuracy 0\.9)\d\d|(?<=: weight 0\.\d)\d\d|(?<=distance 0\.)\d\d", "SOME"),
    (r"\([\d.]+% of the (?:cores|machine's)\)", "(SOME)"),
    (r"[ ─━┳┃│╇┴┏┓┡┩└┘]+", " "),
)


@dataclass(frozen=True)
class Save:
    """A file to write."""

    name: str
    text: str


@dataclass(frozen=True)
class Type:
    """A line to type, and what the page shows under it."""

    line: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """An address to open, and the text that must be on the page."""

    url: str
    words: str


Step = Save | Type | Look


def steps(page: str) -> list[Step]:
    """List a reader's steps in the order of the page."""
    found: list[tuple[int, Step]] = [
        (m.start(), Look(m["url"], m["words"].replace("**", "").replace("`", ""))) for m in _LOOK.finditer(page)
    ]
    for m in _FENCE.finditer(page):
        if m["name"]:
            found.append((m.start(), Save(m["name"], m["text"])))
        elif m["kind"] == "console":
            found += [(m.start(), step) for step in _typed(m["text"])]
    return [step for _, step in sorted(found, key=lambda pair: pair[0])]


def _typed(block: str) -> Iterator[Type]:
    parts = re.split(r"^\$ ", block, flags=re.M)
    assert not parts[0], f"a session begins with output: {parts[0]}"
    for part in parts[1:]:
        line, _, shown = part.partition("\n")
        yield Type(line, tuple(shown.splitlines()))


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run, and without the widths of tables."""
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def shows(shown: Sequence[str], text: str) -> bool:
    """Tell whether the output is as shown; lines between two cuts must occur in one piece and in order."""
    wanted, there = plain("\n".join(shown)), plain(text)
    pieces: list[list[str]] = [[]]
    for line in wanted:
        if line == CUT:
            pieces.append([])
        else:
            pieces[-1].append(line)
    if len(pieces) == 1:
        return wanted == there
    first, *middle, last = pieces
    if there[: len(first)] != first or there[len(there) - len(last) :] != last:
        return False
    at, end = len(first), len(there) - len(last)
    for piece in middle:
        while at <= end - len(piece) and there[at : at + len(piece)] != piece:
            at += 1
        at += len(piece)
        if at > end:
            return False
    return at <= end


class Reader:
    """Reads one page in a folder. An AssertionError says where the page is not true."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._code, self._said = folder, 0, ""
        self._served: subprocess.Popen[bytes] | None = None
        self._port, self._token = "", ""

    def read(self, page: str) -> None:
        todo = steps(page)
        try:
            for step, after in zip(todo, [*todo[1:], None], strict=True):
                if isinstance(step, Save):
                    (self._folder / step.name).write_text(step.text, encoding="utf-8")
                elif isinstance(step, Look):
                    self._look(step)
                else:
                    self._type(step)
                    asked = isinstance(after, Type) and after.line == CODE
                    assert asked or step.line == CODE or self._code == 0, f"$ {step.line}\n{self._said}"
        finally:
            self._leave()

    def _type(self, step: Type) -> None:
        if step.line == CODE:
            self._said = str(self._code)
        elif step.line.startswith(STAYS) and not step.line.startswith(f"{STAYS}-"):
            self._serve(step)
        else:
            self._code, out, err = self._run(step.line)
            self._said = out + err if self._code else out
        assert shows(step.shown, self._said), f"$ {step.line}\nprinted:\n{self._said}"

    def _run(self, line: str) -> tuple[int, str, str]:
        """A plain `rounds ...` in this process, which saves a second each; anything else by a shell."""
        if line.startswith("rounds ") and not re.search(r"[|<>&;$*]", line):
            done = rounds(*shlex.split(line)[1:], cwd=self._folder, env=surroundings())
        else:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self._folder,
                env={**os.environ, **surroundings()},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        return done.returncode, done.stdout.replace(f"{self._folder.resolve()}/", ""), done.stderr

    def _serve(self, step: Type) -> None:
        """Start what stays, on a port that is free here, until it has said what the page shows and answers."""
        self._code, self._port = 0, str(_free_port())
        out = self._folder / ".console.out"
        with out.open("wb") as f, (self._folder / ".console.err").open("wb") as g:
            said = [*shlex.split(step.line)[1:], "--port", self._port]
            self._served = subprocess.Popen(
                [sys.executable, "-c", "from grandrounds.cli import main; main()", *said],
                cwd=self._folder,
                env={**os.environ, **surroundings(), "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(self._folder / ".state")},
                stdout=f,
                stderr=g,
            )
        end = time.monotonic() + 120
        while not self._answers():
            assert self._served.poll() is None and time.monotonic() < end, (self._folder / ".console.err").read_text()
            time.sleep(0.1)
        self._said = out.read_text().replace(self._port, PORT)
        self._token = re.findall(r"grc_[\w.-]+", self._said)[0]

    def _answers(self) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", int(self._port))) == 0

    def _look(self, step: Look) -> None:
        asked = urllib.request.Request(
            step.url.replace(f":{PORT}/", f":{self._port}/"), headers={"Authorization": f"Bearer {self._token}"}
        )
        end, text = time.monotonic() + 60, STILL
        while STILL in text and time.monotonic() < end:  # the page asks again by itself, as a browser does
            try:
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    text = in_words(answer.read().decode())
            except urllib.error.HTTPError as refused:  # a refusal can be the text that the page shows
                text = in_words(refused.read().decode())
            time.sleep(0.5 if STILL in text else 0)
        assert step.words in text, f"{step.url} does not say '{step.words}' but:\n{text}"

    def _leave(self) -> None:
        if self._served is not None:
            self._served.send_signal(signal.SIGINT)
            self._served.wait(30)


def in_words(page: str) -> str:
    """Return the text of a page without its markup."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def surroundings() -> dict[str, str]:
    """The reader's shell: `rounds` and `python` on the path, a screen of 100 columns."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {
        "PATH": path,
        "COLUMNS": "100",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
