"""A proof needs nothing but itself and a public key, and nothing in it can be bent."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.audit.canonical import canonical
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.proof import DAMAGED, NOT_INCLUDED, OTHER_CLAIM, check, parties, prove
from grandrounds.audit.verify import FORGED_HEAD, FORGED_WITNESS, STRANGER
from grandrounds.errors import BadInput
from grandrounds.identity import Identity
from tests.audit.ledgers import SERVER, SITES, made


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    with Ledger.open(made(tmp_path_factory.mktemp("proof") / "l.db")) as ledger:
        return ledger.book()


@pytest.fixture(scope="module")
def proof(book):
    return prove(book, round=4, site="b")


def names(data: bytes, key: bytes = SERVER.public) -> set[str]:
    return {f.name for f in check(data, key).findings}


def changed(proof: bytes, **values) -> bytes:
    return canonical({**json.loads(proof), **values}) + b"\n"


@pytest.mark.parametrize("round", range(1, 7))
@pytest.mark.parametrize(("site", "weight"), [("a", 0.1), ("b", 0.2), ("c", 0.7)])
def test_every_weight_of_every_round_is_proven(book, round, site, weight):
    found = check(prove(book, round=round, site=site), SERVER.public)
    assert not found.findings
    assert (found.run, found.round, found.site, found.weight) == ("small-7", round, site, weight)
    assert set(found.witnesses) == set(SITES)
    assert "seed" in found.keys


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_found(proof, data):
    bit = data.draw(st.integers(0, 8 * len(proof) - 1))
    bent = proof[: bit // 8] + bytes([proof[bit // 8] ^ 1 << bit % 8]) + proof[bit // 8 + 1 :]
    assert names(bent)


def test_many_bytes_spoilt_are_a_finding_and_no_traceback(proof):
    rng = random.Random(0)
    for _ in range(300):
        spoilt = bytearray(proof)
        for _ in range(rng.choice([1, 3, 30])):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        assert bytes(spoilt) == proof or names(bytes(spoilt))
    for size in range(0, len(proof), 37):
        assert names(proof[:size]) == {DAMAGED}


def test_another_claim_than_the_entry_has_no_ground(proof):
    assert names(changed(proof, weight=0.9)) == {OTHER_CLAIM}
    assert names(changed(proof, weight=None)) == {OTHER_CLAIM}
    assert names(changed(proof, weight="0.2")) == {OTHER_CLAIM}
    assert names(changed(proof, site="c")) == {OTHER_CLAIM}
    assert names(changed(proof, site="nobody", weight=None)) == {OTHER_CLAIM}
    assert names(changed(proof, round=5)) == {OTHER_CLAIM}
    assert names(changed(proof, run="other")) == {OTHER_CLAIM}
    assert names(changed(proof, site=["b"])) == {DAMAGED}


def test_another_entry_does_not_lead_to_the_root(proof, book):
    other = json.loads(prove(book, round=5, site="b"))
    assert names(changed(proof, entry={**json.loads(proof)["entry"], "said": other["entry"]["said"]})) == {NOT_INCLUDED}
    assert NOT_INCLUDED in names(
        changed(proof, opening=other["entry"] | {"said": json.loads(proof)["opening"]["said"]})
    )


def test_keys_and_signatures_must_be_the_right_ones(proof):
    assert names(proof, Identity.new().public) == {FORGED_HEAD}
    head = json.loads(proof)["head"]
    swapped = {**head["witnesses"], "a": head["witnesses"]["b"]}
    assert names(changed(proof, head={**head, "witnesses": swapped})) == {FORGED_WITNESS}
    assert names(changed(proof, head={**head, "witnesses": {"d": head["witnesses"]["b"]}})) == {STRANGER}


@pytest.mark.parametrize("data", [b"", b"{}\n", b"[]\n", b"null\n", b"7\n", b'{"schema":1}\n', b"\xff\n"])
def test_what_is_no_proof_is_said_to_be_none(data):
    assert names(data) == {DAMAGED}


@pytest.mark.parametrize("part", ["opening", "entry", "head", "round", "run"])
@pytest.mark.parametrize("value", [None, 3, [], {}, "text", {"said": 1, "path": []}, {"said": {}, "path": [1]}])
def test_any_part_of_another_kind_is_a_finding(proof, part, value):
    assert names(changed(proof, **{part: value}))


def test_what_cannot_be_proven_is_refused_in_words(book):
    with pytest.raises(BadInput, match="has no round 9; it has rounds 1 to 6"):
        prove(book, round=9, site="a")
    assert parties(book, 3) == ["a", "b", "c"]
