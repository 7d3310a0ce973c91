"""Encrypted archives of any size: a tar in chunks under AES-256-GCM, with a key that scrypt derives from a passphrase.

Unlike `seal`, which holds a folder of a site in memory, an archive is written and read as a stream. Each chunk has its number
and a mark of the last one in its nonce, so chunks cannot be exchanged, left out or cut off (the STREAM construction of Hoang,
Reyhanitabar, Rogaway and Vizar, 2015). A chunk is authenticated before it is parsed. The end is known to be complete only
when it was read: whoever extracts must discard all files if the last chunk does not verify.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from grandrounds.capabilities.hospital.deploy.seal import derive_key
from grandrounds.core.errors import BadInput

MAGIC = b"grandrounds/backup/1\n"
CHUNK = 1 << 20
_SALT, _PREFIX, _COUNTER, _TAG = 16, 7, 4, 16
_HEAD = len(MAGIC) + _SALT + _PREFIX


@contextmanager
def write_archive(path: Path, phrase: str) -> Iterator[IO[bytes]]:
    """Write an encrypted file: it gets its name when it is complete and on disk, and is removed where anything fails.

    Args:
        path: The file, which must not exist.
        phrase: The passphrase.

    Yields:
        A stream for the content.

    Raises:
        BadInput: The file exists, or cannot be written.
    """
    if path.exists():
        raise BadInput(f"{path} exists: choose another name, backups are never overwritten", code="file-exists")
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            sink = _Encryption(file, phrase)
            yield cast("IO[bytes]", sink)
            sink.finish()
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; no file is left", code="cannot-write") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def read_archive(path: Path, phrase: str) -> Iterator[IO[bytes]]:
    """Read an encrypted file as a stream. Read it to its end: only then it is known to be complete.

    Raises:
        BadInput: It is no backup, the passphrase is wrong, or it was changed or cut off.
    """
    try:
        file = path.open("rb")
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="unreadable-file") from None
    with file:
        yield io.BufferedReader(_Decryption(file, phrase, path), CHUNK)


class _Encryption(io.RawIOBase):
    def __init__(self, file: IO[bytes], phrase: str) -> None:
        salt, self._prefix = os.urandom(_SALT), os.urandom(_PREFIX)
        self._file, self._head = file, MAGIC + salt + self._prefix
        self._cipher = AESGCM(derive_key(phrase, salt))
        self._waiting, self._number = bytearray(), 0
        file.write(self._head)

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # any buffer
        self._waiting += view
        while len(self._waiting) > CHUNK:  # the last chunk is kept back, because it gets its mark
            self._put(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]
        return view.nbytes

    def finish(self) -> None:
        """Write the last chunk, which may be empty."""
        self._put(bytes(self._waiting), last=True)
        self._waiting.clear()

    def _put(self, chunk: bytes, *, last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._prefix, self._number, last), chunk, self._head))
        self._number += 1


class _Decryption(io.RawIOBase):
    def __init__(self, file: IO[bytes], phrase: str, path: Path) -> None:
        self._file, self._path = file, path
        self._head = self._fetch(_HEAD)
        if len(self._head) < _HEAD or not self._head.startswith(MAGIC):
            raise BadInput(f"{path} is not a backup: `rounds server backup` writes such files", code="not-a-backup")
        salt, self._prefix = self._head[len(MAGIC) : len(MAGIC) + _SALT], self._head[-_PREFIX:]
        self._cipher = AESGCM(derive_key(phrase, salt))
        self._number = 0
        self._next = self._fetch(CHUNK + _TAG)
        self._plain = b""
        self._over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]  # any buffer
        while not self._plain and not self._over:
            self._plain = self._take()
        count = min(len(view), len(self._plain))
        view[:count], self._plain = self._plain[:count], self._plain[count:]
        return count

    def _fetch(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as e:
            raise BadInput(f"cannot read {self._path}: {e.strerror or e}", code="unreadable-file") from None

    def _take(self) -> bytes:
        """Decrypt the next chunk; the file's last one must have the mark of the last."""
        chunk, self._next = self._next, self._fetch(CHUNK + _TAG)
        self._over = not self._next
        try:
            plain = self._cipher.decrypt(_nonce(self._prefix, self._number, self._over), chunk, self._head)
        except InvalidTag:
            why = "it was changed or cut off" if self._number else "the passphrase is wrong, or the file was changed"
            raise BadInput(
                f"{self._path} cannot be opened: {why}", code="damaged-backup" if self._number else "wrong-passphrase"
            ) from None
        self._number += 1
        return plain


def _nonce(prefix: bytes, number: int, last: bool) -> bytes:
    return prefix + number.to_bytes(_COUNTER, "big") + bytes([last])
