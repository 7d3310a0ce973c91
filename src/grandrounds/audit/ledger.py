"""The ledger as a file: SQLite in which rows can be added and never changed or taken away.

Triggers refuse what a mistake might do; who rewrites the file itself is found by `verify`. Every append is one transaction,
synced before it counts, that holds the entries and the signed head over them; BEGIN IMMEDIATE makes a second writer wait.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.audit.book import Book
from grandrounds.audit.entry import NOTHING, Entry
from grandrounds.audit.head import Head, SignedHead, longest
from grandrounds.audit.merkle import Tree
from grandrounds.errors import BadInput
from grandrounds.identity import PUBLIC_BYTES, Identity

if TYPE_CHECKING:
    from grandrounds.audit.verify import Finding

WAIT = 30.0
"""Seconds that a writer waits for another."""

_TABLES = {
    "entries": "number INTEGER PRIMARY KEY, body BLOB NOT NULL, signature BLOB NOT NULL",
    "heads": "size INTEGER PRIMARY KEY, run TEXT NOT NULL, root BLOB NOT NULL, signature BLOB NOT NULL",
    "witnesses": "size INTEGER NOT NULL, site TEXT NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (size, site)",
}
_NEXT = {
    "entries": "NEW.number != (SELECT COALESCE(MAX(number), -1) + 1 FROM entries)",
    "heads": "NEW.size <= (SELECT COALESCE(MAX(size), -1) FROM heads)",
    "witnesses": "EXISTS (SELECT 1 FROM witnesses WHERE size = NEW.size AND site = NEW.site)",
}
"""Rows that would not be new: INSERT OR REPLACE must not do what UPDATE may not."""


class Ledger:
    """An open ledger. Without an identity it can be read and checked, with one it can be added to."""

    def __init__(self, path: Path, database: sqlite3.Connection, identity: Identity | None) -> None:
        self.path, self._database, self._identity = path, database, identity
        self._tree = Tree()
        self._last = NOTHING

    @classmethod
    def open(cls, path: str | Path, *, identity: Identity | None = None) -> Ledger:
        """A ledger for reading; with the server's `identity` for adding to, made where there is none yet."""
        path = Path(path)
        if identity is None and not path.exists():
            raise BadInput(f"there is no ledger at {path}: the run was made without one, or by an earlier version")
        try:
            database = _reading(path) if identity is None else _writing(path)
        except (sqlite3.Error, UnicodeDecodeError) as e:  # a damaged file can make SQLite quote it
            raise BadInput(f"{path} cannot be opened as a ledger: {e}") from None
        return cls(path, database, identity)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._reads():
            return int(self._database.execute("SELECT COUNT(*) FROM entries").fetchone()[0])

    def book(self) -> Book:
        """All that it holds."""
        with self._reads():
            entries = self._database.execute("SELECT number, body, signature FROM entries ORDER BY number").fetchall()
            heads = self._database.execute("SELECT size, run, root, signature FROM heads ORDER BY size").fetchall()
            witnesses: dict[int, dict[str, bytes]] = {}
            for size, site, signature in self._database.execute("SELECT size, site, signature FROM witnesses"):
                witnesses.setdefault(int(size), {})[str(site)] = _blob(signature)
            return Book(
                tuple(Entry(_blob(body), _blob(signature)) for _, body, signature in entries),
                tuple(
                    SignedHead(Head(str(run), int(size), _blob(root)), _blob(signature), witnesses.pop(int(size), {}))
                    for size, run, root, signature in heads
                ),
                places=tuple(int(number) for number, _, _ in entries),
                strays=tuple((size, site) for size, sites in witnesses.items() for site in sites),
            )

    def entries(self) -> Iterator[dict[str, Any]]:
        """What each entry says, from the first on."""
        for entry in self.book().entries:
            yield entry.said

    def last(self) -> dict[str, Any] | None:
        """What the newest entry says."""
        with self._reads():
            row = self._database.execute("SELECT body, signature FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        return None if row is None else Entry(_blob(row[0]), _blob(row[1])).said

    def head(self) -> SignedHead | None:
        """The newest signed head."""
        return longest(self.book().heads)

    def tree(self) -> Tree:
        """The tree over all entries, as they are in the file now."""
        self._catch_up()
        return self._tree

    def append(self, run: str, *said: Mapping[str, Any], witnessed: SignedHead | None = None) -> SignedHead:
        """Add entries and the signed head over all, in one durable step; gives the head.

        `witnessed`: an earlier head whose countersignatures are written in the same step.
        """
        if self._identity is None:
            raise BadInput(f"{self.path} was opened for reading: adding to it takes the server's key")
        with self._writes():
            self._catch_up()
            for value in said:
                self._add(Entry.signed(value, number=len(self._tree), previous=self._last, identity=self._identity))
            head = Head(run, len(self._tree), self._tree.root())
            signed = SignedHead(head, head.sign(self._identity))
            row = (head.size, run, head.root, signed.signature)
            self._database.execute("INSERT INTO heads (size, run, root, signature) VALUES (?, ?, ?, ?)", row)
            if witnessed is not None:
                self._countersigned(witnessed)
        return signed

    def countersigned(self, head: SignedHead) -> None:
        """Write down the countersignatures of a head."""
        with self._writes():
            self._countersigned(head)

    def verify(self, key: bytes | None = None, *, heads: Sequence[SignedHead] = ()) -> list[Finding]:
        """What is wrong with it, by name; nothing where it verifies. `heads`: those that others kept."""
        from grandrounds.audit.verify import UNREADABLE, Finding, verify

        if key is not None and not (isinstance(key, bytes) and len(key) == PUBLIC_BYTES):
            raise BadInput(
                "a ledger is verified with the 32 bytes of a public key: `identity.load_public(path)` reads them"
            )
        try:
            book = self.book()
        except BadInput as e:
            return [Finding(UNREADABLE, self.path.name, str(e))]
        return verify(book, key, heads=heads)

    def _add(self, entry: Entry) -> None:
        self._database.execute(
            "INSERT INTO entries (number, body, signature) VALUES (?, ?, ?)",
            (len(self._tree), entry.body, entry.signature),
        )
        self._tree.append(entry.leaf)
        self._last = entry.hash

    def _countersigned(self, head: SignedHead) -> None:
        self._database.executemany(
            "INSERT INTO witnesses (size, site, signature) SELECT ?1, ?2, ?3"
            " WHERE NOT EXISTS (SELECT 1 FROM witnesses WHERE size = ?1 AND site = ?2)",
            [(head.head.size, site, signature) for site, signature in head.witnesses.items()],
        )

    def _catch_up(self) -> None:
        """Read what is there beyond what is known: written before, or by another process meanwhile."""
        with self._reads():
            query = "SELECT body, signature FROM entries WHERE number >= ? ORDER BY number"
            for body, signature in self._database.execute(query, (len(self._tree),)):
                entry = Entry(_blob(body), _blob(signature))
                self._tree.append(entry.leaf)
                self._last = entry.hash

    @contextmanager
    def _reads(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, OverflowError) as e:
            raise BadInput(f"{self.path} cannot be read as a ledger: {e}") from None

    @contextmanager
    def _writes(self) -> Iterator[None]:
        """One transaction, whole or not at all; a full disk is an OSError, as for any file."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException as e:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._tree, self._last = Tree(), NOTHING  # as it was is read again when it is needed
            if isinstance(e, (sqlite3.DatabaseError, UnicodeDecodeError)):
                raise _as_trouble(self.path, e) from None
            raise


def _reading(path: Path) -> sqlite3.Connection:
    """For reading alone. A file that nobody is writing is opened as unchanging, so that its folder may be read-only."""
    log = path.with_name(f"{path.name}-wal")
    still = "" if log.exists() and log.stat().st_size else "&immutable=1"
    return _wary(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{still}", uri=True, isolation_level=None))


def _wary(database: sqlite3.Connection) -> sqlite3.Connection:
    """What SQLite advises for files that may be damaged or forged: check cells, trust no schema, map no memory."""
    for setting in ("cell_size_check = ON", "trusted_schema = OFF", "mmap_size = 0"):
        database.execute(f"PRAGMA {setting}")
    return database


def _writing(path: Path) -> sqlite3.Connection:
    database = _wary(sqlite3.connect(path, timeout=WAIT, isolation_level=None))
    try:
        _prepare(database)
    except BaseException:
        database.close()  # nothing of a file that is given up stays open
        raise
    return database


def _prepare(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("BEGIN IMMEDIATE")
    for table, columns in _TABLES.items():
        database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        for verb in ("UPDATE", "DELETE"):
            database.execute(
                f"CREATE TRIGGER IF NOT EXISTS {table}_{verb} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END"
            )
        database.execute(
            f"CREATE TRIGGER IF NOT EXISTS {table}_next BEFORE INSERT ON {table} WHEN {_NEXT[table]} "
            f"BEGIN SELECT RAISE(ABORT, 'a ledger is only added to, in order'); END"
        )
    database.execute("COMMIT")


def _blob(value: Any) -> bytes:
    """The bytes of a cell; one that holds something else is what nobody signed."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def _as_trouble(path: Path, e: sqlite3.DatabaseError | UnicodeDecodeError) -> Exception:
    code = getattr(e, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BadInput(f"{path} is being written by another process: wait for it, or stop it")
    if not isinstance(e, sqlite3.OperationalError):
        return BadInput(f"{path} is damaged ({e}): rounds audit verify says what is wrong with it")
    return OSError(errno.EIO, f"{path.name}: {e}")
