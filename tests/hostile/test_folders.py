"""Damaged and hostile run folders: one sentence and exit code 2, and no file is followed, overwritten or waited for.

The corpus is made here from one good run: each file of it x what may be wrong with it x the commands that read it. Commands
are given --unverified, since a file that its ledger names is refused before it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from grandrounds.core.arrays import encode, load
from tests.command import rounds
from tests.support import patients

SECONDS = 10
SOURCE = "patients.csv"

PREDICT = ("predict", "RUN", "--table", SOURCE)
EVALUATE = ("evaluate", "RUN", "--table", SOURCE)
RESUME = ("resume", "RUN", "--set", "method.rounds=3", "--quiet")
SHOW, JSON_OUT, ROUND = ("show", "RUN"), ("show", "RUN", "--json"), ("show", "RUN", "--round", "1")
WHY, COURSE = ("show", "RUN", "--round", "1", "--site", "a"), ("show", "RUN", "--site", "a")
MODEL, SCHEMA, REPORT = ("show", "RUN", "--model"), ("show", "RUN", "--schema"), ("report", "RUN")
CASE, SITE = ("explain", "RUN", "--case", "3", "--json"), ("explain", "RUN", "--site", "a", "--json")
NEW, NEAR = ("explain", "RUN", "--case", "3", "--table", SOURCE), ("explain", "RUN", "--near-misses", "--json")
EXPORT, PRIVACY, ATTACK = ("export", "RUN", "--to", "json"), ("privacy", "RUN"), ("attack", "RUN")
COMPARE, GOES_ON = ("compare", "RUN", "RUN"), ("resume", "RUN", "--quiet")

READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "summary.json": (SHOW, REPORT, PRIVACY, JSON_OUT, COMPARE, PREDICT, SITE),
    "round_logs.json": (ROUND, REPORT, COURSE, PRIVACY, WHY),
    "explanations.json": (REPORT, SITE, WHY),
    "schema.json": (SCHEMA,),
    "environment.json": (REPORT,),
    "percentiles.json": (CASE, NEW),
    "attacks.json": (PRIVACY, REPORT),
    "experiment.toml": (RESUME,),
    "model.safetensors": (MODEL, PREDICT, EXPORT, CASE, EVALUATE, REPORT),
    "models/1.safetensors": (("predict", "RUN", "--table", SOURCE, "--for", "a"), ATTACK),
    "checkpoint/plan.json": (GOES_ON, PRIVACY, CASE, PREDICT, COMPARE, NEAR),
    "checkpoint/rounds.jsonl": (RESUME,),
    "checkpoint/state.safetensors": (RESUME,),
    "checkpoint/lock": (RESUME, SHOW),
}


@dataclass(frozen=True)
class Case:
    """One damaged file and the command that reads it."""

    file: str
    damage: str
    spoil: Callable[[Path], None]
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.file}: {self.damage}: {' '.join(self.command).replace('RUN', '')}"


def _replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return spoil


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s, contextlib.chdir(path.parent):  # a name may have 108 characters
        s.bind(path.name)


def _huge_sparse(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(5 * 2**30)


RANDOM = bytes((k * 7919 + k * k * 31) % 256 for k in range(4000))
ANY: dict[str, Callable[[Path], None]] = {
    "missing": lambda p: p.unlink(missing_ok=True),
    "empty": lambda p: p.write_bytes(b""),
    "half": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "last byte gone": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "random": lambda p: p.write_bytes(RANDOM),
    "zeros": lambda p: p.write_bytes(bytes(4000)),
    "link": _replaced(lambda p: p.symlink_to(next(up for up in p.parents if up.name == "run").parent / "foreign")),
    "link to nothing": _replaced(lambda p: p.symlink_to("/no/such/file")),
    "link to itself": _replaced(lambda p: p.symlink_to(p.name)),
    "pipe": _replaced(lambda p: os.mkfifo(p)),
    "socket": _replaced(_socket),
    "folder": _replaced(lambda p: p.mkdir()),
    "huge": _huge_sparse,
    "unreadable": lambda p: p.chmod(0),  # to whoever is not root
}
VALUES = {
    "null": "null",
    "number": "3",
    "text": '"text"',
    "list": "[]",
    "object": "{}",
    "nan": "NaN",
    "infinity": "-Infinity",
    "too large": "1e999",
    "many digits": "9" * 5000,
    "deep list": "[" * 100_000 + "]" * 100_000,
    "deep object": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "not utf-8": "\udcff",
}
KEY = {"null": None, "text": "text", "number": -1, "list": [], "nested": {"a": [{}]}, "large": 1e300, "flag": True}


def json_damages(path: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """A whole file of another type, and each key of the first and second level gone or of another type."""
    for name, text in VALUES.items():
        yield name, lambda p, text=text: p.write_bytes(text.encode("utf-8", "surrogateescape"))
    held = json.loads(path.read_text().splitlines()[0] if path.suffix == ".jsonl" else path.read_text())
    places = [(k,) for k in held]
    places += [(k, j) for k, v in held.items() if isinstance(v, dict) for j in list(v)[:6]]
    for n, place in enumerate(places):
        yield f"{'.'.join(place)} is gone", lambda p, place=place: _edit(p, place, None, gone=True)
        kinds = list(KEY)
        for kind in (kinds[n % len(kinds)], kinds[(n + 3) % len(kinds)], "null"):
            yield f"{'.'.join(place)} is {kind}", lambda p, place=place, kind=kind: _edit(p, place, KEY[kind])


def _edit(path: Path, place: tuple[str, ...], value: object, *, gone: bool = False) -> None:
    first, *rest = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    held = json.loads(first)
    at = held
    for key in place[:-1]:
        at = at[key]
    if gone:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    path.write_text("\n".join([json.dumps(held), *rest]))


def array_damages(path: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Headers that do not add up, and JSON inside that is not what a run writes."""
    yield "header of 2^60 bytes", lambda p: p.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    for name, head in {
        "header is a list": b"[]",
        "header is deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "metadata is text": b'{"__metadata__":"x"}',
        "metadata is null": b'{"__metadata__":{"meta":null}}',
        "metadata is deep": json.dumps({"__metadata__": {"meta": "[" * 100_000}}).encode(),
        "shape of 2^62": b'{"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}    ',
        "negative shape": b'{"x":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}    ',
        "shape is text": b'{"x":{"dtype":"F32","shape":"a","data_offsets":[0,4]}}    ',
        "shape is nan": b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}    ',
        "shape is infinite": b'{"x":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}    ',
        "unknown type": b'{"x":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}    ',
        "escape in a name": b'{"\\u001b[31mx":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}    ',
    }.items():
        yield name, lambda p, head=head: p.write_bytes(len(head).to_bytes(8, "little") + head + b"\0\0\0\0")
    arrays, meta = load(path)
    for name in list(arrays)[:4]:
        yield f"{name} is gone", lambda p, name=name: _arrays(p, lambda a, m: (a.pop(name), m)[1])
        yield f"{name} is another shape", lambda p, name=name: _arrays(p, lambda a, m: _put(a, name, a[name].ravel()[:1], m))
        yield f"{name} is of bytes", lambda p, name=name: _arrays(p, lambda a, m: _put(a, name, a[name].view("u1"), m))
    places = [(k,) for k in meta] + [(k, j) for k, v in meta.items() if isinstance(v, dict) for j in v]
    for n, place in enumerate(places):
        kinds = list(KEY)
        for kind in ("gone", "null", kinds[n % len(kinds)], kinds[(n + 2) % len(kinds)]):
            yield f"{'.'.join(place)} is {kind}", lambda p, place=place, kind=kind: _arrays(
                p, lambda a, m: _meta(m, place, kind)
            )


def _put(arrays: dict, name: str, value: object, meta: object) -> object:
    arrays[name] = value
    return meta


def _meta(meta: dict, place: tuple[str, ...], kind: str) -> dict:
    at = meta
    for key in place[:-1]:
        at = at[key]
    if kind == "gone":
        del at[place[-1]]
    else:
        at[place[-1]] = KEY[kind]
    return meta


def _arrays(path: Path, change: Callable[[dict, dict], object]) -> None:
    arrays, meta = load(path)
    held = {name: a.copy() for name, a in arrays.items()}
    path.write_bytes(encode(held, change(held, meta)))


def corpus(run: Path) -> list[Case]:
    """All cases: damages that every command of a file is tried with, and those of single keys, each with one of them."""
    out = []
    for file, commands in READERS.items():
        path = run / file
        for damage, spoil in ANY.items():
            out += [Case(file, damage, spoil, command) for command in commands]
        ways = array_damages if path.suffix == ".safetensors" else json_damages
        if path.suffix in (".json", ".jsonl", ".safetensors"):
            out += [Case(file, d, s, commands[n % len(commands)]) for n, (d, s) in enumerate(ways(path))]
    return out


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """A run with everything in its folder that these commands read."""
    place = tmp_path_factory.mktemp("good")
    columns = patients([60, 50, 40]).columns
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join("" if v != v else str(v) for v in row) for row in rows)]
    (place / SOURCE).write_text("\n".join(lines) + "\n")
    settings = ("method.rounds=2", "train.finetune=1", "explain.every=1")
    more = [word for s in settings for word in ("--set", s)]
    names = ("--label", "died", "--site", "hospital", "--out", "run", "--quiet")
    assert rounds("run", "--table", SOURCE, *names, *more, cwd=place).returncode == 0
    assert rounds("attack", "run", cwd=place).returncode == 0
    (place / "foreign").write_text("another's file")
    return place


class TooLong(BaseException):
    """A command did not end."""


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    """End what computes for `SECONDS`, or waits for ten times as long: a busy machine is not a hang."""

    def ring(*_: object) -> None:
        raise TooLong(f"it computed for {SECONDS} s, or waited")

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * SECONDS)}
    before = {sign: signal.signal(sign, ring) for sign in clocks}
    for clock, seconds in clocks.values():
        signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        for sign, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(sign, before[sign])


def _unverified(command: tuple[str, ...]) -> list[str]:
    """The command for the folder "run", which goes on where the ledger names other files."""
    return [*(a.replace("RUN", "run") for a in command), *([] if command[0] in ("resume", "privacy") else ["--unverified"])]


def wrong(case: Case, good: Path, place: Path) -> str:
    """What is wrong with how the command met the damage; "" where nothing is."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place)
    case.spoil(place / "run" / case.file)
    report = (place / "run" / "report.html").stat()
    try:
        with alarm():
            done = rounds(*_unverified(case.command), cwd=place, env={"GRANDROUNDS_TRACEBACK": "1"})
    except (Exception, TooLong) as e:
        return f"{type(e).__name__}: {str(e)[:200]}"
    if (place / "foreign").read_text() != "another's file" or (place / "foreign").is_symlink():
        return "a foreign file was changed"
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if done.returncode not in (0, 2, 3) or (done.returncode == 2 and len(said) != 1):
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if "\x1b[31mx" in done.stderr + done.stdout:
        return "an escape sequence reached the terminal"
    if done.returncode == 2 and case.command[0] == "report":
        now = (place / "run" / "report.html").stat()
        if (now.st_mtime_ns, now.st_size) != (report.st_mtime_ns, report.st_size):
            return "a report was written over by one of damaged files"
    return ""


def test_a_thinned_corpus_of_damaged_run_folders(good, tmp_path):
    cases = corpus(good / "run")
    cheap = [c for c in cases if c.command in (SHOW, ROUND, MODEL, SCHEMA, PRIVACY, GOES_ON, JSON_OUT, COURSE, EXPORT)]
    found = {case.name: said for case in cheap[::24] if (said := wrong(case, good, tmp_path / "case"))}
    assert not found


@pytest.mark.parametrize("file", ["summary.json", "round_logs.json", "explanations.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["last byte gone", "missing", "link", "pipe", "huge"])
def test_a_file_that_is_not_the_one_of_the_ledger_is_refused_before_it_is_read(good, tmp_path, file, damage):
    place = tmp_path / "here"
    shutil.copytree(good, place)
    ANY[damage](place / "run" / file)
    if file == "summary.json" and damage == "missing":
        return  # then the run is not finished
    with alarm():
        done = rounds("predict", "run", "--table", SOURCE, cwd=place, env={"GRANDROUNDS_TRACEBACK": "1"})
    assert done.returncode == 3 and "[changed-run]" in done.stderr and not done.stdout


def test_damaged_stages_of_a_decision_are_named_by_a_resume(good, tmp_path):
    cases = [c for c in corpus(good / "run") if "rounds.jsonl: decision.stages" in c.name and c.command[0] == "resume"]
    assert len(cases) >= 3
    assert not {case.name: said for case in cases if (said := wrong(case, good, tmp_path / "case"))}


@pytest.mark.slow
def test_the_whole_corpus_of_damaged_run_folders(good, tmp_path):
    cases = corpus(good / "run")
    assert len(cases) >= 700
    found = {case.name: said for case in cases if (said := wrong(case, good, tmp_path / "case"))}
    assert not found, f"{len(found)} of {len(cases)}"


LINKED = {".report.html.part": REPORT, ".model.json.part": EXPORT, ".plan.json.part": RESUME, ".attacks.json.part": ATTACK}


@pytest.mark.parametrize("part", LINKED)
def test_a_link_under_the_name_of_a_half_written_file_is_not_written_through(good, tmp_path, part):
    shutil.copytree(good, tmp_path / "here")
    place = tmp_path / "here"
    for folder in (place / "run", place / "run" / "checkpoint"):
        (folder / part).symlink_to(place / "foreign")
    done = rounds(*[a.replace("RUN", "run") for a in LINKED[part]], cwd=place)
    assert done.returncode == 0, done.stderr
    assert (place / "foreign").read_text() == "another's file"


@pytest.mark.parametrize(
    ("folder", "command"),
    [("explain", NEW[:-2]), ("models", ("predict", "RUN", "--table", SOURCE, "--for", "a")), ("checkpoint", RESUME)],
)
def test_a_link_in_place_of_a_folder_is_refused(good, tmp_path, folder, command):
    shutil.copytree(good, tmp_path / "here")
    place = tmp_path / "here"
    if (place / "run" / folder).is_dir():
        (place / "run" / folder).rename(place / "elsewhere")
    else:
        (place / "elsewhere").mkdir()
    (place / "run" / folder).symlink_to(place / "elsewhere")
    before = sorted(p.name for p in (place / "elsewhere").iterdir())
    done = rounds(*[a.replace("RUN", "run") for a in command], cwd=place)
    assert done.returncode == 2
    assert "is a link" in done.stderr or "is not a run folder" in done.stderr
    assert sorted(p.name for p in (place / "elsewhere").iterdir()) == before


def test_a_name_of_a_model_that_leads_out_of_the_folder_is_refused(good, tmp_path):
    shutil.copytree(good, tmp_path / "here")
    file = tmp_path / "here" / "run" / "summary.json"
    _edit(file, ("models", "a"), "../elsewhere/model.safetensors")
    done = rounds(*_unverified((*PREDICT, "--for", "a")), cwd=tmp_path / "here")
    assert done.returncode == 2
    assert "is not the name of a model file" in done.stderr


def test_the_last_resort_is_a_sentence_with_the_place(good, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr("grandrounds.cli.screen.show_summary", broken)
    done = rounds("show", "run", cwd=good)
    assert done.returncode == 2
    assert "run cannot be read (KeyError: 'a fault of ours'; test_folders.py line" in done.stderr
    with pytest.raises(KeyError):
        rounds("show", "run", cwd=good, env={"GRANDROUNDS_TRACEBACK": "1"})
