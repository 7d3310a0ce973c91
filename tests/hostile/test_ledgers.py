"""No hostile ledger hangs, runs out of memory or ends in a traceback, and every alteration of a finished run is named."""

from __future__ import annotations

import shutil
import signal

import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.audit.verdict import AuditResult
from grandrounds.protocol.identity import public_pem
from tests.command import rounds
from tests.hostile import ledgers
from tests.store import copied, finished
from tests.support import thinned

EXPERIMENT = {
    "name": "led",
    "data": {"name": "breast-cancer"},
    "split": {"partition": "dirichlet", "sites": 5},
    "method": {"name": "sse-agg", "rounds": 3},
    "train": {"epochs": 1},
    "reference": {"rows": {"rows": 60, "labelled": True}},
}
PARTS = 8
"""Of all alterations `make test` tries every eighth, `make test-slow` the others."""
SECONDS = 10


@pytest.fixture(scope="module")
def whole():
    return finished(gr.Experiment.parse(EXPERIMENT))


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "server.pub"
    path.write_bytes(public_pem(ledgers.SERVER.public))
    return path


@pytest.fixture
def folder(whole, tmp_path):
    return copied(whole, tmp_path / "run")


@pytest.fixture
def no_hang():
    """Starts a clock that ends what takes longer than a hostile file may, in seconds of the processor."""

    def late(*_):
        raise AssertionError(f"it did not end in {SECONDS} s")

    before = signal.signal(signal.SIGPROF, late)
    yield lambda: signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", thinned(ledgers.DATABASES, 7))
def test_a_hostile_database_is_refused_in_words_by_every_command(folder, tmp_path, name, no_hang):
    ledgers.DATABASES[name](folder)
    proof, export = tmp_path / "proof.json", tmp_path / "export.jsonl"
    asked = (
        ("verify", folder),
        ("verify", folder, "--ledger-only", "--json"),
        ("prove", folder, "--site", 1, "--out", proof),
        ("export", folder, "--out", export),
    )
    for arguments in asked:
        no_hang()
        done = rounds("audit", *arguments)
        harmless = name in ledgers.HARMLESS and done.returncode == 0
        assert harmless or done.returncode in (2, 3), (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
    assert name in ledgers.HARMLESS or not (proof.exists() or export.exists())


@pytest.mark.parametrize("part", thinned(range(PARTS), PARTS))
def test_every_altered_file_that_people_read_is_named_without_the_checkpoint(whole, key, tmp_path, no_hang, part):
    cases = ledgers.files(whole, each=14)
    assert len(cases) >= 150
    missed = {}
    for name, (change, file) in _part(cases, part):
        found = _altered(whole, tmp_path, change, key, no_hang)
        told = [*(f.where for f in found.findings), found.unfinished]
        if not (found.fails and any(file in where for where in told)):
            missed[name] = (found.line, told)
    assert missed == {}


@pytest.mark.parametrize("part", thinned(range(PARTS), PARTS))
def test_an_altered_figure_is_named_with_its_place(whole, key, tmp_path, no_hang, part):
    missed = {}
    for name, (change, place) in _part(ledgers.located(whole, each=16), part):
        found = _altered(whole, tmp_path, change, key, no_hang)
        if not any(place in f.what for f in found.findings):
            missed[name] = found.findings
    assert missed == {}


@pytest.mark.parametrize("part", thinned(range(PARTS), PARTS))
def test_every_altered_ledger_is_found_whoever_altered_it(whole, key, tmp_path, no_hang, part):
    bare, signed = ledgers.ledgers(whole), ledgers.with_key(whole)
    assert len(bare) >= 90 and len(signed) >= 60
    cases = {**{f"no key, {n}": c for n, c in bare.items()}, **{f"server's key, {n}": c for n, c in signed.items()}}
    missed = {}
    for name, change in _part(cases, part):
        found = _altered(whole, tmp_path, change, key, no_hang)
        if not found.fails:
            missed[name] = found.line
    assert missed == {}


def test_the_run_as_it_was_verifies_by_the_same_check(whole, key, no_hang):
    assert not audit(whole, key=key).fails and not audit(whole, key=key, deep=True).fails


def _part(cases: dict, part: int) -> list:
    return list(cases.items())[part::PARTS]


def _altered(whole, tmp_path, change, key, no_hang) -> AuditResult:
    """The audit of a copy that was altered; what it raises is a failure of the test."""
    folder = copied(whole, tmp_path / "run")
    change(folder)
    no_hang()
    try:
        return audit(folder, key=key)
    finally:
        shutil.rmtree(folder)
