"""The folder of a register: its ledger, its key, the newest head, and the encrypted keys of its signatories.

By default it is `register` in the folder of runs. The reading side needs the ledger and the public key alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grandrounds.audit.book import Book
from grandrounds.audit.canonical import loads
from grandrounds.audit.entry import find_fault
from grandrounds.audit.files import read_file
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.register_entry import KINDS
from grandrounds.audit.register_state import RegisterState, replay
from grandrounds.audit.verify import UNREADABLE, Finding, verify
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import load_public

FOLDER = "register"
"""Name of the folder in the folder of runs. It has no checkpoint/, so that it is not taken for a run."""
DEEPEST = 4
"""Folders between a run and the register above it, as deep as the console looks for runs."""
_ATTEMPTS = 50
"""Times that a register with a fault is read while its files keep changing."""


@dataclass(frozen=True)
class RegisterFolder:
    """The files of a register."""

    path: Path

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.db"

    @property
    def head(self) -> Path:
        return self.path / "ledger.head.json"

    @property
    def key(self) -> Path:
        return self.path / "register.key"

    @property
    def public_key(self) -> Path:
        return self.path / "register.pub"

    @property
    def exists(self) -> bool:
        """True where a register is, or was: its ledger, its key or its head is there."""
        return any(os.path.lexists(p) for p in (self.ledger, self.public_key, self.head))

    def signing_key(self, key: bytes) -> Path:
        """Return the file of a signatory's encrypted key, which is named after the public key."""
        return self.path / "signatories" / f"{key.hex()[:32]}.json"

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Stamp the files that are read: the value changes when one of them does."""
        names = (self.ledger, self.ledger.with_name("ledger.db-wal"), self.head, self.public_key)
        return tuple(file_stamp(path) for path in names)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process writes to the register.

        Raises:
            BadInput: The folder cannot be written.
        """
        try:
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as e:
            raise BadInput(
                f"cannot write to the register {self.path}: {e.strerror or e}", code="cannot-write"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


@dataclass(frozen=True)
class CheckedRegister:
    """A register that was read and verified.

    Attributes:
        state: Roles, signatories and models, by the entries that follow the rules.
        findings: Faults of the ledger; empty if it verifies.
        book: The entries and heads; None where they cannot be read.
    """

    state: RegisterState
    findings: tuple[Finding, ...]
    book: Book | None


def register_of(runs: Path) -> RegisterFolder:
    """Return the register of a folder of runs, whether there is one or not."""
    return RegisterFolder(runs / FOLDER)


def find_root(run: Path) -> Path | None:
    """Find the folder of runs above a run that has a register; None where none has."""
    above = run.resolve().parents[: DEEPEST + 1]
    return next((folder for folder in above if register_of(folder).exists), None)


def load_register(
    folder: RegisterFolder, *, key: bytes | None = None, heads: tuple[SignedHead, ...] = ()
) -> CheckedRegister:
    """Read a register and verify its ledger; a fault that somebody's signing could have caused meanwhile is read again.

    Args:
        folder: The folder.
        key: The register's public key, from a source you trust; by default the one in the folder.
        heads: Heads that others kept.

    Returns:
        The register with its faults.
    """
    for _ in range(_ATTEMPTS):
        before = folder.stamp()
        checked = _read_once(folder, key, heads)
        if not checked.findings or folder.stamp() == before:
            break
    return checked


def _read_once(folder: RegisterFolder, key: bytes | None, heads: tuple[SignedHead, ...]) -> CheckedRegister:
    findings: list[Finding] = []
    try:
        with Ledger.open(folder.ledger) as ledger:
            book = ledger.book()
    except BadInput as e:
        return CheckedRegister(RegisterState(), (Finding(UNREADABLE, folder.ledger.name, str(e)),), None)
    if key is None and os.path.lexists(folder.public_key):
        try:
            read_file(folder.public_key)  # a pipe or a link is not opened
            key = load_public(folder.public_key)
        except BadInput as e:
            findings.append(Finding(UNREADABLE, folder.public_key.name, f"it {e}"))
    try:
        heads = (*heads, SignedHead.from_json(loads(read_file(folder.head))))
    except BadInput as e:
        findings.append(Finding(UNREADABLE, folder.head.name, f"it {e}"))
    findings += verify(book, key, heads=heads)
    return CheckedRegister(_replay(book), tuple(dict.fromkeys(findings)), book)


def _replay(book: Book) -> RegisterState:
    """Replay the entries that can be read."""
    contents = []
    for entry in book.entries:
        try:
            content = entry.content
        except BadInput:
            continue
        if not find_fault(content) and content["kind"] in KINDS:
            contents.append(content)
    return replay(contents)


def file_stamp(path: Path) -> tuple[int, ...]:
    """Stamp a file: the value changes when it is written, also where its time of writing was set back."""
    try:
        s = path.lstat()
    except OSError:
        return ()
    return (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino)
