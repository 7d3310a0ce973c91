"""Encrypt a folder as one file: a tar under AES-256-GCM, with a key that scrypt derives from a passphrase.

The whole file is authenticated before the archive is parsed. Only plain files and folders with plain names are extracted,
since anyone who knows the passphrase could have made another archive.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from grandrounds.capabilities.hospital.deploy.consortium import load
from grandrounds.capabilities.hospital.deploy.files import FOLDER, PRIVATE, make_folder, read, write, write_private
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.invitations import FILE as INVITATION
from grandrounds.core.errors import BadInput
from grandrounds.core.names import folder_name

MAGIC = b"grandrounds/sealed/1\n"
SHORTEST = 12
"""Shortest passphrase, in characters."""

LARGEST = 64 * 2**20
"""Largest archive, in bytes; a site's folder has about ten thousand."""

_SALT, _NONCE = 16, 12
_COST, _BLOCK, _LANES = 2**16, 8, 1
"""Parameters of scrypt: 64 MiB and about a quarter of a second for each guess (RFC 7914)."""


def read_passphrase(path: Path) -> str:
    """Read a passphrase, the first line of a file.

    Raises:
        BadInput: It is too short, or the file is not text.
    """
    try:
        lines = path.read_bytes().decode().splitlines()  # a pipe is a file, too
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="unreadable-file") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a text file: its first line must be the passphrase", code="not-text") from None
    phrase = lines[0].strip() if lines else ""
    if len(phrase) < SHORTEST:
        raise BadInput(
            f"the passphrase in {path} has {len(phrase)} characters: use at least {SHORTEST}",
            code="passphrase-too-short",
        )
    return phrase


def seal(folder: Path, phrase: str, out: Path) -> None:
    """Write a folder's files and empty folders as one encrypted file."""
    salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
    head = MAGIC + salt + nonce
    write_private(out, head + AESGCM(derive_key(phrase, salt)).encrypt(nonce, _pack(folder), head))


def unseal(path: Path, phrase: str, out: Path) -> list[str]:
    """Decrypt a sealed folder into a new folder.

    Args:
        path: The sealed file.
        phrase: The passphrase.
        out: The folder to write, which must not exist.

    Returns:
        The names of the files.

    Raises:
        BadInput: The passphrase is wrong, the file was changed, or its archive is unsafe.
    """
    if out.exists():
        raise BadInput(f"{out} exists: choose another --out", code="folder-not-empty")
    data = read(path)
    size = len(MAGIC) + _SALT + _NONCE
    if not data.startswith(MAGIC) or len(data) < size or len(data) > LARGEST:
        raise BadInput(f"{path} is not a sealed folder: `rounds provision --seal` writes such files", code="not-sealed")
    head, salt, nonce = data[:size], data[len(MAGIC) : size - _NONCE], data[size - _NONCE : size]
    try:
        packed = AESGCM(derive_key(phrase, salt)).decrypt(nonce, data[size:], head)
    except InvalidTag:
        raise BadInput(
            f"{path} cannot be opened: the passphrase is wrong, or the file was changed", code="wrong-passphrase"
        ) from None
    return _unpack(packed, path, out)


def derive_key(phrase: str, salt: bytes) -> bytes:
    """Derive a key of 256 bits from a passphrase."""
    room = 2 * 128 * _COST * _BLOCK
    return hashlib.scrypt(phrase.encode(), salt=salt, n=_COST, r=_BLOCK, p=_LANES, maxmem=room, dklen=32)


def _pack(folder: Path) -> bytes:
    """Pack the folder as a tar without owners and times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.mode = path.stat().st_mode & 0o777
            if path.is_dir():
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                data = read(path)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _unpack(packed: bytes, path: Path, out: Path) -> list[str]:
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
            entries = [(entry, b"" if entry.isdir() else _content(tar, entry)) for entry in tar.getmembers()]
    except (tarfile.TarError, EOFError, ValueError):
        raise BadInput(f"{path} contains no readable archive", code="unsafe-archive") from None
    names = [safe_name(entry, path) for entry, _ in entries]
    if len(set(names)) != len(names):
        raise BadInput(f"{path} contains a file twice: nothing was written", code="unsafe-archive")
    make_folder(out)
    for name, (entry, data) in zip(names, entries, strict=True):
        if entry.isdir():
            make_folder(out / name)
        else:
            make_folder((out / name).parent)
            write(out / name, data, mode=FOLDER if entry.mode & 0o100 else (entry.mode & 0o044) | PRIVATE)
    return [str(name) for name, (entry, _) in zip(names, entries, strict=True) if not entry.isdir()]


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry) if entry.isreg() else None
    return b"" if file is None else file.read()


def safe_name(entry: tarfile.TarInfo, path: Path) -> PurePosixPath:
    """Check that an entry is a plain file or folder inside the folder; returns its name."""
    name = PurePosixPath(entry.name)
    plain = entry.isreg() or entry.isdir()
    if not plain or name.is_absolute() or ".." in name.parts or not name.parts or "\\" in entry.name:
        raise BadInput(
            f"{path} contains {entry.name!r}, which is not a plain file inside its folder: nothing was written",
            code="unsafe-archive",
        )
    return name


def read_passphrases(path: Path, names: Sequence[str] | None, source: Path) -> dict[str, str]:
    """Read the passphrase of each site: one file for all, or a folder with NAME.txt by the name of the site's folder.

    With one passphrase for all, a site that obtains another's sealed file can open it.
    """
    names = [s.name for s in load(source).sites] if names is None else names
    if path.is_dir():
        return {name: read_passphrase(path / f"{folder_name(name)}.txt") for name in names}
    phrase = read_passphrase(path)
    return dict.fromkeys(names, phrase)


def seal_sites(folders: Folders, names: Sequence[str], phrases: dict[str, str]) -> list[Path]:
    """Write OUT/sealed/NAME.sealed for each site.

    Returns:
        The paths.

    Raises:
        BadInput: A site's folder has nothing confidential: neither keys nor an invitation.
    """
    for name in names:
        if not _is_confidential(folders, name):
            raise BadInput(
                f"{folders.site(name)} has nothing to encrypt, neither keys nor an invitation: the site has joined with its own "
                "keys, or the folder was deleted",
                code="nothing-confidential",
            )
    where = make_folder(folders.out / "sealed")
    for name in names:
        seal(folders.site(name), phrases[name], where / f"{folder_name(name)}.sealed")
    return [where / f"{folder_name(name)}.sealed" for name in names]


def confidential_sites(folders: Folders) -> list[str]:
    """List the sites whose folder must stay confidential on its way: it has an invitation, or keys that were made here.

    Raises:
        BadInput: There is none.
    """
    names = [name for name in folders.recipients() if _is_confidential(folders, name)]
    if not names:
        raise BadInput(
            f"no folder in {folders.out / 'sites'} has keys or an invitation: there is nothing to encrypt, send them as they are",
            code="nothing-confidential",
        )
    return names


def _is_confidential(folders: Folders, name: str) -> bool:
    return any((folders.site(name) / inside).exists() for inside in ("keys", INVITATION))
