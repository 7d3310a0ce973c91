"""Sessions: who can read a message, and who cannot; what is sent twice; what remains after a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.errors import BadInput
from grandrounds.engine.sealing import MessageSealer
from grandrounds.protocol import sessions
from grandrounds.protocol.codec import bundle
from grandrounds.protocol.envelope import Envelope, digest, peek, seal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.protocol.sessions import EphemeralKey, Handshake, Session, SiteSessions
from grandrounds.runs.ledger import SERVER
from tests.engine.disturbed import hospitals
from tests.engine.memory_transport import MemoryTransport
from tests.support import refused

SERVER_KEY, SITE_KEY = Identity.simulated(0, SERVER), Identity.simulated(0, "b")
REQUEST = Envelope(SERVER, "b", "run", b"the model of round 7")


def agree(hello: bytes = b"hello", answer: bytes = b"answer") -> tuple[Session, Session]:
    """Both sides of a session."""
    server, site = EphemeralKey(), EphemeralKey()
    known = Handshake(SERVER_KEY.public, SITE_KEY.public, hello, answer)
    return known.server_session(server, site.public), known.site_session(site, server.public)


@given(body=st.binary(max_size=300), part=st.integers(1, 64))
@settings(deadline=None)
def test_a_body_of_any_size_arrives_whole_and_is_not_readable(body, part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_PART", part)
        server, site = agree()
        sent = server.encrypt_request(replace(REQUEST, body=body))
        assert site.decrypt(sent) == body
        back = site.encrypt_answer(Envelope("b", SERVER, "run", body), sent)
        assert server.decrypt(back) == body
        if len(body) >= 16:
            assert body[:16] not in sent.body and body[:16] not in back.body
            assert sent.body != back.body


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"x" * 40},
        {"run": "another"},
        {"to": "c"},
        {"about": "0" * 64},
        {"number": 1},
        {"version": "9.9"},
        {"session": "0" * 32},
    ],
    ids=str,
)
def test_a_message_whose_header_or_body_was_changed_is_not_decrypted(change):
    server, site = agree()
    sent = server.encrypt_request(REQUEST)
    with refused("bad-message"):
        site.decrypt(replace(sent, **change))
    assert site.decrypt(sent) == REQUEST.body, "the changed one did not use up the number"


def test_parts_of_a_body_cannot_be_dropped_repeated_or_exchanged(monkeypatch):
    monkeypatch.setattr(sessions, "_PART", 8)
    server, site = agree()
    sent = server.encrypt_request(replace(REQUEST, body=bytes(range(24))))
    one, two, three = (sent.body[k * 24 : (k + 1) * 24] for k in range(3))
    for body in (one + two, two + three, one + one + three, two + one + three, one + two + three + three):
        with refused("bad-message"):
            site.decrypt(replace(sent, body=body))


def test_a_number_is_accepted_once_in_any_order():
    server, site = agree()
    sent = [server.encrypt_request(replace(REQUEST, body=str(k).encode())) for k in range(2000)]
    for k in (3, 1, 2, 0):
        assert site.decrypt(sent[k]) == str(k).encode()
        with refused("replayed-message"):
            site.decrypt(sent[k])
    assert site.decrypt(sent[1999]) == b"1999"
    for late in (4, 1999 - 1024):
        with refused("replayed-message"):  # too late to tell whether it was there before
            site.decrypt(sent[late])
    assert site.decrypt(sent[1999 - 1023])


def test_no_message_of_one_session_or_direction_is_one_of_another():
    server, site = agree()
    sent = server.encrypt_request(REQUEST)
    for other in (agree()[1], agree(hello=b"another hello")[1]):
        with refused("bad-message"):
            other.decrypt(replace(sent, session=other.id))
    with refused("bad-message"):
        server.decrypt(sent)  # what it sent itself
    assert site.decrypt(sent) == REQUEST.body


@pytest.mark.parametrize("changed", ["server", "site", "hello", "answer"])
def test_keys_belong_to_both_identities_and_both_messages(changed):
    """Parties that saw other identities or other messages have other keys, also with the same ephemeral keys."""
    mine, theirs = EphemeralKey(), EphemeralKey()
    known = Handshake(SERVER_KEY.public, SITE_KEY.public, b"hello", b"answer")
    other = replace(known, **{changed: b"?" * 32})
    server, site = known.server_session(mine, theirs.public), other.site_session(theirs, mine.public)
    assert server.id != site.id
    with refused("bad-message"):
        site.decrypt(server.encrypt_request(REQUEST))


@pytest.mark.parametrize("key", ["", "zz", "00" * 32, "01" + "00" * 31, "ab" * 31])
def test_a_key_of_small_order_or_another_length_is_refused(key):
    with pytest.raises(BadInput):
        EphemeralKey().exchange(key)


def test_a_gateway_that_puts_its_own_key_into_a_hello_is_found_out(tmp_path):
    held = hospitals(rounds=1)
    keeper = held.keepers(tmp_path)[1]
    sealer = MessageSealer(SERVER_KEY, held.run_name, {"b": keeper.me.identity.public})
    hello = sealer.seal_hello(0)
    own = hello.replace(sealer._key.public.encode(), EphemeralKey().public.encode())
    assert own != hello
    assert peek(keeper.handle(own)).session == "" and keeper._sessions._runs == {}
    answer = keeper.handle(hello)
    key = keeper._sessions._runs[held.run_name]
    assert len(key) == 1
    for changed in (answer[:-70] + b"0" + answer[-69:], seal(Identity.new(), peek(answer))):
        with pytest.raises(BadInput):
            sealer.identify(changed, hello)
    assert sealer.identify(answer, hello) == "b"
    assert set(key) == {sealer._sessions["b"].id}


def test_an_answer_is_bound_to_its_request_and_read_once(tmp_path):
    held = hospitals(rounds=1)
    keeper = held.keepers(tmp_path)[1]
    sealer = MessageSealer(SERVER_KEY, held.run_name, {"b": keeper.me.identity.public})
    hello = sealer.seal_hello(0)
    sealer.identify(keeper.handle(hello), hello)
    data = sealer.seal_asks([Ask("close", id=AskId(held.run_name, 0, 1))], "b", None)
    answer = keeper.handle(data)
    with refused("invalid-answer"):
        sealer.open_answers(answer, "b", digest(b"another"), 1)
    assert len(sealer.open_answers(answer, "b", digest(data), 1)) == 1
    with refused("invalid-answer"):
        sealer.open_answers(answer, "b", digest(data), 1)


def test_after_a_run_no_site_has_its_keys_and_nothing_of_them_was_written(tmp_path):
    held = hospitals(rounds=1)
    keepers = held.keepers(tmp_path / "state")
    keys: list[str] = []
    add = SiteSessions.add

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteSessions, "add", lambda self, run, session: (keys.append(session.id), add(self, run, session)))
        held.deployed(tmp_path, MemoryTransport(keepers))
    assert len(keys) == 4
    assert all(keeper._sessions._runs == {} for keeper in keepers)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(key.encode() in data or bytes.fromhex(key) in data for key in keys for data in files)


def test_nothing_of_a_model_or_a_column_is_readable_in_a_run(tmp_path):
    """Every 16 bytes of what sites and server said are looked for in what was sent."""
    held = hospitals(rounds=2, explain={"sketch": "permutation"})
    transport = MemoryTransport(held.keepers(tmp_path / "state"))
    replies: list[bytes] = []
    collect = transport.collect
    transport.collect = lambda tickets, wait: [(r, replies.append(r.data))[0] for r in collect(tickets, wait=wait)]  # type: ignore[method-assign]
    model = held.deployed(tmp_path, transport).model.theta
    wire = bundle([*(data for _, data in transport.messages), *replies])
    assert len(wire) > 20_000 and held.run_name.encode() in wire
    raw = model.astype("float32").tobytes()
    assert not any(raw[k : k + 16] in wire for k in range(0, len(raw) - 16, 4))
    for word in ("age", "ward", "died", "train", "evaluate", "model"):
        assert f'"{word}'.encode() not in wire, word
    assert not any(peek(data).session == "" and b"hello" not in data for _, data in transport.messages)


def test_a_site_keeps_few_sessions():
    kept = SiteSessions()
    first = [agree(answer=str(k).encode())[1] for k in range(6)]
    for session in first:
        kept.add("run", session)
    assert [kept.find(Envelope(SERVER, "b", "run", b"", session=s.id)) is not None for s in first] == [False] * 2 + [True] * 4
    for k in range(100):
        kept.add(f"run {k}", agree()[1])
    assert len(kept._runs) == 64
