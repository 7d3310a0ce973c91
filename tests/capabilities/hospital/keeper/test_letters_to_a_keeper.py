"""Letters that a keeper does not answer, and what leaves when something breaks: a fixed code, and no patient's value."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.policy.describe import MEANS
from grandrounds.capabilities.hospital.keeper.policy.rules import CODES, TASK, Policy
from grandrounds.capabilities.hospital.keeper.runtime.run import SiteRun
from grandrounds.core.errors import BadInput
from grandrounds.data.table import Table
from grandrounds.protocol.codec import bundle, encode_ask, peek_answer, unbundle
from grandrounds.protocol.envelope import ANYBODY, Envelope, peek, seal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.runs.ledger import SERVER
from grandrounds.site.host import SiteHost
from tests.engine.decrypted import deliver, read, write
from tests.engine.disturbed import DATA, SIZES, Disturbed, Killed, Passing, decisions, hospitals
from tests.engine.hospitals import Hospitals
from tests.support import patients

ALL = {value for name, value in vars(codes).items() if name.isupper() and isinstance(value, str)}
PLANTED = "PATIENT-4711"
FRESH = count(5000)


@pytest.fixture
def opened(tmp_path, quick):
    """Keepers that have done two rounds and not closed the run, and all letters of it."""
    held = hospitals(rounds=2)
    post = Disturbed.of(held.keepers(tmp_path / "state"), quick)

    def before(passing: Passing) -> None:
        if passing.asks_for("close"):
            raise Killed

    post.before = before
    with pytest.raises(Killed):
        held.deployed(tmp_path, post)
    return post


def code(reply: bytes) -> str:
    (one,) = {peek_answer(body) for body in unbundle(read(reply).body)}
    return one


def signed(plain: Envelope, *, seed: int = 0, **words) -> bytes:
    """A new message of the server in the same session, with other words."""
    changed = replace(plain, **{"number": next(FRESH), **words})
    return write(Identity.simulated(seed, SERVER), changed, session=plain)


def ask(run: str, round: int, task: str = "evaluate", step: int = 90) -> bytes:
    return encode_ask(Ask(task, {"committed": 0}, report=("tally",), id=AskId(run, round, step)), "b", None)


def test_a_keeper_answers_its_server_alone(opened):
    """In the words of a code, signed, and to the letter that it got."""
    post = opened
    keeper = post.box.keepers["1"]
    server = Identity.simulated(0, SERVER)
    letter = next(p for p in post.seen if p.address == "1" and p.asks_for("train", 2))
    hello = next(p for p in post.seen if p.address == "1" and p.asks_for("hello"))
    good = read(letter.data)
    refused = {
        "not a letter": (b"hello", codes.UNSIGNED),
        "empty": (b"", codes.UNSIGNED),
        "cut short": (letter.data[:-5], codes.UNSIGNED),
        "one bit": (letter.data[:200] + bytes([letter.data[200] ^ 1]) + letter.data[201:], codes.UNSIGNED),
        "another server's key": (signed(good, seed=99), codes.UNSIGNED),
        "a site's key": (write(Identity.simulated(0, "a"), good), codes.UNSIGNED),
        "from somebody else": (signed(good, sender="operator"), codes.UNSIGNED),
        "to another site": (signed(good, to="a"), codes.UNSIGNED),
        "another protocol": (signed(good, protocol=1), codes.PROTOCOL),
        "to anybody": (signed(good, to=ANYBODY), codes.REFUSED),
        "of another run": (signed(good, run="another"), codes.NO_SESSION),
        "of another run than its Ask": (signed(good, body=ask("another", 2)), codes.REFUSED),
        "sent again": (letter.data, codes.REPLAYED),
        "sent again long after": (signed(good, number=5000 - 1024), codes.REPLAYED),
        "another message's number": (seal(server, replace(peek(letter.data), number=next(FRESH))), codes.REPLAYED),
        "encrypted for another session": (seal(server, replace(peek(letter.data), session="0" * 32)), codes.NO_SESSION),
        "readable": (seal(server, replace(good, session="", body=ask(good.run, 2))), codes.NO_SESSION),
        "a hello that was answered": (hello.data, codes.REPLAYED),
        "unreadable": (signed(good, body=b"\x00" * 99), codes.REFUSED),
        "a bundle cut short": (signed(good, body=bundle([b"a", b"b"])[:-1]), codes.REFUSED),
        "no such task": (signed(good, body=ask(good.run, 2, "send-me-the-rows")), TASK),
        "of a round long done": (signed(good, body=ask(good.run, 0)), codes.STALE),
    }
    for what, (data, why) in refused.items():
        assert code(keeper.handle(data)) == why, what
    never = replace(good, run="never", body=ask("never", 1), session="", number=0)
    assert peek_answer(deliver(keeper, server, never).body) == codes.UNKNOWN_RUN
    assert peek_answer(unbundle(read(keeper.handle(signed(good))).body)[-1]) == ""  # and its server is answered


def test_the_same_letter_gets_the_same_answer_and_nothing_after_the_run_is_closed(opened, monkeypatch):
    post = opened
    keeper = post.box.keepers["1"]
    good = read(next(p.data for p in post.seen if p.address == "1" and all(id.round >= 2 for _, id in p.asks)))

    def no(*_: object) -> None:
        raise AssertionError("it is worked on again")

    with monkeypatch.context() as patch:
        patch.setattr(SiteHost, "answer", no)
        first, second = (read(keeper.handle(signed(good))) for _ in range(2))
        assert first.body == second.body
        assert code(keeper.handle(signed(good))) == ""
    close = encode_ask(Ask("close", id=AskId(good.run, 3, 99)), "b", None)
    assert code(keeper.handle(signed(good, body=close))) == ""
    assert code(keeper.handle(signed(good))) == codes.NO_SESSION, "the keys are gone with the run"
    plain = deliver(keeper, Identity.simulated(0, SERVER), replace(good, session="", number=0))
    assert {peek_answer(body) for body in unbundle(plain.body)} == {codes.UNKNOWN_RUN}


def marked() -> Table:
    """Patients of whom one has a ward and an age that nobody else has."""
    made = patients(SIZES)
    columns = {name: np.array(column) for name, column in made.columns.items()}
    columns["ward"] = columns["ward"].astype(object)
    columns["ward"][70], columns["age"][70] = PLANTED, 4711.25
    assert columns["hospital"][70] == "b"
    return Table.from_mapping(columns, source="patients.csv")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("error", [ValueError, BadInput, KeyError, MemoryError, RecursionError, AssertionError])
def test_what_breaks_at_a_site_leaves_as_a_code_and_no_value_of_a_patient_is_in_any_letter(
    tmp_path, quick, monkeypatch, error
):
    held = Hospitals.of(marked(), name="planted", data=DATA, method={"rounds": 3}, explain={"sketch": "none"})
    post = Disturbed.of(held.keepers(tmp_path / "state", access=AccessControl(Policy())), quick)
    answer = SiteHost.answer

    def breaks(self, question, members):
        if self.stack.names == ("b",) and question.task == "train" and question.round == 2:
            raise error(f"row 70 of {PLANTED}: age 4711.25 is not what was expected")
        return answer(self, question, members)

    monkeypatch.setattr(SiteHost, "answer", breaks)
    run = held.deployed(tmp_path, post)
    said = [d["missing"] for d in decisions(run)]
    assert said == [{}, {"b": f"refused ({codes.REFUSED})"}, {}]
    assert set(post.codes()) <= ALL
    numbers = [struct.pack(f, 4711.25) for f in ("<d", "<f", ">d", ">f")]
    for left in (*(read(reply).body for reply in post.replies), *(p.read_bytes() for p in run.folder.rglob("*") if p.is_file())):
        assert PLANTED.encode() not in left and b"4711.25" not in left
        assert not any(number in left for number in numbers)


def test_an_answer_that_is_not_finite_does_not_leave_and_is_counted(tmp_path, quick, monkeypatch):
    held = hospitals(rounds=3)
    post = Disturbed.of(held.keepers(tmp_path / "state"), quick)
    answer = SiteHost.answer

    def diverges(self, question, members):
        columns = answer(self, question, members)
        if self.stack.names == ("b",) and question.task == "train" and question.round == 2:
            columns = {**columns, "model": np.full_like(columns["model"], np.nan)}
        return columns

    monkeypatch.setattr(SiteHost, "answer", diverges)
    counted, count_refusal = [], SiteRun.count_refusal
    monkeypatch.setattr(SiteRun, "count_refusal", lambda self: (count_refusal(self), counted.append(self.refusals)))
    run = held.deployed(tmp_path, post)
    assert [d["missing"] for d in decisions(run)] == [{}, {"b": f"refused ({codes.NOT_FINITE})"}, {}]
    assert counted == [1]


IMPOSSIBLE = ({f"c{k}": 1 for k in range(100_000)}, {"0": 10**9}, {"0": -5, "1": 6}, {"0": "many"}, ["0", "1"])


@pytest.mark.parametrize("classes", IMPOSSIBLE)
def test_one_site_with_impossible_classes_is_left_out_of_the_columns_and_no_other(tmp_path, quick, monkeypatch, classes):
    held = hospitals(rounds=1)
    post = Disturbed.of(held.keepers(tmp_path / "state"), quick)
    answer = SiteHost.answer

    def lies(self, question, members):
        columns = answer(self, question, members)
        if self.stack.names == ("b",) and question.task == "summarise" and "summary.words" in columns:
            words = json.loads(columns["summary.words"][0])
            columns = {**columns, "summary.words": [json.dumps({**words, "classes": classes})]}
        return columns

    monkeypatch.setattr(SiteHost, "answer", lies)
    run = held.deployed(tmp_path, post)
    left_out = [w for w in run.summary["warnings"] if "left out of the preparation of columns" in w]
    assert len(left_out) == 1 and left_out[0].startswith("b ")
    assert [d["missing"] for d in decisions(run)] == [{}]


def test_every_code_has_a_sentence_for_the_sites_staff():
    """Errors of the site's own files have sentences of their own."""
    assert set(codes.SENTENCES) == ALL - codes.OF_SITE_FILES
    assert set(CODES) <= set(MEANS) and not set(MEANS) & ALL
