"""A proof needs nothing but itself and a public key, and nothing in it can be bent."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.audit.canonical import canonical
from grandrounds.audit.head import Head, SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.member import describe_parts
from grandrounds.audit.proof import DAMAGED, NOT_INCLUDED, OTHER_CLAIM, check, provable_sites, prove
from grandrounds.audit.verify import FORGED_HEAD, FORGED_WITNESS, FORKED, STRANGER
from grandrounds.protocol.identity import Identity
from tests.audit.ledgers import RUN, SERVER, SITES, made, of_round
from tests.support import refused


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


def claims(proof: bytes, **values) -> bytes:
    """Other words about the first round that a proof shows."""
    first, *others = json.loads(proof)["rounds"]
    return changed(proof, rounds=[{**first, **values}, *others])


@pytest.mark.parametrize(("site", "weight", "rows"), [("a", 0.1, 10), ("b", 0.2, 20), ("c", 0.7, 70)])
def test_every_weight_of_every_round_is_proven(book, site, weight, rows):
    whole = check(prove(book, site=site), SERVER.public)
    assert not whole.findings
    assert (whole.run, whole.site) == ("small-7", site)
    assert [part.round for part in whole.rounds] == [1, 2, 3, 4, 5, 6]
    for part in whole.rounds:
        assert (part.weight, part.numbers, part.why) == (weight, {"data_size": rows}, "by rows")
        assert list(part.notes) == (["b: is late again"] if site == "b" else [])
        one = check(prove(book, round=part.round, site=site), SERVER.public)
        assert not one.findings and one.rounds == (part,)
    assert set(whole.witnesses) == set(SITES) and whole.signed == 7
    assert "seed" in whole.keys


def test_the_key_that_the_ledger_names_will_do_and_a_trusted_one_is_better(proof):
    """A forger's own ledger holds by the forger's own key."""
    assert not check(proof).findings
    assert names(proof, Identity.new().public) == {FORGED_HEAD}


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
    for other in ({"weight": 0.9}, {"weight": None}, {"weight": "0.2"}, {"round": 5}, {"why": "by trust"}):
        assert names(claims(proof, **other)) == {OTHER_CLAIM}, other
    for other in ({"numbers": {"data_size": 21}}, {"numbers": {}}, {"absent": "left"}, {"notes": []}, {"more": 1}):
        assert names(claims(proof, **other)) == {OTHER_CLAIM}, other
    assert names(changed(proof, site="c")) == {OTHER_CLAIM}
    assert names(changed(proof, site="nobody")) == {OTHER_CLAIM}
    assert names(changed(proof, run="other")) == {OTHER_CLAIM}
    assert names(changed(proof, site=["b"])) == {DAMAGED}
    assert names(changed(proof, rounds=[])) == {DAMAGED}


def test_rounds_are_in_their_order_and_each_is_there_once(book):
    whole = prove(book, site="b")
    first, second, *others = json.loads(whole)["rounds"]
    assert names(changed(whole, rounds=[second, first, *others])) == {OTHER_CLAIM}
    assert names(changed(whole, rounds=[first, first])) == {OTHER_CLAIM}
    assert names(changed(whole, rounds=[{**first, "entry": json.loads(whole)["opening"]}])) == {OTHER_CLAIM}


def test_another_entry_does_not_lead_to_the_root(proof, book):
    [held], [other] = (json.loads(p)["rounds"] for p in (proof, prove(book, round=5, site="b")))
    moved = {**held["entry"], "said": other["entry"]["said"]}
    assert names(claims(proof, entry=moved)) == {NOT_INCLUDED}
    opening = other["entry"] | {"said": json.loads(proof)["opening"]["said"]}
    assert NOT_INCLUDED in names(changed(proof, opening=opening))


@pytest.mark.parametrize("where", ["weights", "signals", "why", "asked"])
def test_an_entry_that_was_changed_does_not_lead_to_the_root_whatever_the_claim(proof, where):
    """The forger changes the entry, and the claim to match."""
    [held] = json.loads(proof)["rounds"]
    said = held["entry"]["said"]
    other = {"weights": {"b": 0.9}, "signals": {}, "why": "it pleased us", "asked": ["b"]}
    said = {**said, "decision": {**said["decision"], where: other[where]}}
    assert names(claims(proof, weight=0.9, entry={**held["entry"], "said": said})) == {NOT_INCLUDED}


def test_keys_and_signatures_must_be_the_right_ones(proof):
    head = json.loads(proof)["head"]
    swapped = {**head["witnesses"], "a": head["witnesses"]["b"]}
    assert names(changed(proof, head={**head, "witnesses": swapped})) == {FORGED_WITNESS}
    assert names(changed(proof, head={**head, "witnesses": {"d": head["witnesses"]["b"]}})) == {STRANGER}


@pytest.mark.parametrize("data", [b"", b"{}\n", b"[]\n", b"null\n", b"7\n", b'{"schema":1}\n', b"\xff\n"])
def test_what_is_no_proof_is_said_to_be_none(data):
    assert names(data) == {DAMAGED}


@pytest.mark.parametrize("part", ["opening", "rounds", "head", "countersigned", "run"])
@pytest.mark.parametrize("value", [None, 3, [], {}, "text", {"said": 1, "path": []}, {"said": {}, "path": [1]}])
def test_any_part_of_another_kind_is_a_finding(proof, part, value):
    if (part, value) != ("countersigned", None):
        assert names(changed(proof, **{part: value}))
    if part == "rounds":
        assert names(claims(proof, entry=value))


def test_what_cannot_be_proven_is_refused_in_words(book):
    with refused("unknown-round", match="round 9.*rounds 1 to 6"):
        prove(book, round=9, site="a")
    with refused("unsigned-round"):
        prove(replace(book, heads=book.heads[:1]), site="a")
    assert provable_sites(book) == ["a", "b", "c"]


def test_a_round_without_a_weight_says_why(tmp_path):
    """c is not asked in the second round and drops out of the third."""

    def said(number: int) -> dict:
        weights = {"a": 0.25, "b": 0.75}
        away = [{}, {"weights": weights, "asked": ["a", "b"]}, {"weights": weights, "missing": {"c": "dropped out"}}]
        return of_round(number, **away[number - 1])

    with Ledger.open(made(tmp_path / "l.db", rounds=3, said=said)) as ledger:
        proof = prove(ledger.book(), site="c")
    found = check(proof, SERVER.public)
    assert not found.findings
    assert [(p.weight, p.absent) for p in found.rounds] == [(0.7, ""), (None, "was not asked"), (None, "dropped out")]
    lines = describe_parts(found.rounds)
    assert lines[0] == "round 1: weight 0.7; rows 70" and lines[1] == "  by rows"
    assert lines[2].startswith("round 2: no weight, because it was not asked")
    assert names(claims(proof, absent="was not asked")) == {OTHER_CLAIM}


@pytest.fixture(scope="module")
def sampled(book):
    """As where there are many sites: c was not drawn for the last three heads."""
    heads = [
        replace(h, witnesses={s: w for s, w in h.witnesses.items() if s != "c" or h.head.size <= 4}) for h in book.heads
    ]
    return replace(book, heads=tuple(heads))


def test_the_head_that_the_member_signed_is_there_where_it_did_not_sign_the_last(sampled):
    proof = prove(sampled, site="c")
    found = check(proof, SERVER.public)
    assert not found.findings and found.witnesses == ("a", "b") and found.signed == 4
    held = json.loads(proof)["countersigned"]
    assert set(held["head"]["witnesses"]) == {"c"}
    assert json.loads(prove(sampled, site="a"))["countersigned"] is None
    nobody = replace(sampled, heads=sampled.heads[4:])
    assert check(prove(nobody, site="c"), SERVER.public).signed == 0


def test_the_head_that_the_member_signed_must_be_its_own_and_the_beginning_of_the_rest(sampled, book):
    proof = prove(sampled, site="c")
    held = json.loads(proof)["countersigned"]

    def with_head(head: dict, path: list | None = None) -> set[str]:
        return names(changed(proof, countersigned={"head": head, "path": held["path"] if path is None else path}))

    own = held["head"]
    theirs = json.loads(prove(book, site="a"))["head"]["witnesses"]["a"]
    assert with_head({**own, "witnesses": {"c": theirs}}) == {FORGED_WITNESS}
    assert with_head({**own, "witnesses": {}}) == {OTHER_CLAIM}
    assert with_head({**own, "signature": theirs}) == {FORGED_HEAD}
    assert with_head(own, held["path"][:-1]) == {FORKED}
    fork = Head(RUN, 4, bytes(32))
    forked = SignedHead(fork, fork.sign(SERVER), {"c": fork.countersign(SITES["c"])})
    assert with_head(forked.to_dict()) == {FORKED}
    other = Head("other", 4, bytes.fromhex(own["head"]["root"]))
    stolen = SignedHead(other, other.sign(SERVER), {"c": other.countersign(SITES["c"])})
    assert with_head(stolen.to_dict()) == {OTHER_CLAIM}
