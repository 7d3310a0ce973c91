"""Whatever is done to a ledger is found, and called by its name."""

from __future__ import annotations

import random
import shutil
import sqlite3
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.audit import verify as names
from grandrounds.audit.book import Book
from grandrounds.audit.canonical import canonical
from grandrounds.audit.entry import Entry
from grandrounds.audit.head import Head, SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verify import verify
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity
from tests.audit.ledgers import RUN, SERVER, SITES, found, made, of_round, opening, tampered
from tests.support import slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Book:
    with Ledger.open(made(tmp_path_factory.mktemp("whole") / "l.db")) as ledger:
        return ledger.book()


def with_entries(book: Book, entries) -> Book:
    return replace(book, entries=tuple(entries), places=tuple(range(len(entries))))


def named(book: Book, key: bytes = SERVER.public, **options) -> set[str]:
    return {f.name for f in verify(book, key, **options)}


def forged(said: dict, key: Identity = SERVER, **place) -> Entry:
    return Entry.sign(
        {k: v for k, v in said.items() if k not in ("schema", "number", "previous")}, identity=key, **place
    )


def resigned(rounds: int = 6, said=of_round) -> Book:
    """A whole other history, which the server signs as well and no site has seen."""
    entries: list[Entry] = []
    for number, value in enumerate((opening(), *(said(n) for n in range(1, rounds + 1)))):
        entries.append(forged(value, number=number, previous=entries[-1].hash if entries else "0" * 64))
    head = Head(RUN, len(entries), Tree(e.leaf for e in entries).root())
    return Book(tuple(entries), (SignedHead(head, head.sign(SERVER)),), tuple(range(len(entries))))


def test_a_whole_ledger_has_nothing_wrong(whole):
    assert verify(whole, SERVER.public) == []
    assert verify(whole) == []
    assert verify(whole, SERVER.public, heads=whole.heads) == []


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_found(whole, data):
    """Of any cell: text, signature, place, root, countersignature."""
    kind = data.draw(st.sampled_from(["body", "signature", "place", "root", "size", "head signature", "witness"]))

    def flip(cell: bytes) -> bytes:
        bit = data.draw(st.integers(0, 8 * len(cell) - 1))
        return cell[: bit // 8] + bytes([cell[bit // 8] ^ 1 << bit % 8]) + cell[bit // 8 + 1 :]

    at = data.draw(st.integers(0, len(whole.entries) - 1))
    entries, heads, places = list(whole.entries), list(whole.heads), list(whole.places)
    head = heads[at]
    if kind == "body":
        entries[at] = Entry(flip(entries[at].body), entries[at].signature)
        wanted = {names.CHANGED}
    elif kind == "signature":
        entries[at] = Entry(entries[at].body, flip(entries[at].signature))
        wanted = {names.FORGED}
    elif kind == "place":
        places[at] ^= 1 << data.draw(st.integers(0, 40))
        wanted = {names.MISFILED}
    elif kind == "root":
        heads[at] = replace(head, head=replace(head.head, root=flip(head.head.root)))
        wanted = {names.FORGED_HEAD}
    elif kind == "size":
        heads[at] = replace(head, head=replace(head.head, size=head.head.size ^ 1 << data.draw(st.integers(0, 40))))
        wanted = {names.FORGED_HEAD}
    elif kind == "head signature":
        heads[at] = replace(head, signature=flip(head.signature))
        wanted = {names.FORGED_HEAD}
    else:
        site = data.draw(st.sampled_from(sorted(SITES)))
        heads[at] = head.with_witnesses({site: flip(head.witnesses[site])})
        wanted = {names.FORGED_WITNESS}
    assert wanted <= named(Book(tuple(entries), tuple(heads), tuple(places)))


@given(data=st.data())
def test_a_removed_entry_is_named(whole, data):
    at = data.draw(st.integers(0, len(whole.entries) - 2))
    left = with_entries(whole, [e for n, e in enumerate(whole.entries) if n != at])
    said = {(f.name, f.where) for f in verify(left, SERVER.public)}
    if at:
        assert (names.REMOVED, f"entry {at}") in said
    else:  # the keys went with it
        assert names.CHANGED in {name for name, _ in said}
    assert {names.TRUNCATED, names.FORKED} & {name for name, _ in said} or at == 0


@given(data=st.data())
def test_a_duplicated_entry_is_named(whole, data):
    at = data.draw(st.integers(1, len(whole.entries) - 1))
    to = data.draw(st.integers(1, len(whole.entries)))
    entries = [*whole.entries[:to], whole.entries[at], *whole.entries[to:]]
    assert (names.DUPLICATED, f"entry {at}") in {
        (f.name, f.where) for f in verify(with_entries(whole, entries), SERVER.public)
    }


@given(data=st.data())
def test_reordered_entries_are_named(whole, data):
    order = data.draw(st.permutations(range(1, len(whole.entries))).filter(lambda o: o != sorted(o)))
    entries = [whole.entries[0], *(whole.entries[n] for n in order)]
    assert {names.REORDERED, names.BROKEN} <= named(with_entries(whole, entries))


@pytest.mark.parametrize("left", [1, 3, 6])
def test_a_ledger_cut_at_its_end_is_found_by_a_longer_head(whole, left):
    """Cut with its heads it is a whole shorter ledger: only who kept a head can tell."""
    cut = with_entries(whole, whole.entries[:left])
    assert names.TRUNCATED in named(cut)
    clean = replace(cut, heads=whole.heads[:left])
    assert named(clean) == set()
    assert named(clean, heads=[whole.heads[-1]]) == {names.TRUNCATED}
    (finding,) = verify(clean, SERVER.public, heads=[whole.heads[-1]])
    assert finding.what == f"the ledger has {left} entries, but a head over 7 was signed and countersigned by 3 sites"
    assert named(replace(whole, entries=(), places=())) == {names.TRUNCATED}
    assert named(Book((), ())) == {names.EMPTY}


def test_heads_taken_away_leave_entries_that_nobody_vouches_for(whole):
    assert names.UNCOVERED in named(replace(whole, heads=whole.heads[:-1]))
    assert names.UNCOVERED in named(replace(whole, heads=()))


def test_a_wrong_key_is_one_finding(whole):
    (finding,) = verify(whole, Identity.new().public)
    assert finding.name == names.WRONG_KEY and SERVER.public.hex()[:16] in finding.what


def test_entries_signed_by_somebody_else_are_forged(whole):
    thief = Identity.new()
    said = whole.entries[3].content
    mine = forged(said, thief, number=3, previous=said["previous"])
    assert named(with_entries(whole, [*whole.entries[:3], mine, *whole.entries[4:]])) == {names.FORGED}
    other = forged({**said, "model": "ff" * 32}, thief, number=3, previous=said["previous"])
    assert {names.CHANGED, names.BROKEN, names.FORKED} <= named(
        with_entries(whole, [*whole.entries[:3], other, *whole.entries[4:]])
    )


def test_a_rewritten_history_is_a_fork_for_who_kept_a_head(whole):
    """The server itself signs another past: by itself it is whole, against any head that a site kept it is not."""
    other = resigned(said=lambda n: of_round(n, why="another reason") if n == 4 else of_round(n))
    assert named(other) == set()
    for head in whole.heads[4:]:
        assert names.FORKED in named(other, heads=[head])
    assert named(other, heads=whole.heads[:4]) == set()  # the histories part only after round 3


def test_two_heads_of_one_size_are_a_fork(whole):
    head = Head(RUN, 7, b"\x01" * 32)
    assert names.FORKED in named(whole, heads=[SignedHead(head, head.sign(SERVER))])
    assert names.FORGED_HEAD in named(whole, heads=[SignedHead(head, head.sign(Identity.new()))])


def test_a_head_of_another_run_is_named(whole):
    head = replace(whole.heads[-1].head, run="other-7")
    assert names.OTHER_RUN in named(whole, heads=[SignedHead(head, head.sign(SERVER))])
    mixed = [forged({**of_round(1), "run": "other-7"}, number=1, previous=whole.entries[0].hash)]
    assert names.OTHER_RUN in named(with_entries(whole, [whole.entries[0], *mixed]))


def test_countersignatures_are_of_known_sites_and_all_there(whole):
    last = whole.heads[-1]
    stranger = last.with_witnesses({"d": last.head.countersign(Identity.simulated(7, "d"))})
    assert named(replace(whole, heads=(*whole.heads[:-1], stranger))) == {names.STRANGER}
    swapped = last.with_witnesses({"a": last.witnesses["b"], "b": last.witnesses["a"]})
    assert named(replace(whole, heads=(*whole.heads[:-1], swapped))) == {names.FORGED_WITNESS}
    server = last.with_witnesses({"a": last.signature})
    assert named(replace(whole, heads=(*whole.heads[:-1], server))) == {names.FORGED_WITNESS}
    silent = replace(whole.heads[2], witnesses={})
    assert named(replace(whole, heads=(*whole.heads[:2], silent, *whole.heads[3:]))) == {names.NO_WITNESS}


@pytest.mark.parametrize("absent", [2, 3])
def test_a_site_that_a_round_beside_the_head_records_as_missing_need_not_countersign_it(absent):
    """It was not there. A site that no round misses must have signed."""

    def said(number: int) -> dict:
        value = of_round(number)
        gone = {"b": "was away"} if number == absent else {}
        return {**value, "decision": {**value["decision"], "missing": gone}}

    book = resigned(4, said)
    heads = [Head(RUN, n, Tree(e.leaf for e in book.entries[:n]).root()) for n in range(1, 6)]
    signed = [SignedHead(h, h.sign(SERVER), {s: h.countersign(Identity.simulated(7, s)) for s in SITES}) for h in heads]
    assert named(replace(book, heads=tuple(signed))) == set()
    for site, findings in (("b", set()), ("a", {names.NO_WITNESS})):
        left = {s: w for s, w in signed[2].witnesses.items() if s != site}  # after round 2
        assert named(replace(book, heads=(*signed[:2], replace(signed[2], witnesses=left), *signed[3:]))) == findings, site


def test_a_round_left_out_and_signed_over_is_named():
    said = {1: 1, 2: 2, 3: 4, 4: 5}
    assert names.GAP in named(resigned(4, said=lambda n: of_round(said[n])))


def test_an_entry_of_unknown_kind_or_form_is_named(whole):
    odd = forged({"kind": "surprise", "run": RUN}, number=7, previous=whole.entries[-1].hash)
    assert names.MALFORMED in named(with_entries(whole, [*whole.entries, odd]))
    body = canonical({"schema": 99})
    assert names.CHANGED in named(with_entries(whole, [*whole.entries, Entry(body, b"\x00" * 64)]))


@pytest.mark.parametrize(
    ("statements", "name"),
    [
        (["DELETE FROM entries WHERE number = 3"], names.REMOVED),
        (
            ["DELETE FROM entries WHERE number = 3", "UPDATE entries SET number = number - 1 WHERE number > 3"],
            names.REMOVED,
        ),
        (["DELETE FROM entries WHERE number = 6"], names.TRUNCATED),
        (["INSERT INTO entries SELECT 7, body, signature FROM entries WHERE number = 2"], names.DUPLICATED),
        (["UPDATE entries SET number = 99 WHERE number = 6"], names.MISFILED),
        (["UPDATE entries SET number = -1 WHERE number = 6"], names.CHANGED),
        (["UPDATE entries SET number = 50 WHERE number = 4"], names.REORDERED),
        (["UPDATE entries SET body = 7 WHERE number = 4"], names.CHANGED),
        (["UPDATE entries SET body = 'text' WHERE number = 4"], names.CHANGED),
        (["UPDATE entries SET signature = x'' WHERE number = 4"], names.FORGED),
        (["UPDATE heads SET run = 'x' WHERE size = 3"], names.FORGED_HEAD),
        (["UPDATE heads SET size = 30 WHERE size = 3"], names.FORGED_HEAD),
        (["DELETE FROM heads WHERE size = 7"], names.UNCOVERED),
        (["UPDATE witnesses SET site = 'x' WHERE site = 'a'"], names.STRANGER),
        (["UPDATE witnesses SET size = 30 WHERE size = 3 AND site = 'a'"], names.STRANGER),
        (["DELETE FROM witnesses WHERE size = 3 AND site = 'a'"], names.NO_WITNESS),
        (["UPDATE witnesses SET signature = 'x' WHERE size = 3 AND site = 'a'"], names.FORGED_WITNESS),
        (["DROP TABLE witnesses"], names.UNREADABLE),
        (["ALTER TABLE heads RENAME COLUMN root TO stem"], names.UNREADABLE),
        (["UPDATE heads SET size = 'many'"], names.UNREADABLE),
    ],
)
def test_a_rewritten_file_is_found_out(tmp_path, statements, name):
    path = made(tmp_path / "l.db")
    try:
        tampered(path, *statements)
    except sqlite3.IntegrityError:  # a whole-number key takes no text: SQLite itself refuses
        assert name == names.UNREADABLE
        return
    assert name in found(path)


@pytest.mark.parametrize("tries", [100, slow(400)])
def test_random_bytes_of_the_file_flipped_are_a_finding_or_no_matter(tries, tmp_path):
    """Never a traceback; and where nothing is found, all that the ledger says is as it was."""
    path = made(tmp_path / "l.db")
    with Ledger.open(path) as ledger:
        truth = ledger.book()
    data, rng, caught = path.read_bytes(), random.Random(0), 0
    for _ in range(tries):
        spoilt = bytearray(data)
        for _ in range(rng.choice([1, 1, 4, 64])):
            spoilt[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        broken = tmp_path / "broken.db"
        broken.write_bytes(bytes(spoilt))
        try:
            with Ledger.open(broken) as ledger:
                findings = ledger.verify(SERVER.public)
                same = not findings and ledger.book() == truth
        except BadInput:
            findings, same = ["refused"], False
        assert findings or same
        caught += bool(findings)
    assert caught > tries / 2


def test_half_a_file_is_unreadable(tmp_path):
    path = made(tmp_path / "l.db")
    data = path.read_bytes()
    for size in (0, 10, 100, 5000, len(data) // 2):
        path.write_bytes(data[:size])
        try:
            assert found(path)
        except BadInput as e:
            assert "ledger" in str(e)
    shutil.copy(__file__, path)
    assert found(path) == [names.UNREADABLE]
