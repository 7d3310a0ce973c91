"""A register, a model or a run that somebody changed: the register names it, and the model is not valid."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.register_entry import NAME, decision_entry, sign_entry, signatory_entry
from grandrounds.capabilities.dossier.register import banner, models_in_use, read_register, state_of
from grandrounds.capabilities.dossier.register.folder import load_register
from grandrounds.capabilities.dossier.register.register import Register
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity
from grandrounds.runs.run import Run
from grandrounds.runs.withdraw import withdraw
from tests.capabilities.dossier.register.conftest import ROLES, approved, sign
from tests.support import patients

DATE = "2026-11-18T12:00:00+00:00"


@pytest.fixture
def used(register, runs) -> Register:
    approved(register, "first")
    sign(register, "use", "first", "ada", hospitals=["a"])
    return register


def change(register: Register, statement: str) -> None:
    """Rewrite the database as somebody with access to the file can: without its triggers, which are put back."""
    with sqlite3.connect(register.folder.ledger) as database:
        triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        database.execute(statement)
        for _, words in triggers:
            database.execute(words)
    database.close()


def forge(register: Register, *contents) -> None:
    """Append entries with the register's own key, which lies beside the ledger, and without its rules."""
    folder = register.folder
    with Ledger.open(folder.ledger, identity=Identity.load(folder.key)) as ledger:
        for content in contents:
            made = content(ledger.book().entries[-1].hash) if callable(content) else content
            head = ledger.append(NAME, made)
    folder.head.write_bytes(head.to_bytes())


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE entries SET body = CAST(replace(body, 'death', 'debts') AS BLOB) WHERE number = 3", "changed entry"),
        ("DELETE FROM entries WHERE number = 6", "truncated ledger"),
        ("DELETE FROM entries WHERE number = 4", "removed entry"),
    ],
)
def test_a_changed_register_is_found_and_no_model_of_it_is_valid(used, runs, statement, finding):
    change(used, statement)
    assert finding in {found.name for found in load_register(used.folder).findings}
    view = read_register(runs)
    assert view.fault.startswith("the register does not verify") and not any(m.is_valid for m in view.models)
    assert models_in_use(runs) == () and "Do not use this model" in banner(runs / "first")
    with pytest.raises(BadInput, match="does not verify"):
        sign(used, "withdraw-model", "first", "ada", note="x")


def test_a_register_without_its_ledger_is_not_taken_for_none(used, runs):
    used.folder.ledger.unlink()
    view = read_register(runs)
    assert view is not None and "does not verify" in view.fault and models_in_use(runs) == ()


def test_with_the_registers_key_alone_nobody_can_approve(register, runs):
    record = register.propose(runs / "second", purpose="death in hospital", by="engineer")
    thief = Identity.new()
    decision = decision_entry("approve", date=DATE, candidate=record.number, by="ada", role=ROLES[0], note="")
    forge(register, lambda after: sign_entry(decision, {"ada": thief}, after=after))
    findings = load_register(register.folder).findings
    assert [f.what for f in findings] == ["the signature is not that of ada"]
    assert read_register(runs).find("second").record.approvals == ()


def test_with_the_registers_key_alone_nobody_becomes_a_signatory(register):
    thief = Identity.new()
    entry = signatory_entry(date=DATE, name="mallory", role=ROLES[0], identity=thief, note="")
    forge(register, lambda after: sign_entry(entry, {}, after=after))
    checked = load_register(register.folder)
    assert "lacks the signature" in checked.findings[0].what and "mallory" not in checked.state.signatories


def test_a_signed_decision_cannot_be_repeated_later(used, runs):
    with Ledger.open(used.folder.ledger) as ledger:
        entry = ledger.last()
    assert entry["kind"] == "use"
    sign(used, "use", "first", "ada", hospitals=[])
    again = {name: value for name, value in entry.items() if name not in ("schema", "number", "previous")}
    forge(used, again)
    assert [f.what for f in load_register(used.folder).findings] == [
        "its signature was made after another entry than the one before it"
    ]
    assert models_in_use(runs) == ()


def test_a_head_that_was_stored_elsewhere_finds_a_register_that_was_made_anew(used, runs, tmp_path):
    stored, key = SignedHead.read(used.folder.head), used.folder.public_key.read_bytes()
    shutil.rmtree(used.folder.path)
    Register.create(runs, roles=ROLES)
    assert not load_register(register_folder := Register(runs).folder).findings
    assert load_register(register_folder, heads=(stored,)).findings
    assert key != register_folder.public_key.read_bytes()


@pytest.mark.parametrize("name", ["model.safetensors", "summary.json", "explanations.json", "ledger.db"])
def test_a_changed_file_of_the_run_makes_its_model_not_valid(used, runs, name):
    assert state_of(runs / "first").is_valid
    file = runs / "first" / name
    data = bytearray(file.read_bytes())
    place = data.index(b'"weights"') if name == "ledger.db" else len(data) // 2
    data[place + 1] ^= 1
    file.write_bytes(data)
    status = state_of(runs / "first")
    assert status.label == "not valid" and status.fault and "Do not use this model" in banner(runs / "first")
    assert models_in_use(runs) == ()
    with pytest.raises(BadInput, match="cannot be approved or used"):
        sign(used, "use", "first", "ada", hospitals=["b"])
    sign(used, "withdraw-model", "first", "ada", note="its file was changed")  # always possible


def test_another_model_with_a_ledger_of_its_own_does_not_take_its_place(used, runs):
    shutil.rmtree(runs / "first")
    shutil.copytree(runs / "second", runs / "first")
    assert "model.safetensors was changed" in state_of(runs / "first").fault


def test_a_run_that_is_gone_is_not_valid(used, runs):
    shutil.rmtree(runs / "first")
    assert read_register(runs).find("first").fault == "the run first is not there"


def test_a_run_from_which_a_site_withdrew_is_not_valid_and_not_proposed(used, runs):
    withdraw(Run(runs / "first"), "c", out=runs / "without", table=patients([60, 50, 40]))
    status = state_of(runs / "first")
    assert status.label == "not valid" and "c withdrew" in status.fault and models_in_use(runs) == ()
    sign(used, "withdraw-model", "first", "bob", note="a site withdrew")
    with pytest.raises(BadInput, match="c withdrew"):
        used.propose(runs / "first", purpose="death in hospital", by="engineer")
    assert used.propose(runs / "without", purpose="death in hospital", by="engineer").hospitals == ("a", "b")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda run: (run / "summary.json").unlink(), "is not finished"),
        (lambda run: (run / "ledger.db").unlink(), "does NOT verify"),
        (lambda run: [(run / name).unlink() for name in ("ledger.db", "ledger.head.json")], "has no ledger"),
        (lambda run: (run / "model.safetensors").write_bytes(b"other"), "does NOT verify"),
    ],
)
def test_a_run_that_is_unfinished_changed_or_without_a_ledger_is_not_proposed(register, runs, spoil, sentence):
    spoil(runs / "first")
    with pytest.raises(BadInput, match=sentence):
        register.propose(runs / "first", purpose="death in hospital", by="engineer")
