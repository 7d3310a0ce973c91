"""States of a model, the rules for people who sign, and what other parts read."""

from __future__ import annotations

import stat
import threading

import pytest

from grandrounds.audit.register_state import State
from grandrounds.capabilities.dossier.register import banner, models_in_use, read_register, signing_key, state_of
from grandrounds.capabilities.dossier.register.folder import load_register
from grandrounds.capabilities.dossier.register.register import ChangedMeanwhile, Register
from grandrounds.capabilities.dossier.register.signing_key import WrongPassphrase, open_key, seal_key
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity
from tests.capabilities.dossier.register.conftest import ROLES, WORDS, approved, sign


def test_a_model_is_approved_by_both_roles_then_used_then_withdrawn(register, runs):
    record = register.propose(runs / "first", purpose="death in hospital", by="engineer")
    assert (record.state, record.missing, record.hospitals) == (State.CANDIDATE, ROLES, ("a", "b", "c"))
    assert sign(register, "approve", "first", "ada").missing == (ROLES[1],)
    assert "waiting for data protection officer" in state_of(runs / "first").sentence
    assert sign(register, "approve", "first", "bob").state is State.APPROVED
    assert models_in_use(runs) == ()
    assert sign(register, "use", "first", "ada", hospitals=["b"]).in_use == ("b",)
    assert [m.run for m in models_in_use(runs, "b")] == ["first"] and models_in_use(runs, "a") == ()
    assert state_of(runs / "first").is_valid and banner(runs / "first") == ""
    sign(register, "withdraw-model", "first", "bob", note="Alarm of ward 3")
    assert models_in_use(runs) == () and state_of(runs / "first").label == "withdrawn"
    assert "bob (data protection officer): Alarm of ward 3. Do not use this model." in banner(runs / "first")
    actions = [event.action for event in state_of(runs / "first").record.history]
    assert actions == ["proposed as candidate", "approved", "approved", "put in use at b", "withdrawn"]
    assert not load_register(register.folder).findings


def test_a_run_or_folder_without_a_register_is_in_none(runs):
    assert state_of(runs / "first") is None and banner(runs / "first") == ""
    assert read_register(runs) is None and models_in_use(runs, "a") == ()
    with pytest.raises(BadInput, match="rounds models init"):
        Register(runs).load()


def test_another_model_replaces_the_former_for_the_same_purpose_at_the_same_hospital(register, runs):
    approved(register, "first", "Death in  hospital")
    approved(register, "second", "death in hospital")
    sign(register, "use", "first", "ada", hospitals=["a", "b"])
    sign(register, "use", "second", "ada", hospitals=["b"])
    assert [m.run for m in models_in_use(runs, "a")] == ["first"]
    assert [m.run for m in models_in_use(runs, "b")] == ["second"]
    sign(register, "use", "second", "bob", hospitals=["a", "b"])
    former = state_of(runs / "first").record
    assert (former.state, former.in_use) == (State.APPROVED, ())
    assert former.history[-1].action == "replaced at a by second"
    assert sign(register, "use", "second", "bob", hospitals=[]).state is State.APPROVED


def test_models_of_other_purposes_are_used_side_by_side(register, runs):
    approved(register, "first", "death in hospital")
    approved(register, "second", "readmission")
    sign(register, "use", "first", "ada", hospitals=["a"])
    sign(register, "use", "second", "ada", hospitals=["a"])
    assert {m.run for m in models_in_use(runs, "a")} == {"first", "second"}


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda r: sign(r, "use", "first", "ada", hospitals=["a"]), "not approved yet"),
        (lambda r: sign(r, "approve", "first", "ada") and sign(r, "approve", "first", "ada"), "approved it already"),
        (lambda r: sign(r, "withdraw-model", "first", "ada", note=" "), "needs a reason"),
        (lambda r: r.propose(r.runs / "first", purpose="x", by="engineer"), "in the register already"),
        (lambda r: r.propose(r.runs / "second", purpose=" ", by="engineer"), "no purpose"),
        (lambda r: sign(r, "approve", "second", "ada"), "not in the register"),
        (lambda r: sign(r, "approve", "first", "eve"), "no signatory 'eve'"),
        (lambda r: r.decide("approve", "first", by="ada", passphrase=WORDS["bob"]), "passphrase is wrong"),
        (lambda r: r.propose(r.runs.parent, purpose="x", by="engineer"), "is not below"),
    ],
)
def test_a_decision_against_the_rules_is_refused_and_leaves_no_entry(register, runs, attempt, sentence):
    register.propose(runs / "first", purpose="death in hospital", by="engineer")
    with pytest.raises(BadInput, match=sentence):
        attempt(register)
    view = read_register(runs)
    assert not view.fault and view.find("first").state is State.CANDIDATE and view.find("second") is None


def test_use_is_limited_to_approved_hospitals(register, runs):
    register.propose(runs / "first", purpose="death in hospital", hospitals=["a"], by="engineer")
    sign(register, "approve", "first", "ada")
    sign(register, "approve", "first", "bob")
    with pytest.raises(BadInput, match="approved for a, not for b"):
        sign(register, "use", "first", "ada", hospitals=["a", "b"])


def test_after_set_up_each_role_must_agree_to_a_new_signatory_and_to_other_roles(register):
    def add(*by):
        register.add_signatory("eve", role=ROLES[0], passphrase=WORDS["eve"], by={n: WORDS[n] for n in by})

    before = set((register.folder.path / "signatories").iterdir())
    for by in ((), ("ada",), ("bob",)):
        with pytest.raises(BadInput, match="lacks the signature"):
            add(*by)
    assert set((register.folder.path / "signatories").iterdir()) == before  # no key is left behind
    add("ada", "bob")
    with pytest.raises(BadInput, match="lacks the signature"):
        register.change_roles([ROLES[0]], by={"ada": WORDS["ada"], "eve": WORDS["eve"]}, note="")
    register.change_roles([ROLES[0]], by={n: WORDS[n] for n in ("ada", "bob")}, note="")
    assert register.load().state.roles == (ROLES[0],)


def test_one_signatory_cannot_take_the_place_of_the_other_role(register, runs):
    register.end_signatory("bob", by={"ada": WORDS["ada"]}, note="left")
    with pytest.raises(BadInput, match="lacks the signature of: data protection officer"):
        register.add_signatory("mallory", role=ROLES[1], passphrase=WORDS["eve"], by={"ada": WORDS["ada"]})
    register.propose(runs / "first", purpose="death in hospital", by="engineer")
    with pytest.raises(BadInput, match="no signatory 'bob'"):
        sign(register, "approve", "first", "bob")


def test_two_signatories_at_the_same_moment_both_sign(register, runs):
    register.propose(runs / "first", purpose="death in hospital", by="engineer")
    ready, results = threading.Barrier(4), []

    def attempt(name):
        ready.wait()
        try:
            results.append(sign(register, "approve", "first", name, seen=record.version).state)
        except BadInput as e:
            results.append(str(e))

    record = register.load().state.find_record("first")
    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("ada", "bob", "ada", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checked = load_register(register.folder)
    assert not checked.findings
    record = checked.state.find_record("first")
    assert record.state is State.APPROVED and sorted(e.by for e in record.approvals) == ["ada", "bob"]
    assert sum(isinstance(result, State) for result in results) == 2  # each role signed once


def test_a_register_verifies_at_every_moment_while_somebody_signs(register, runs):
    approved(register, "first")
    done, findings = threading.Event(), []

    def read():
        while not done.is_set():
            findings.extend(load_register(register.folder).findings)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(30):
        sign(register, "use", "first", "ada", hospitals=["a"] if turn % 2 == 0 else [])
    done.set()
    for reader in readers:
        reader.join()
    assert not findings


def test_a_decision_on_an_earlier_version_is_refused(register, runs):
    seen = approved(register, "first").version
    sign(register, "use", "first", "ada", hospitals=["a"], seen=seen)
    sign(register, "use", "first", "ada", hospitals=[])
    with pytest.raises(ChangedMeanwhile):
        sign(register, "use", "first", "ada", hospitals=["a"], seen=seen)


def test_a_withdrawn_model_can_be_proposed_again_and_needs_new_signatures(register, runs):
    approved(register, "first")
    sign(register, "withdraw-model", "first", "ada", note="a mistake")
    assert register.propose(runs / "first", purpose="death in hospital", by="engineer").missing == ROLES


def test_keys_are_private_and_open_with_their_passphrase_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(signing_key, "COSTS", {"n": 2**15, "r": 8, "p": 3})
    identity, file = Identity.new(), tmp_path / "key.json"
    seal_key(file, identity, name="ada", passphrase=WORDS["ada"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert identity.private_bytes().hex() not in file.read_text()
    assert open_key(file, passphrase=WORDS["ada"]).public == identity.public
    with pytest.raises(WrongPassphrase):
        open_key(file, passphrase=WORDS["bob"])
    with pytest.raises(BadInput, match="12 to 1024"):
        seal_key(tmp_path / "short.json", identity, name="ada", passphrase="short")
    file.write_text(file.read_text().replace('"ada"', '"bob"'))
    with pytest.raises(WrongPassphrase):  # the name belongs to what is sealed
        open_key(file, passphrase=WORDS["ada"])
