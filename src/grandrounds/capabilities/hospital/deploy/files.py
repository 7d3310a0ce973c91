"""Write private files atomically."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from grandrounds.core.arrays import read_file
from grandrounds.core.errors import BadInput

PRIVATE, FOLDER, SCRIPT, PUBLIC = 0o600, 0o700, 0o700, 0o644


def make_folder(path: Path) -> Path:
    """Create a folder with mode 0700, and missing parents.

    Raises:
        BadInput: It cannot be created.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    try:
        path.mkdir(mode=FOLDER, exist_ok=True)
        path.chmod(FOLDER)
    except OSError as e:
        raise BadInput(f"cannot create the folder {path}: {e.strerror or e}", code="cannot-write") from None
    return path


def write(path: Path, data: bytes | str, *, mode: int = PUBLIC) -> None:
    """Write a file atomically, never readable beyond its mode.

    Raises:
        BadInput: It cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(handle, "wb") as f:
            os.fchmod(f.fileno(), mode)
            f.write(data.encode() if isinstance(data, str) else data)
            f.flush()
            os.fsync(f.fileno())
        part.replace(path)
    except OSError as e:
        part.unlink(missing_ok=True)
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None


def write_private(path: Path, data: bytes | str) -> None:
    """Write a file that only its owner can read."""
    write(path, data, mode=PRIVATE)


def write_secret(path: Path) -> None:
    """Write a new secret of 256 bits in hexadecimal digits without a line ending, because it is read as exact bytes."""
    write_private(path, secrets.token_hex(32))


def read(path: Path) -> bytes:
    """Read the bytes of a plain file, or of one that a link leads to.

    Raises:
        BadInput: It cannot be read, is a pipe or a device, or is too large.
    """
    try:
        return read_file(path, links=True)
    except BadInput as e:
        raise BadInput(str(e), code="unreadable-file") from None
