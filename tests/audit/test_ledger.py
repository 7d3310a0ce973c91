"""The ledger as a file: append-only for honest code, whole after any crash, one writer at a time."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from grandrounds.audit.book import Book
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.merkle import Tree, leaf_hash
from grandrounds.core.errors import BadInput
from tests.audit.ledgers import RUN, SERVER, SITES, found, made, of_round, opening
from tests.support import refused

WRITER = """
import sys
from grandrounds.audit.ledger import Ledger
from tests.audit.ledgers import RUN, SERVER, of_round
with Ledger.open(sys.argv[1], identity=SERVER) as ledger:
    for n in range(int(sys.argv[2])):
        ledger.append(RUN, {"kind": "round", "run": RUN, "round": n, "writer": sys.argv[3]})
"""


def test_a_ledger_holds_what_was_said_in_order(tmp_path):
    path = made(tmp_path / "l.db", rounds=3)
    with Ledger.open(path) as ledger:
        said = list(ledger.entries())
        head = ledger.head()
        assert len(ledger) == 4
        assert ledger.last() == said[-1]
    assert [s["number"] for s in said] == [0, 1, 2, 3]
    assert [s["kind"] for s in said] == ["open", "round", "round", "round"]
    assert said[2]["decision"] == of_round(2)["decision"]
    assert said[2]["decision"]["cost"] == {"bytes_up": 512.0}  # how long it took says something about the machine only
    assert head is not None and head.head.size == 4 and set(head.witnesses) == set(SITES)
    assert found(path) == []


def test_the_root_is_that_of_the_entries_bytes(tmp_path):
    path = made(tmp_path / "l.db", rounds=3)
    rows = sqlite3.connect(path).execute("SELECT body FROM entries ORDER BY number").fetchall()
    with Ledger.open(path) as ledger:
        assert ledger.head().head.root == Tree(leaf_hash(body) for (body,) in rows).root() == ledger.tree().root()


def test_equal_entries_make_equal_ledgers(tmp_path):
    """Signatures are deterministic and no time is in it: what a crash lost is written again to the bit."""
    books = [Ledger.open(made(tmp_path / name)).book() for name in ("a.db", "b.db")]
    assert books[0] == books[1]


def test_a_batch_is_the_same_ledger_with_fewer_heads(tmp_path):
    with Ledger.open(tmp_path / "batch.db", identity=SERVER) as ledger:
        ledger.append(RUN, opening(), *(of_round(n) for n in range(1, 7)))
        book = ledger.book()
    single = Ledger.open(made(tmp_path / "single.db")).book()
    assert book.entries == single.entries and len(book.heads) == 1
    assert book.heads[0].head == single.heads[-1].head


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = x'00' WHERE number = 1",
        "DELETE FROM entries WHERE number = 6",
        "INSERT OR REPLACE INTO entries VALUES (1, x'00', x'00')",
        "INSERT INTO entries VALUES (9, x'00', x'00')",
        "UPDATE heads SET root = x'00'",
        "DELETE FROM heads",
        "INSERT OR REPLACE INTO heads VALUES (3, 'x', x'00', x'00')",
        "UPDATE witnesses SET signature = x'00'",
        "DELETE FROM witnesses WHERE site = 'a'",
        "INSERT OR REPLACE INTO witnesses VALUES (2, 'a', x'00')",
    ],
)
def test_what_is_written_cannot_be_unwritten_by_sql(tmp_path, statement):
    path = made(tmp_path / "l.db")
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="only added to"):
        database.execute(statement)
    database.close()
    assert found(path) == []


def test_a_reader_cannot_add(tmp_path):
    path = made(tmp_path / "l.db")
    with Ledger.open(path) as ledger, refused("read-only-ledger"):
        ledger.append(RUN, of_round(7))
    with refused("no-ledger"):
        Ledger.open(tmp_path / "none.db")


def test_a_ledger_in_a_read_only_folder_can_be_read(tmp_path):
    folder = tmp_path / "shelf"
    folder.mkdir()
    path = made(folder / "l.db")
    folder.chmod(0o500)
    try:
        assert found(path) == []
        assert [p.name for p in folder.iterdir()] == ["l.db"]
    finally:
        folder.chmod(0o700)


def test_an_entry_that_is_no_json_leaves_the_ledger_as_it_was(tmp_path):
    path = made(tmp_path / "l.db", rounds=2)
    with Ledger.open(path, identity=SERVER) as ledger:
        with refused("not-canonical"):
            ledger.append(RUN, of_round(3), of_round(4, why=float("nan")))
        assert len(ledger) == 3
        head = ledger.append(RUN, of_round(3))
        ledger.add_countersignatures(head.with_witnesses({s: head.head.countersign(one) for s, one in SITES.items()}))
    assert found(path) == []


def test_two_processes_write_one_chain(tmp_path):
    """Two real writers at once: every entry is there, once, and the chain holds."""
    path = tmp_path / "l.db"
    Ledger.open(path, identity=SERVER).close()
    commands = [[sys.executable, "-c", WRITER, str(path), "40", who] for who in ("one", "two")]
    writers = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for c in commands]
    for writer in writers:
        _, error = writer.communicate()
        assert writer.returncode == 0, error
    with Ledger.open(path) as ledger:
        book, said = ledger.book(), list(ledger.entries())
    assert sorted((s["writer"], s["round"]) for s in said) == [(w, n) for w in ("one", "two") for n in range(40)]
    assert [s["number"] for s in said] == list(range(80))
    hashes = ["0" * 64, *(e.hash for e in book.entries)]
    assert [s["previous"] for s in said] == hashes[:-1]
    tree = Tree(e.leaf for e in book.entries)
    assert all(h.head.root == tree.root(h.head.size) for h in book.heads)


def test_a_writer_that_is_kept_waiting_says_so(tmp_path, monkeypatch):
    path = made(tmp_path / "l.db", rounds=1)
    monkeypatch.setattr("grandrounds.audit.ledger.WAIT", 0.05)
    with Ledger.open(path, identity=SERVER) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with refused("ledger-in-use"):
            ledger.append(RUN, of_round(2))
        other.execute("ROLLBACK")
        ledger.append(RUN, of_round(2))
        assert len(ledger) == 3


def test_a_writer_killed_at_any_instant_leaves_whole_entries(tmp_path):
    path = tmp_path / "l.db"
    for wait in (0.0, 0.01, 0.03):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "100000", "x"])
        before, deadline = len(Ledger.open(path)) if path.exists() else 0, time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                if len(Ledger.open(path)) > before + 3:
                    break
            except BadInput:
                pass
            time.sleep(0.002)
        time.sleep(wait)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        with Ledger.open(path) as ledger:
            book = ledger.book()
        assert len(book.entries) > before
        assert book.heads[-1].head.size == len(book.entries)
        assert book.heads[-1].head.root == Tree(e.leaf for e in book.entries).root()


def test_an_export_is_the_same_book(tmp_path):
    with Ledger.open(made(tmp_path / "l.db")) as ledger:
        book = ledger.book()
    lines = list(book.lines())
    assert len(lines) == 7 + 7
    assert Book.from_lines(lines) == book
    with refused("not-json", match="line 2"):
        Book.from_lines([lines[0], b"{"])
    with refused("bad-tree-head", match="line 1"):
        Book.from_lines([b"{}"])
