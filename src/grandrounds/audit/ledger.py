"""The ledger as an SQLite file to which rows can only be added.

Triggers refuse accidental changes; `verify` detects a rewritten file. Every append is one durable transaction with the
entries and the signed head over them; BEGIN IMMEDIATE makes a second writer wait.

The file may come from an untrusted party. Before a row is read, its schema must be exactly the one defined here: no view,
no virtual table, no other trigger or index. SQLite's limits are low, and a query ends after as many steps as a file of this
size can need.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.audit.book import Book
from grandrounds.audit.entry import NOTHING, Content, Entry
from grandrounds.audit.head import Head, SignedHead, longest
from grandrounds.audit.merkle import Tree
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import PUBLIC_BYTES, Identity

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
"""Rows that are not new: INSERT OR REPLACE must not bypass the ban on UPDATE."""

LARGEST = 2**31
"""Largest ledger, in bytes, that is read: 100 rounds of 10,000 sites take a fifth of that."""
_STEPS, _EVERY = 5_000_000, 10_000
"""Steps of SQLite's virtual machine that a query may take besides one for each byte of the file, and the interval between
checks.
"""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2**27,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 32,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 4,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 4,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


def _statements() -> Iterator[tuple[str, str, str]]:
    """Yield every object of a ledger's database: kind, name, and SQL."""
    for table, columns in _TABLES.items():
        yield "table", table, f"CREATE TABLE {table} ({columns})"
        for verb in ("UPDATE", "DELETE"):
            words = f"BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END"
            yield "trigger", f"{table}_{verb}", f"CREATE TRIGGER {table}_{verb} {words}"
        refuse = "BEGIN SELECT RAISE(ABORT, 'a ledger is only added to, in order'); END"
        words = f"BEFORE INSERT ON {table} WHEN {_NEXT[table]} {refuse}"
        yield "trigger", f"{table}_next", f"CREATE TRIGGER {table}_next {words}"


_SCHEMA = frozenset(_statements())
_INDEX = ("index", "sqlite_autoindex_witnesses_1", None)
"""The index that SQLite creates for the key of `witnesses`."""


class Ledger:
    """An open ledger. Without an identity it can be read and checked; with one it can be extended."""

    def __init__(self, path: Path, database: sqlite3.Connection, identity: Identity | None) -> None:
        self.path, self._database, self._identity = path, database, identity
        self._tree = Tree()
        self._last = NOTHING
        self._is_known = identity is not None  # its schema was compared with ours

    @classmethod
    def open(cls, path: str | Path, *, identity: Identity | None = None) -> Ledger:
        """Open a ledger for reading, or with the server's `identity` for appending.

        Args:
            path: The file; with an identity it is created if missing.
            identity: The server's key.

        Returns:
            The ledger.

        Raises:
            BadInput: There is no ledger, or the file is damaged.
        """
        path = Path(path)
        if identity is None and not path.exists():
            raise BadInput(
                f"there is no ledger at {path}: the run was made without one",
                code="no-ledger",
            )
        try:
            database = _reading(path) if identity is None else _writing(path)
        except (sqlite3.Error, UnicodeDecodeError) as e:  # a damaged file can make SQLite quote it
            raise BadInput(f"{path} cannot be opened as a ledger: {_words(e)}", code="not-a-ledger") from None
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
        """Read all entries, heads and countersignatures, as they are at one moment."""
        with self._reads(), self._one_moment():
            entries = list(self._rows("SELECT number, body, signature FROM entries ORDER BY number"))
            heads = list(self._rows("SELECT size, run, root, signature FROM heads ORDER BY size"))
            witnesses: dict[int, dict[str, bytes]] = {}
            for size, site, signature in self._rows("SELECT size, site, signature FROM witnesses"):
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

    def entries(self) -> Iterator[Content]:
        """Yield the content of each entry in order."""
        for entry in self.book().entries:
            yield entry.content

    def last(self) -> Content | None:
        """Return the content of the newest entry."""
        with self._reads():
            row = self._database.execute("SELECT body, signature FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        return None if row is None else Entry(_blob(row[0]), _blob(row[1])).content

    def head(self) -> SignedHead | None:
        """Return the newest signed head."""
        return longest(self.book().heads)

    def tree(self) -> Tree:
        """Return the tree over all entries that are in the file now."""
        self._catch_up()
        return self._tree

    def append(self, run: str, *contents: Mapping[str, object], witnessed: SignedHead | None = None) -> SignedHead:
        """Append entries and the signed head over all, in one durable transaction.

        Args:
            run: Name of the run.
            contents: The entries.
            witnessed: An earlier head whose countersignatures are written in the same transaction.

        Returns:
            The head.

        Raises:
            BadInput: The ledger was opened for reading.
        """
        if self._identity is None:
            raise BadInput(
                f"{self.path} was opened for reading: appending requires the server's key", code="read-only-ledger"
            )
        with self._writes():
            self._catch_up()
            for value in contents:
                self._add(Entry.sign(value, number=len(self._tree), previous=self._last, identity=self._identity))
            head = Head(run, len(self._tree), self._tree.root())
            signed = SignedHead(head, head.sign(self._identity))
            row = (head.size, run, head.root, signed.signature)
            self._database.execute("INSERT INTO heads (size, run, root, signature) VALUES (?, ?, ?, ?)", row)
            if witnessed is not None:
                self._countersigned(witnessed)
        return signed

    def count_countersignatures(self, size: int) -> int:
        """Count the stored countersignatures of heads over at most this many entries."""
        with self._reads():
            return int(next(self._rows("SELECT COUNT(*) FROM witnesses WHERE size <= ?", (size,)))[0])

    def add_countersignatures(self, head: SignedHead) -> None:
        """Add the countersignatures of a head."""
        with self._writes():
            self._countersigned(head)

    def verify(self, key: bytes | None = None, *, heads: Sequence[SignedHead] = ()) -> list[Finding]:
        """Verify the ledger.

        Args:
            key: The server's public key; by default the one that the ledger names.
            heads: Heads that others kept.

        Returns:
            The findings; empty if it verifies.
        """
        from grandrounds.audit.verify import UNREADABLE, Finding, verify

        if key is not None and not (isinstance(key, bytes) and len(key) == PUBLIC_BYTES):
            raise BadInput(
                "a ledger is verified with the 32 bytes of a public key: read them with `identity.load_public(path)`",
                code="bad-key",
            )
        try:
            book = self.book()
        except BadInput as e:
            return [Finding(UNREADABLE, self.path.name, str(e))]
        return verify(book, key, heads=heads)

    def _rows(self, query: str, values: tuple[int, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a query. Pages that form a cycle would give more bytes than the file has, which is refused."""
        most = _file_size(self.path) or LARGEST
        read = 0
        for row in self._database.execute(query, values):
            read += sum(len(cell) for cell in row if isinstance(cell, (bytes, str)))
            if read > most:
                raise BadInput(
                    f"{self.path} cannot be read as a ledger: its rows contain more bytes than the file", code="not-a-ledger"
                )
            yield row

    def _add(self, entry: Entry) -> None:
        self._database.execute(
            "INSERT INTO entries (number, body, signature) VALUES (?, ?, ?)",
            (len(self._tree), entry.body, entry.signature),
        )
        self._tree.append(entry.leaf)
        self._last = entry.hash

    def _countersigned(self, head: SignedHead) -> None:
        self._database.executemany(
            "INSERT INTO witnesses (size, site, signature) SELECT :size, :site, :signature"
            " WHERE NOT EXISTS (SELECT 1 FROM witnesses WHERE size = :size AND site = :site)",
            [{"size": head.head.size, "site": s, "signature": b} for s, b in head.witnesses.items()],
        )

    def _catch_up(self) -> None:
        """Read new rows, written before or by another process."""
        with self._reads():
            query = "SELECT body, signature FROM entries WHERE number >= ? ORDER BY number"
            for body, signature in self._rows(query, (len(self._tree),)):
                entry = Entry(_blob(body), _blob(signature))
                self._tree.append(entry.leaf)
                self._last = entry.hash

    @contextmanager
    def _reads(self) -> Iterator[None]:
        try:
            if not self._is_known:
                _refuse_other_schema(self._database, self.path)
                self._is_known = True
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, OverflowError) as e:
            raise BadInput(f"{self.path} cannot be read as a ledger: {_words(e)}", code="not-a-ledger") from None

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Let all queries see the same state while somebody else appends."""
        if self._database.in_transaction:
            yield
            return
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("ROLLBACK")

    @contextmanager
    def _writes(self) -> Iterator[None]:
        """Run one atomic transaction; a full disk raises OSError, as for any file."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException as e:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._tree, self._last = Tree(), NOTHING  # the previous state is read again when needed
            if isinstance(e, (sqlite3.DatabaseError, UnicodeDecodeError)):
                raise _as_trouble(self.path, e) from None
            raise


def _reading(path: Path) -> sqlite3.Connection:
    """Connect for reading. A file without a writer is opened as immutable, so that its folder may be read-only."""
    _refuse_other_files(path)
    log = path.with_name(f"{path.name}-wal")
    still = "" if log.exists() and log.stat().st_size else "&immutable=1"
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{still}", uri=True, isolation_level=None)
    return _closed_on_failure(database, lambda: _guard(database, path, reading=True))


def _writing(path: Path) -> sqlite3.Connection:
    if not path.exists():
        _create(path)
    _refuse_other_files(path)
    database = sqlite3.connect(path, timeout=WAIT, isolation_level=None)

    def prepare() -> None:
        _guard(database, path, reading=False)
        _refuse_other_schema(database, path)
        _prepare(database)

    return _closed_on_failure(database, prepare)


def _closed_on_failure(database: sqlite3.Connection, prepare: Callable[[], object]) -> sqlite3.Connection:
    """Close the database if preparation fails."""
    try:
        prepare()
    except BaseException:
        database.close()
        raise
    return database


def _refuse_other_files(path: Path) -> None:
    """Refuse a link, a pipe or another special file, a file that is too large, and a foreign journal."""
    for part in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + part)
        try:
            status = file.lstat()
        except FileNotFoundError:
            continue
        except OSError as e:
            raise BadInput(f"{file} cannot be read: {e.strerror or e}", code="cannot-read") from None
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(
                f"{file} is not a plain file (a link, a folder or a pipe): it is not read",
                code="not-a-plain-file",
            )
        if status.st_size > LARGEST:
            raise BadInput(
                f"{file} has {status.st_size} bytes: a ledger of more than {LARGEST} bytes is not read", code="file-too-large"
            )
        if part == "-journal" and status.st_size:
            raise BadInput(
                f"{file} is a journal that does not belong to a ledger: copy the ledger without it to read it",
                code="foreign-journal",
            )


def _guard(database: sqlite3.Connection, path: Path, *, reading: bool) -> None:
    """Configure SQLite as recommended for files that may be damaged or forged."""
    for limit, most in _LIMITS.items():
        database.setlimit(limit, most)
    remaining = [(_STEPS + _file_size(path)) // _EVERY]

    def spent() -> int:
        remaining[0] -= 1
        return int(remaining[0] < 0)

    if reading:
        database.set_progress_handler(spent, _EVERY)
    for setting in ("cell_size_check = ON", "trusted_schema = OFF", "mmap_size = 0", "temp_store = MEMORY"):
        database.execute(f"PRAGMA {setting}")
    if reading:
        database.execute("PRAGMA query_only = ON")


def _refuse_other_schema(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that contains anything but the tables, triggers and index of a ledger, or lacks a table."""
    objects = database.execute("SELECT type, name, sql, tbl_name FROM sqlite_master LIMIT 100").fetchall()
    for kind, name, words, table in objects:
        if (kind, name, words) != _INDEX and (kind, name, words) not in _SCHEMA:
            raise BadInput(
                f"{path} is not a ledger: it contains the {kind} {str(name)[:80]!r}, which no ledger has in this form",
                code="not-a-ledger",
            )
        if kind != "table" and table not in _TABLES:
            raise BadInput(
                f"{path} is not a ledger: its {kind} {str(name)[:80]!r} belongs to no table of a ledger", code="not-a-ledger"
            )
    missing = [table for table in _TABLES if ("table", table) not in {(kind, name) for kind, name, *_ in objects}]
    if missing:
        raise BadInput(f"{path} is not a ledger: it has no table {missing[0]!r}", code="not-a-ledger")


def _create(path: Path) -> None:
    """Put a ledger without entries at a path, all of it in one step: a process killed meanwhile leaves no file."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        for _, _, words in _statements():
            database.execute(words)
        write_atomic(path, database.serialize(), replace=False)


def _prepare(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")


def _file_size(path: Path) -> int:
    """Return the size of a ledger, including pages that a writer has not merged yet."""
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.lstat().st_size for file in files if file.exists())


def _words(e: Exception) -> str:
    """Describe an SQLite error; a query with too many steps was interrupted by us."""
    text = str(e)
    return "its rows take more steps to read than a file of this size can need" if text == "interrupted" else text


def _blob(value: Any) -> bytes:
    """Return the bytes of a cell; empty for any other type, which nobody signed."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def _as_trouble(path: Path, e: sqlite3.DatabaseError | UnicodeDecodeError) -> Exception:
    code = getattr(e, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BadInput(f"{path} is being written by another process: wait for it, or stop it", code="ledger-in-use")
    if not isinstance(e, sqlite3.OperationalError):
        return BadInput(
            f"{path} is damaged ({e}): `rounds audit verify` names the damage", code="damaged-ledger"
        )
    return OSError(errno.EIO, f"{path.name}: {e}")


def ledger_at(run: Path) -> Ledger:
    """Open the ledger of a run folder for reading.

    Raises:
        BadInput: It is not a run folder, or has no ledger.
    """
    if not run.exists():
        raise BadInput(f"there is no {run}: give the path that `rounds run` printed", code="unknown-run")
    if not (run / "checkpoint").is_dir():
        raise BadInput(
            f"{run} is not a run folder: it has no checkpoint/ (give the path that `rounds run` printed)",
            code="not-a-run-folder",
        )
    if not (run / "ledger.db").exists():
        raise BadInput(
            f"{run} has no ledger: it was run on a machine without cryptography or rfc8785",
            code="no-ledger",
        )
    return Ledger.open(run / "ledger.db")
