"""A site countersigns what continues what it signed before, and nothing else; it remembers over a restart."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.audit.head import WITNESSES, Head
from grandrounds.audit.merkle import Tree, leaf_hash
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.site.witness import (
    BEHIND,
    FORKED,
    OTHER_KEY,
    OTHER_RUN,
    SHRUNK,
    SIGNED,
    UNSIGNED,
    Witness,
    no_identity,
)
from tests.support import refused

SERVER = Identity.simulated(0, "server")
NAMES = ("a", "b", "c")


def tree(size: int, *, forked_at: int | None = None) -> Tree:
    return Tree(leaf_hash(b"other" if n == forked_at else str(n).encode()) for n in range(size))


def asked(
    held: Tree, *, since: int = 0, size: int | None = None, server: Identity = SERVER, run: str = "r", **shared
) -> Ask:
    size = len(held) if size is None else size
    head = Head(run, size, held.root(size))
    told = {
        "head": head.text.decode(),
        "signature": np.frombuffer(head.sign(server), np.uint8),
        "key": np.frombuffer(server.public, np.uint8),
        "from": since,
        "proof": np.frombuffer(b"".join(held.consistency(min(since, size), size)), np.uint8),
        **shared,
    }
    return Ask("witness", shared=told, id=AskId("r", 1, 0))


@pytest.fixture
def witness() -> Witness:
    return Witness(NAMES, lambda site: Identity.simulated(0, site))


def answer(witness: Witness, ask: Ask, *members: int):
    return witness.answer(ask, np.array(members or range(3)))


def test_countersignatures_are_of_each_site_over_the_head(witness):
    told = answer(witness, asked(tree(4)))
    head = Head("r", 4, tree(4).root())
    for k, site in enumerate(NAMES):
        assert head.is_countersigned_by(Identity.simulated(0, site).public, told["signature"][k].tobytes())
    assert told["refused"].tolist() == [SIGNED] * 3 and told["have"].tolist() == [0, 0, 0]


def test_a_head_that_continues_the_last_is_signed_and_remembered(witness):
    answer(witness, asked(tree(4)))
    told = answer(witness, asked(tree(9), since=4))
    assert told["refused"].tolist() == [SIGNED] * 3 and told["have"].tolist() == [4] * 3
    again = answer(witness, asked(tree(9), since=9))
    assert again["refused"].tolist() == [SIGNED] * 3 and (again["signature"] == told["signature"]).all()


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (asked(tree(9, forked_at=2), since=4), FORKED),
        (asked(tree(4, forked_at=2), since=4), FORKED),
        (asked(tree(9), since=4, proof=np.zeros(64, np.uint8)), FORKED),
        (asked(tree(9), since=4, proof=np.zeros(0, np.uint8)), FORKED),
        (asked(tree(3)), SHRUNK),
        (asked(tree(9), since=3), BEHIND),
        (asked(tree(9), since=4, server=Identity.simulated(1, "server")), OTHER_KEY),
        (asked(tree(9), since=4, signature=np.zeros(64, np.uint8)), UNSIGNED),
        (asked(tree(9), since=4, run="other"), OTHER_RUN),
    ],
)
def test_anything_else_is_refused_with_no_signature_and_no_trace(witness, ask, why):
    answer(witness, asked(tree(4)))
    told = answer(witness, ask)
    assert told["refused"].tolist() == [why] * 3
    assert not told["signature"].any()
    assert answer(witness, asked(tree(9), since=4))["refused"].tolist() == [SIGNED] * 3


def test_two_histories_cannot_be_shown_to_two_sites_unnoticed(witness):
    """Site a saw one ledger, site b another: neither can be shown the other's from then on."""
    one, two = tree(8), tree(8, forked_at=5)
    answer(witness, asked(one, size=6), 0)
    answer(witness, asked(two, size=6), 1)
    assert answer(witness, asked(one, since=6), 0, 1)["refused"].tolist() == [SIGNED, FORKED]
    assert answer(witness, asked(two, since=6), 1)["refused"].tolist() == [SIGNED]


def test_memory_survives_a_restart(witness):
    answer(witness, asked(tree(4)))
    later = Witness(NAMES, lambda site: Identity.simulated(0, site))
    later.restore({name: np.array(a) for name, a in witness.arrays().items()})
    assert answer(later, asked(tree(9, forked_at=2), since=4))["refused"].tolist() == [FORKED] * 3
    assert answer(later, asked(tree(9), since=4))["refused"].tolist() == [SIGNED] * 3


def test_a_site_without_a_key_signs_nothing():
    with refused("missing-key"):
        answer(Witness(NAMES, no_identity), asked(tree(2)))


@pytest.mark.slow
def test_of_many_sites_a_sample_countersigns_that_only_the_head_decides():
    sites = [f"h{k:05d}" for k in range(5000)]
    one, two = (Head("r", 3, bytes([b]) * 32).witnesses(sites) for b in (1, 2))
    assert len(set(one)) == len(set(two)) == WITNESSES and set(one) <= set(sites)
    assert list(one) == sorted(one) and set(one) != set(two)
    assert one == Head("r", 3, b"\x01" * 32).witnesses(sites)
    assert Head("r", 3, b"\x01" * 32).witnesses(sites[:WITNESSES]) == tuple(sites[:WITNESSES])
    drawn = [Head("r", 3, k.to_bytes(32, "big")).witnesses(sites) for k in range(200)]
    times = np.bincount([int(s[1:]) for names in drawn for s in names], minlength=5000)
    assert times.max() < 18  # 2.56 is to be expected of each; 18 is nearly 10 deviations off
