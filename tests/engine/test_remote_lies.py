"""Answers that are not to be believed: who sent them is left out of the round by name, and the round goes on with the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.engine.faults import NOT_FINITE
from grandrounds.engine.sealing import FOREIGN, OTHER_VERSION, SHAPE, TOO_LARGE, UNREADABLE
from grandrounds.protocol.codec import bundle, unbundle
from grandrounds.protocol.envelope import peek
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answer
from tests.engine.decrypted import read, write
from tests.engine.disturbed import B, Disturbed, Passing, decisions, hospitals, lying
from tests.engine.memory_transport import simulated_keeper
from tests.support import patients

Twist = Callable[[Disturbed, Passing, bytes], bytes]


def model(change: Callable[[Any], Any]) -> Twist:
    """A model that is changed by the site itself, which signs it."""

    def lie(answer: Answer) -> Answer:
        if "model" not in answer.values:
            return answer
        return replace(answer, values={**answer.values, "model": change(np.asarray(answer.values["model"]))})

    return lambda transport, passing, reply: lying(transport.box.keepers[B], reply, lie)


def resealed(transport: Disturbed, reply: bytes, identity: Identity | None = None, **words: Any) -> bytes:
    """The reply with other words in its header, signed anew."""
    plain = read(reply)
    return write(identity or transport.box.keepers[B].me.identity, replace(plain, **words), session=plain)


def of_round_one(transport: Disturbed, passing: Passing, reply: bytes) -> bytes:
    """What the site answered a round ago, as it was then."""
    asked = [p for p in transport.seen if p.address == B and p.asks_for("train", 1)]
    return transport.answered[asked[0].data]


LIES: dict[str, tuple[Twist, str]] = {
    "not a number": (model(lambda m: np.full_like(m, np.nan)), NOT_FINITE),
    "infinite": (model(lambda m: np.full_like(m, np.inf)), NOT_FINITE),
    "too short": (model(lambda m: m[:-1]), SHAPE),
    "another shape": (model(lambda m: np.stack([m, m])), SHAPE),
    "nothing": (model(lambda m: m[:0]), SHAPE),
    "long": (model(lambda m: np.zeros(2_000_000, np.float32)), SHAPE),
    "huge": (model(lambda m: np.zeros(20_000_000, np.float32)), TOO_LARGE),
    "no model": (lambda transport, p, r: lying(transport.box.keepers[B], r, lambda a: replace(a, values={})), ""),
    "bytes": (lambda transport, p, r: b"nothing that anybody could read", FOREIGN),
    "no bytes": (lambda transport, p, r: b"", FOREIGN),
    "cut short": (lambda transport, p, r: r[:-10], FOREIGN),
    "one bit": (lambda transport, p, r: r[:-100] + bytes([r[-100] ^ 1]) + r[-99:], FOREIGN),
    "unreadable, signed": (lambda transport, p, r: resealed(transport, r, body=bundle([b"\x00" * 40] * len(p.asks))), UNREADABLE),
    "one answer too few": (lambda transport, p, r: resealed(transport, r, body=unbundle(read(r).body)[0]), FOREIGN),
    "another's key": (lambda transport, p, r: resealed(transport, r, transport.box.keepers["0"].me.identity), FOREIGN),
    "another's name": (lambda transport, p, r: resealed(transport, r, sender="a"), FOREIGN),
    "a stranger's key": (lambda transport, p, r: resealed(transport, r, Identity.simulated(99, "b")), FOREIGN),
    "to another question": (lambda transport, p, r: resealed(transport, r, about="0" * 64), FOREIGN),
    "of another run": (lambda transport, p, r: resealed(transport, r, run="another"), FOREIGN),
    "a replay": (of_round_one, FOREIGN),
    "a replay, as if anew": (
        lambda transport, p, r: resealed(transport, of_round_one(transport, p, r), about=peek(r).about), FOREIGN,
    ),
    "another protocol": (lambda transport, p, r: resealed(transport, r, protocol=7), OTHER_VERSION),
}  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_not_to_be_believed_leaves_its_site_out_with_the_reason(tmp_path, disturbed, lie):
    twist, why = LIES[lie]
    held = hospitals(rounds=3)
    transport = disturbed(held)
    transport.twist = lambda p, r: twist(transport, p, r) if p.address == B and p.asks_for("train", 2) else r
    first, second, third = decisions(held.deployed(tmp_path, transport))
    assert list(second["missing"]) == ["b"]
    assert second["missing"]["b"].startswith(why)
    assert set(second["weights"]) == {"a", "c", "d"}
    assert first["missing"] == third["missing"] == {}
    assert set(third["weights"]) == {"a", "b", "c", "d"}


def test_reports_that_nobody_asked_for_are_not_looked_at(tmp_path, disturbed):
    """A site cannot tell the server, or a method that reads signals, more than it was asked for."""
    held = hospitals(rounds=2)
    transport = disturbed(held)
    extra = {"trust": 9.9, "shap": np.ones(3), "weights": np.ones(4), "loss.of": 1.0}

    def more(answer: Answer) -> Answer:
        return replace(answer, values={**answer.values, **extra})

    transport.twist = lambda p, r: lying(transport.box.keepers[B], r, more) if p.address == B and p.asks_for("train") else r
    lied = held.deployed(tmp_path, transport)
    honest = held.simulated(tmp_path / "here", patients([60, 50, 40, 45]))
    for told, known in zip(decisions(lied), decisions(honest), strict=True):
        assert told["weights"] == pytest.approx(known["weights"])
        assert told["signals"].keys() == known["signals"].keys()


def test_a_node_that_is_no_site_of_the_run_is_noted_and_not_asked(tmp_path, disturbed):
    """A keeper whose key the consortium does not know, one that calls itself by a site's name, and one that babbles."""
    held = hospitals(rounds=3)
    transport = disturbed(held)
    rows, server = held.rows["a"], transport.box.keepers["0"]._server

    def happens(passing: Passing) -> None:
        if passing.address == B and passing.asks_for("train", 2):
            transport.move(B, "6")  # whoever is there is asked who they are
            for address, name in (("7", "zed"), ("8", "b")):
                transport.box.keepers[address] = simulated_keeper(name, rows, tmp_path / "others", seed=99, server=server)
            transport.box.keepers["9"] = Babbling()

    transport.before = happens
    run = held.deployed(tmp_path, transport)
    assert [d["missing"] for d in decisions(run)] == [{}, {}, {}]
    strangers = [p for p in transport.seen if p.address in ("7", "8", "9")]
    assert {p.address for p in strangers} == {"7", "8", "9"}
    assert {task for p in strangers for task, _ in p.asks} == {"hello"}
    assert [n for n in decisions(run)[1]["notes"] if "a node that is no site of this run" in n]


class Babbling(Keeper):
    """Sends what is no letter."""

    def __init__(self) -> None:
        pass

    def handle(self, data: bytes) -> bytes:
        return b"\xffbla" * 5
