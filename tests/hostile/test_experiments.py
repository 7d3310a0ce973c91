"""Hostile experiment files: each is run, or refused in one sentence, within seconds and without a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.command import rounds
from tests.hostile.test_folders import RANDOM, TooLong, alarm

BASE = """
name = "h"
[data]
name = "breast-cancer"
[split]
sites = 3
[method]
rounds = 1
[explain]
sketch = "none"
"""
NUMBERS = ("-1", "0", "1e300", "9" * 400, "inf", "nan", '"ten"', "[]", "true", "1.5", "99999999999999")
FIELDS = (
    *("method.rounds", "train.epochs", "train.lr", "train.steps", "split.sites", "seed", "privacy.epsilon", "privacy.delta"),
    *("model.trees", "train.batch", "data.clip", "evaluation.every", "method.mu"),
)
SETTINGS = {
    **{f"{field}={number[:12]}": (f"{field}={number}",) for field in FIELDS for number in NUMBERS[:: 1 + len(field) % 3]},
    "hidden units": ("model.name=mlp", "model.hidden=[1000000000]"),
    "hidden weights": ("model.name=mlp", "model.hidden=[90000,90000]"),
    "negative width": ("model.name=mlp", "model.hidden=[-3]"),
    "many layers": ("model.name=mlp", f"model.hidden=[{','.join(['2'] * 5000)}]"),
    "trees and depth": ("model.name=forest", "model.trees=1000000000", "model.depth=256"),
    "epsilon": ("privacy.mechanism=dp-sgd", "privacy.epsilon=1e-300"),
    "noise": ("privacy.mechanism=dp-sgd", "privacy.noise=1e308"),
    "sampling rate": ("privacy.mechanism=dp-sgd", "privacy.epsilon=1", "privacy.sampling_rate=1e-300"),
    "learning rate": ("train.lr=1e300",),
    "loss beyond floats": ("train.lr=1e5",),
    "a partition of nothing": ("split.partition=dirichlet", "split.alpha=1e-300"),
    "a metric": ('evaluation.metrics=["os:getcwd"]',),
    "a method of the system": ("method.name=os:system",),
    "a loader of the system": ("data.name=os:getcwd",),
    "a deep list": (f"model.hidden={'[' * 5000}{']' * 5000}",),
    "a long word": (f"method.name={'x' * 100_000}",),
    "a long key": (f"method.{'x' * 100_000}=1",),
    "escapes": ("method.name=\x1b[31mred",),
    "markup": ("method.name=[/red]",),
    "a path": ("data.name=../../etc/passwd",),
    "a missing value": ("method.rounds=",),
    "a section as a value": ("method=3",),
    "a value as a section": ("seed.a=3",),
    "attacks": ('attacks=[{kind="label-flip",count=999999999}]',),
    "attack shares": ('attacks=[{kind="label-flip",count=1,share=2}]',),
    "a reference of all rows": ('reference={a={rows=99999999}}',),
    "faults": ('engine={faults={drop=1.0}}',),
    "away": ('engine={absences={"site-01"=[[0,-5]]}}',),
    "workers": ("engine.workers=100000000",),
    "chunk": ("engine.chunk=100000000",),
    "ranges": ("data.encoding=public", 'data.ranges={mean_radius=[5,1]}'),
    "levels": ('data.levels={mean_radius=[]}',),
    "kinds": ('data.kinds={mean_radius="nothing"}',),
    "drop everything": ('data.drop=["diagnosis"]',),
    "another label": ("data.label=nothing",),
    "holdout": ("split.scheme=holdout", 'split.holdout=["nobody"]'),
    "fold": ("split.scheme=group-kfold", "split.fold=77"),
}
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "random": RANDOM,
    "zeros": bytes(1000),
    "not utf-8": b'name = "\xff\xfe"\n',
    "utf-16": BASE.encode("utf-16"),
    "a mark": b"\xef\xbb\xbf" + BASE.encode(),
    "half a line": BASE.encode()[:40],
    "deep lists": b"a = " + b"[" * 100_000 + b"]" * 100_000,
    "deep tables": b"[" + b"a." * 50_000 + b"a]\n",
    "deep inline": b"a = " + b"{a=" * 20_000 + b"1" + b"}" * 20_000,
    "twice": BASE.encode() + b"[method]\nrounds = 2\n",
    "a long line": b'name = "' + b"x" * 5_000_000 + b'"\n',
    "many keys": b"".join(b"k%d = 1\n" % n for n in range(20_000)),
    "larger than is read": b"#" * (17 * 2**20),
    "json": b'{"method": {"rounds": 3}}',
    "a list": b"[[method]]\nrounds = 1\n[[method]]\nrounds = 2\n",
    "nul": b'[data]\ntable = "a\\u0000b.csv"\nlabel = "y"\n',
    "nul in a name": b'name = "a\\u0000b"\n[data]\nname = "breast-cancer"\n',
    "a device": b'[data]\ntable = "/dev/zero"\nlabel = "y"\n',
    "a device by name": b'[data]\ntable = "zero.csv"\nlabel = "y"\n',
    "a pipe": b'[data]\ntable = "pipe.csv"\nlabel = "y"\n',
    "a folder": b'[data]\ntable = "/etc"\nlabel = "y"\n',
    "a long path": b'[data]\ntable = "' + b"x" * 10_000 + b'.csv"\nlabel = "y"\n',
    "a link to itself": b'[data]\ntable = "loop.csv"\nlabel = "y"\n',
    "a database": b'[data]\ntable = "sqlite:////no/such.db"\nlabel = "y"\nquery = "a"\n',
    "another scheme": b'[data]\ntable = "file:///etc/passwd"\nlabel = "y"\n',
    "code of none": b'[code]\nnothing = "00"\n[data]\nname = "breast-cancer"\n',
    "code of a module": b'[code]\nos = "00"\n[data]\nname = "os:getcwd"\nlabel = "y"\n',
    "weights": b'[data]\nname = "breast-cancer"\n[model]\nname = "mlp"\nweights = "/dev/zero"\n',
    "pictures of a table": b'[data]\nname = "breast-cancer"\npictures = "/etc"\n',
}
CASES = [*SETTINGS, *TEXTS]


def wrong(name: str, place: Path) -> str:
    """What is wrong with how `rounds run` met an experiment; "" where nothing is."""
    place.mkdir(exist_ok=True)
    if not (place / "zero.csv").is_symlink():
        os.mkfifo(place / "pipe.csv")
        (place / "loop.csv").symlink_to("loop.csv")
        (place / "zero.csv").symlink_to("/dev/zero")
    (place / "e.toml").write_bytes(TEXTS.get(name, BASE.encode()))
    more = [word for setting in SETTINGS.get(name, ()) for word in ("--set", setting)]
    try:
        with alarm():
            done = rounds("run", "e.toml", *more, "--quiet", "--out", f"out-{CASES.index(name)}", cwd=place)
    except (Exception, TooLong) as e:
        return f"{type(e).__name__}: {str(e)[:200]}"
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if done.returncode not in (0, 1, 2) or (done.returncode and len(said) != 1):
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if "\x1b[31m" in done.stderr:
        return "an escape sequence reached the terminal"
    return "" if all(len(line) < 2000 for line in said) else f"a sentence of {len(said[0]):,} characters"


def test_a_thinned_corpus_of_experiments(tmp_path):
    found = {name: said for name in CASES[::25] if (said := wrong(name, tmp_path / "here"))}
    assert not found


@pytest.mark.slow
def test_the_whole_corpus_of_experiments(tmp_path):
    assert len(CASES) >= 100
    found = {name: said for name in CASES if (said := wrong(name, tmp_path / "here"))}
    assert not found


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("method.rounds=99999999", ("method.rounds is 99999999", "1000000")),
        ("train.epochs=1000000000", ("train.epochs is 1000000000", "10000")),
        ("model.hidden=[1000000000]", ("model.hidden", "100,000")),
        ("model.trees=1000000000", ("model.trees is 1000000000", "100000")),
        ("split.sites=100000000", ("split.sites is 100000000", "1000000")),
        (f"seed={2**64}", ("seed is 18446744073709551616", "9223372036854775807")),
        ("privacy.epsilon=1e300", ("epsilon is 1e+300", "1e+12")),
        ("privacy.epsilon=1e10", ("privacy.epsilon is 10000000000.0", "1000000000")),
    ],
)
def test_a_number_beyond_its_limit_is_refused_with_field_and_limit(tmp_path, setting, words):
    done = rounds("plan", "breast-cancer", "--set", setting, cwd=tmp_path)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr
