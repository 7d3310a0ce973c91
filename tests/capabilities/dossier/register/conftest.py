"""Two finished runs, and a register over a copy of them with a signatory of each role."""

from __future__ import annotations

from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.capabilities.dossier.register import signing_key
from grandrounds.capabilities.dossier.register.register import Register
from tests.store import copied, finished
from tests.support import patients

ROLES = ("medical director", "data protection officer")
WORDS = {"ada": "four quiet words of ada", "bob": "four quiet words of bob", "eve": "four quiet words of eve"}
DATA = {"table": "patients.csv", "label": "died", "site": "hospital"}


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch):
    """A key at full cost takes a third of a second to open; one test keeps it."""
    monkeypatch.setattr(signing_key, "COSTS", {"n": 2**4, "r": 8, "p": 1})


@pytest.fixture
def runs(tmp_path) -> Path:
    for seed, name in enumerate(("first", "second")):
        plan = {"name": name, "seed": seed, "data": DATA, "method": {"rounds": 2}}
        copied(finished(gr.Experiment.parse(plan), table=patients([60, 50, 40])), tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.fixture
def register(runs) -> Register:
    """A register that is set up: ada and bob sign for one role each."""
    made = Register.create(runs, roles=ROLES)
    for name, role in zip(("ada", "bob"), ROLES, strict=True):
        made.add_signatory(name, role=role, passphrase=WORDS[name])
    return made


def sign(register: Register, kind: str, run: str, by: str, **more):
    return register.decide(kind, run, by=by, passphrase=WORDS[by], **more)


def approved(register: Register, run: str, purpose: str = "death in hospital"):
    """Propose a run and approve it by both roles."""
    register.propose(register.runs / run, purpose=purpose, by="engineer")
    sign(register, "approve", run, "ada")
    return sign(register, "approve", run, "bob")
