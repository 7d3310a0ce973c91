"""Whom a keeper adds up with: a server that plays the other sites gets codes and nothing else, an honest one its sums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.access import AccessControl, RejectedPeers
from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.core.errors import RunFailed
from grandrounds.core.rng import generator
from grandrounds.protocol.codec import decode_answer, encode_ask, peek_answer, peek_ask, unbundle
from grandrounds.protocol.envelope import Envelope
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.protocol.tasks import MEET, SUM_STEPS
from grandrounds.runs.ledger import SERVER
from tests.engine.decrypted import deliver, read
from tests.engine.disturbed import SIZES, B, Clock, Disturbed, Passing, close_to, decisions, hospitals
from tests.engine.hospitals import PLAIN, Hospitals, _conducted
from tests.engine.memory_transport import MemoryTransport, simulated_keeper
from tests.support import patients, refused

SECURE = {"privacy": {"secure": True}}
FAKE = 99
"""The seed of the keys that a dishonest server makes up."""


@pytest.fixture
def quick(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("grandrounds.engine.dispatcher.time", clock)
    return clock


@dataclass
class Heard:
    """What keepers say to training and to secure sums, as it leaves them: address, task, code, values."""

    post: Disturbed
    said: list[tuple[str, str, str, dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def at(cls, post: Disturbed) -> Heard:
        heard = cls(post)
        post.twist = heard.hear
        return heard

    def hear(self, passing: Passing, reply: bytes) -> bytes:
        name = self.post.box.keepers[passing.address].me.name
        for (task, _), body in zip(passing.asks, unbundle(read(reply).body), strict=True):
            if task in ("train", MEET, *SUM_STEPS):
                answer = decode_answer(body, name, None)
                self.said.append((passing.address, task, answer.error, dict(answer.values)))
        return reply

    def by(self, *tasks: str, address: str = B) -> list[tuple[str, dict[str, Any]]]:
        """Codes and values that one keeper said to these tasks."""
        return [(code, values) for at, task, code, values in self.said if at == address and task in tasks]


def keys(held: Hospitals, **other: bytes) -> dict[str, bytes]:
    """The true key of each hospital, but for these."""
    return {name: Identity.simulated(held.seed, name).public for name in held.rows} | other


def gate(listed: Mapping[str, bytes] | None, *, fewest: int = 3) -> AccessControl:
    """One that takes nothing away from answers, with a list."""
    return AccessControl(replace(PLAIN.policy, secure=replace(PLAIN.policy.secure, fewest=fewest)), peers=listed)


def played(held: Hospitals, called: Mapping[str, str], own: AccessControl, clock: Clock, folder: Path) -> tuple[Heard, Any]:
    """A run in which b alone is real: the server plays the others, called so, with keys that it made."""
    server = Identity.simulated(held.seed, SERVER).public
    made: dict[str, Keeper] = {}
    for name, rows in held.rows.items():
        seed, let = (held.seed, own) if name == "b" else (FAKE, PLAIN)
        as_ = called.get(name, name)
        made[as_] = simulated_keeper(as_, rows, folder / "state", seed=seed, server=server, access=let)
    heard = Heard.at(Disturbed.of(list(made.values()), clock))
    venue = held.venue(heard.post)
    venue.keys = {name: keeper.me.identity.public for name, keeper in made.items()}
    return heard, _conducted(held.at_sites, folder / "run", venue=venue)


@pytest.mark.parametrize(
    ("called", "code"),
    [({}, codes.OTHER_PEER_KEY), ({"a": "x", "c": "y", "d": "z"}, codes.UNKNOWN_PEER)],
    ids=["by their names", "by names that nobody has"],
)
def test_a_server_that_plays_all_other_sites_gets_nothing_of_the_one(tmp_path, quick, called, code):
    held = hospitals(rounds=2, **SECURE)
    own = gate(keys(held))
    own.rejected_peers = RejectedPeers(tmp_path / "strangers.jsonl")
    heard, run = played(held, called, own, quick, tmp_path)
    assert heard.by(MEET) and heard.by("secagg.keys")
    assert {c for c, _ in heard.by(MEET, *SUM_STEPS)} == {code}
    assert not [values for _, values in heard.by(MEET, *SUM_STEPS) if values]
    assert [d["missing"] for d in decisions(run)] == [{"b": f"refused ({code})"}] * 2
    (noted,) = own.rejected_peers.all()
    assert (noted.run, noted.code) == (held.run_name, code)
    assert noted.description.startswith(f"{', '.join(called.get(n, n) for n in 'acd')} are introduced")


def test_without_a_list_that_server_is_believed(tmp_path, quick):
    """What the list is for: the same server gets masked values of b, and it holds the keys that take the masks away."""
    held = hospitals(rounds=1, **SECURE)
    heard, _ = played(held, {}, gate(None), quick, tmp_path)
    assert [values for code, values in heard.by("secagg.masked") if not code and np.size(values["masked"])]


def test_one_site_with_another_key_than_listed_is_enough_to_refuse(tmp_path, quick):
    held = hospitals(rounds=1, **SECURE)
    post = Disturbed.of(held.keepers(tmp_path / "state", access=gate(keys(held))), quick)
    post.box.keepers[B]._access = gate(keys(held, c=Identity.simulated(FAKE, "c").public))
    (decision,) = decisions(held.deployed(tmp_path, post))
    assert decision["missing"] == {"b": f"refused ({codes.OTHER_PEER_KEY})"}
    assert set(decision["weights"]) == {"a", "c", "d"}


def test_a_list_of_nobody_refuses_everybody(tmp_path, quick):
    """A folder without a list is no folder whose site takes the server's word."""
    held = hospitals(rounds=1, **SECURE)
    post = Disturbed.of(held.keepers(tmp_path / "state", access=gate({})), quick)
    with refused("too-few-sites", match=rf"a \(refused \({codes.UNKNOWN_PEER}\)\), b ", kind=RunFailed):
        held.deployed(tmp_path, post)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("method", "privacy"),
    [
        ("fedavg", {"secure": True}),
        ("fedxchain", {"secure": True}),
        ("fedavg", {"mechanism": "client", "noise": 0.5, "secure": True}),
    ],
)
def test_sites_with_lists_train_the_model_of_a_simulation(tmp_path, method, privacy):
    held = hospitals(method, rounds=1, privacy=privacy)
    here = held.simulated(tmp_path / "here", patients(SIZES))
    there = held.deployed(tmp_path, MemoryTransport(held.keepers(tmp_path / "state", access=gate(keys(held)))))
    close_to(there, here)
    assert [d["missing"] for d in decisions(there)] == [{}]


def test_a_site_that_wants_more_than_are_introduced_takes_part_in_no_sum(tmp_path, quick):
    held = hospitals(rounds=1, **SECURE)
    heard = Heard.at(Disturbed.of(held.keepers(tmp_path / "state", access=gate(keys(held), fewest=5)), quick))
    with refused("too-few-sites", match=rf"b \(refused \({codes.TOO_FEW_PEERS}\)\)", kind=RunFailed):
        held.deployed(tmp_path, heard.post)
    assert not heard.by(*SUM_STEPS)


@pytest.mark.parametrize(
    ("left_at", "code", "not_answered"),
    [
        ("secagg.keys", "too-few-sites", ("secagg.shares", "secagg.masked")),
        ("secagg.masked", "survivors", ("secagg.sign", "secagg.unmask")),
    ],
)
def test_a_sum_of_too_few_is_refused_though_enough_have_met(tmp_path, quick, left_at, code, not_answered):
    """Four meet and one leaves: three are enough for the protocol, and not for sites that want four."""

    def run_with(fewest: int, folder: Path) -> Heard:
        held = hospitals(rounds=1, **SECURE)
        heard = Heard.at(Disturbed.of(held.keepers(folder / "state", access=gate(keys(held), fewest=fewest)), quick))

        def leaves(passing: Passing) -> None:
            if passing.address == "3" and passing.asks_for(left_at):
                heard.post.box.down.add("3")

        heard.post.before = leaves
        try:
            held.deployed(folder, heard.post)
        except RunFailed as e:
            assert f"refused ({code})" in str(e)
        return heard

    few, enough = run_with(4, tmp_path / "four"), run_with(3, tmp_path / "three")
    told = few.by(*not_answered)
    assert told and {values["error"] for _, values in told} == {code}
    assert not [n for _, values in told for n, v in values.items() if n != "error" and np.size(v)]
    assert {values["error"] for _, values in enough.by(*not_answered)} == {""}


def setting_up(heard: list[Envelope]) -> tuple[list[Envelope], Envelope, list[Envelope]]:
    """Letters of a run in three: those before the sites meet, that in which they do, and the steps of sums."""
    tasks = [{peek_ask(body)[0] for body in unbundle(data.body)} for data in heard]
    at = next(k for k, asked in enumerate(tasks) if MEET in asked)
    return heard[:at], heard[at], [data for data, asked in zip(heard, tasks, strict=True) if asked & set(SUM_STEPS)]


@pytest.fixture(scope="module")
def letters(tmp_path_factory) -> tuple[Hospitals, list[Envelope]]:
    """Four hospitals, and the letters that b got in an honest run of theirs."""
    held = hospitals(rounds=1, **SECURE)
    folder = tmp_path_factory.mktemp("honest")
    box = MemoryTransport(held.keepers(folder / "state", access=gate(keys(held))))
    held.deployed(folder, box)
    heard = [read(data) for address, data in box.messages if address == B]
    return held, [replace(plain, session="", number=0) for plain in heard if plain.session]


@pytest.mark.parametrize("case", ["never met", "a stranger", "another key", "too few", "nobody listed"])
@pytest.mark.parametrize("order", range(2))
def test_no_step_of_a_sum_is_answered_before_a_site_has_met_those_it_knows(tmp_path, letters, case, order):
    """In whatever order a server asks, the run's own letters get codes and no value."""
    held, heard = letters
    own = {
        "a stranger": gate({n: k for n, k in keys(held).items() if n != "d"}),
        "another key": gate(keys(held, d=Identity.simulated(FAKE, "d").public)),
        "too few": gate(keys(held), fewest=5),
        "nobody listed": gate({}),
    }.get(case, gate(keys(held)))
    keeper = held.keepers(tmp_path, access=own)[int(B)]
    before, meet, steps = setting_up(heard)
    for data in before:
        assert answers(keeper, data) == [""]
    asked = [*([] if case == "never met" else [meet, meet]), *steps, *steps]
    rng = generator(order, purpose=f"a server that asks in any order: {case}")
    why = {"never met": codes.NOT_MET, "a stranger": codes.UNKNOWN_PEER, "nobody listed": codes.UNKNOWN_PEER}
    why |= {"another key": codes.OTHER_PEER_KEY, "too few": codes.TOO_FEW_PEERS}
    for at in rng.permutation(len(asked)):
        (code,) = answers(keeper, asked[at])
        assert code in (why[case], codes.NOT_MET), at
    keeper._access.peers, keeper._access.policy = keys(held), gate(None).policy
    again = Keeper(keeper.me, server=keeper._server, rows=keeper._read, state=keeper._state, access=keeper._access)
    assert [answers(again, data) for data in (meet, steps[0])] == [[""], [""]], "it adds up with those it knows"


def answers(keeper: Keeper, letter: Envelope) -> list[str]:
    """The codes of what a keeper answers; where there is one, no value is beside it."""
    bodies = unbundle(deliver(keeper, Identity.simulated(0, SERVER), letter).body)
    for body in bodies:
        assert not peek_answer(body) or not decode_answer(body, keeper.me.name, None).values
    return [peek_answer(body) for body in bodies]


def test_a_keeper_that_starts_again_with_another_list_goes_by_that(tmp_path, quick):
    """Whom it met before is on its disk; who is no longer listed is not believed for having been met."""
    held = hospitals(rounds=3, **SECURE)
    post = Disturbed.of(held.keepers(tmp_path / "state", access=gate(keys(held))), quick)
    heard = Heard.at(post)

    def before(passing: Passing) -> None:
        if passing.address == B and passing.asks_for("train", 2):
            post.box.keepers[B]._access = gate(keys(held, c=Identity.simulated(FAKE, "c").public))
            post.restart(B)
        if passing.address == B and passing.asks_for("train", 3):
            post.box.keepers[B]._access = gate(keys(held))
            post.restart(B)

    post.before = before
    run = held.deployed(tmp_path, post)
    assert [d["missing"] for d in decisions(run)] == [{}, {"b": f"refused ({codes.OTHER_PEER_KEY})"}, {}]
    said = [code for code, _ in heard.by("train")]
    assert said == ["", codes.NO_SESSION, "", codes.NO_SESSION, ""], "what is no sum it still does, once it is greeted again"


def test_strangers_later_on_end_what_was_begun_with_others(tmp_path, letters):
    """A server that was honest first. The site adds up with nobody until it is introduced to those it knows again."""
    held, heard = letters
    keeper = held.keepers(tmp_path, access=gate(keys(held)))[int(B)]
    before, meet, steps = setting_up(heard)
    for data in (*before, meet, steps[0]):
        assert answers(keeper, data) == [""]
    assert answers(keeper, introducing(held, meet, keys(held, e=Identity.new().public))) == [codes.UNKNOWN_PEER]
    assert answers(keeper, steps[1]) == [codes.UNKNOWN_PEER]
    assert answers(keeper, introducing(held, meet, keys(held))) == [""]
    assert answers(keeper, steps[1]) == [""]


def introducing(held: Hospitals, meet: Envelope, told: Mapping[str, bytes]) -> Envelope:
    """Another letter in which sites are introduced, by the server itself."""
    rows = np.frombuffer(b"".join(told.values()), np.uint8).reshape(len(told), -1)
    shared = {"names": json.dumps(list(told)), "identities": rows, "committed": 0}
    ask = Ask(MEET, shared, report=("met",), id=AskId(held.run_name, 0, 80 + len(told)))
    return replace(meet, body=encode_ask(ask, "b", None))
