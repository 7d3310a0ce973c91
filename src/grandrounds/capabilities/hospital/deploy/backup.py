"""Back up a server into one encrypted file, also while a run is active, and restore it.

The files of a run are copied in the reverse order of writing, so that a copy is a state that a crash could have left:

- the copy of the newest head, then the ledger (SQLite's online backup), then the state of the last round, then the journal. A
  resumed run adds entries that the ledger lacks, and cuts off journal lines after the state.
- `summary.json`, which marks a run as finished, only if it was there before all others were copied.

Not included: logs, Flower's database, waiting messages (they are sent again), nginx's temporary files. Runs that were running
or queued are stopped in a restored server: two servers must not run one run.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from grandrounds.capabilities.hospital.deploy.archive import CHUNK, read_archive, write_archive
from grandrounds.capabilities.hospital.deploy.files import make_folder
from grandrounds.capabilities.hospital.deploy.records import QUEUED, RUNNING, STOPPED
from grandrounds.capabilities.hospital.deploy.seal import safe_name
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.core.errors import BadInput
from grandrounds.core.version import __version__

INDEX = "backup.json"
PARTS = ("server", "sites", "operator", "operators")
"""Folders of OUT that are included."""

_LEFT_OUT = ("state", "logs", "run")
"""Folders of the server whose files are not included, except for the records of runs."""

_AUTHORITIES = ("server-ca.key", "operator-ca.key")
_TRIES = 50
"""Attempts to open a run's state and its totals while rounds are committed."""


@dataclass
class Backup:
    """Content of a backup.

    Attributes:
        time: When it was begun, in UTC.
        version: Version of the package that wrote it.
        authorities: True if it has the keys of the certificate authorities.
        files: Number of files.
        bytes: Bytes of all files.
        begun: Names of all runs that can be resumed or are finished.
        finished: Names of finished runs.
        warnings: Sentences about files that could not be copied as usual.
    """

    time: str
    version: str = __version__
    authorities: bool = True
    files: int = 0
    bytes: int = 0
    begun: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    @property
    def open_runs(self) -> list[str]:
        """Runs that can be resumed."""
        return sorted(self.begun - self.finished)


def back_up(out: Path, target: Path, phrase: str, *, authorities: bool = True) -> Backup:
    """Back up a server into one encrypted file; its server and a run may be active meanwhile.

    Args:
        out: The folder that `rounds provision` wrote.
        target: The file to write, which must not exist.
        phrase: The passphrase.
        authorities: Include the keys of the certificate authorities.

    Returns:
        The content, as it was read back from the file.

    Raises:
        BadInput: The folder is no server's, or the file exists or cannot be written. No file is left then.
    """
    link = Link.from_folder(out)
    root, target = link.folder.parent, target.absolute()
    if target.resolve().is_relative_to(root.resolve()):
        raise BadInput(
            f"{target} is inside the folder that is backed up: write it to another disk", code="backup-inside-folder"
        )
    made = Backup(_now(), authorities=authorities)
    try:
        _write(link, target, phrase, made)
    except OSError as e:
        raise BadInput(f"cannot copy {root}: {e.strerror or e}; no backup was written", code="cannot-write") from None
    content = check_backup(target, phrase)
    content.warnings += made.warnings
    return content


def _write(link: Link, target: Path, phrase: str, made: Backup) -> None:
    root = link.folder.parent
    with tempfile.TemporaryDirectory(prefix="backup-", dir=make_folder(link.state)) as scratch, ExitStack() as ends:
        stream = ends.enter_context(write_archive(target, phrase))
        tar = ends.enter_context(tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK))
        writer = _Writer(tar, root, Path(scratch), made)
        index = {"time": made.time, "version": made.version, "authorities": made.authorities}
        writer.add_bytes(INDEX, json.dumps(index).encode())
        for part in PARTS:
            writer.add_tree(root / part, skip_keys=not made.authorities)
        for record in sorted((link.state / "runs").glob("*.json")):
            writer.add_file(record)
        for run in sorted(path for path in link.runs.glob("*") if path.is_dir()):
            writer.add_run(run)


def check_backup(path: Path, phrase: str) -> Backup:
    """Read a backup to its end and return its content.

    Raises:
        BadInput: It is no backup, the passphrase is wrong, or it was changed or cut off.
    """
    return _read(path, phrase, None)


def restore(path: Path, phrase: str, out: Path) -> Backup:
    """Restore a backup into a new folder, which gets its name when all files are verified and on disk.

    Args:
        path: The backup.
        phrase: The passphrase.
        out: The folder to write, which must not exist.

    Returns:
        The content.

    Raises:
        BadInput: The folder exists or cannot be written, or the backup is damaged. Nothing is left then.
    """
    if out.exists():
        raise BadInput(f"{out} exists: choose another --out, a restore never overwrites", code="folder-not-empty")
    part = out.absolute().with_name(f".{out.name}.restoring")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a restore that was killed
        make_folder(part)
        content = _read(path, phrase, part)
        _stop_runs(part / "server" / "state" / "runs")
        Link.from_folder(part).prepare()
        os.sync()
        part.rename(out)
    except OSError as e:
        raise BadInput(f"cannot write {out}: {e.strerror or e}; nothing is left", code="cannot-write") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return content


class _Writer:
    """Adds files to the archive."""

    def __init__(self, tar: tarfile.TarFile, root: Path, scratch: Path, made: Backup) -> None:
        self._tar, self._root, self._scratch, self._made = tar, root, scratch, made

    def add_tree(self, folder: Path, *, skip_keys: bool) -> None:
        """Add a folder of OUT without runs, and without files that only a running server needs."""
        for where, folders, files in os.walk(folder):
            path = Path(where)
            place = path.relative_to(self._root)
            self._add_folder(path)
            if place.parts[:1] == ("server",) and len(place.parts) == 2 and place.parts[1] in (*_LEFT_OUT, "runs"):
                folders.clear()
                continue
            if place == Path("server"):
                files = [name for name in files if not name.startswith("consortium.db")]
                self._add_database(path / "consortium.db")
            folders.sort()
            for name in sorted(files):
                if not (skip_keys and name in _AUTHORITIES):
                    self.add_file(path / name)

    def add_run(self, run: Path) -> None:
        """Add a run's folder: a state that a crash could have left, which can be resumed."""
        finished = (run / "summary.json").exists()
        for path in (run, run / "checkpoint"):
            if path.is_dir():
                self._add_folder(path)
        self.add_file(run / "ledger.head.json")
        self._add_database(run / "ledger.db")
        with ExitStack() as ends:
            for path, file in _open_state(run / "checkpoint", ends):
                self._add(path, file)
        self.add_file(run / "checkpoint" / "rounds.jsonl")
        done = {run / name for name in ("ledger.head.json", "ledger.db", "ledger.db-wal", "ledger.db-shm")}
        done |= {run / "checkpoint" / name for name in ("state.safetensors", "rounds.jsonl", "lock")}
        done |= set() if finished else {run / "summary.json"}
        for where, folders, files in os.walk(run):
            folders.sort()
            if Path(where) not in (run, run / "checkpoint"):
                self._add_folder(Path(where))
            for path in sorted(Path(where) / name for name in files):
                if path not in done and not (path.parent.name == "checkpoint" and path.name.startswith("totals-")):
                    self.add_file(path)

    def add_bytes(self, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o600
        self._tar.addfile(entry, io.BytesIO(data))

    def add_file(self, path: Path) -> None:
        """Add a file; one that was removed meanwhile is left out, and so are unfinished files of a running program."""
        if path.name.startswith(".") and path.name.endswith((".part", ".lock")):
            return
        if path.is_symlink():
            self._made.warnings.append(f"{path} is a link: it is not in the backup")
            return
        try:
            with path.open("rb") as file:
                self._add(path, file)
        except FileNotFoundError:
            return
        except PermissionError:
            raise BadInput(f"{path} cannot be read: back up as the user of the server", code="unreadable-file") from None

    def _add(self, path: Path, file: IO[bytes], name: Path | None = None) -> None:
        """Add an open file with the size that it has now."""
        found = os.fstat(file.fileno())
        entry = tarfile.TarInfo((name or path).relative_to(self._root).as_posix())
        entry.size, entry.mode, entry.mtime = found.st_size, found.st_mode & 0o777, int(found.st_mtime)
        self._tar.addfile(entry, file)

    def _add_folder(self, path: Path) -> None:
        entry = tarfile.TarInfo(path.relative_to(self._root).as_posix())
        entry.type, entry.mode = tarfile.DIRTYPE, 0o700
        self._tar.addfile(entry)

    def _add_database(self, path: Path) -> None:
        """Add a consistent copy of an SQLite file that may be written meanwhile; a damaged one is copied as it is."""
        if not path.exists():
            return
        copy = self._scratch / "copy.db"
        try:
            with (
                closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=60.0)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")
            copy.chmod(path.stat().st_mode & 0o777)
            with copy.open("rb") as file:
                self._add(copy, file, path)
        except sqlite3.OperationalError as e:
            if "full" in str(e):
                raise OSError(None, f"{e} ({self._scratch.parent})") from None
            self._copy_damaged(path, e)
        except sqlite3.DatabaseError as e:
            self._copy_damaged(path, e)
        finally:
            copy.unlink(missing_ok=True)

    def _copy_damaged(self, path: Path, error: Exception) -> None:
        self._made.warnings.append(f"{path} is damaged ({error}): it was copied as it is")
        self.add_file(path)


def _open_state(checkpoint: Path, ends: ExitStack) -> list[tuple[Path, IO[bytes]]]:
    """Open the state of the last round and all files of totals that it may name.

    Both are replaced by renames, so open files stay what they were. If the state changed while the others were opened, all are
    opened again.
    """
    state = checkpoint / "state.safetensors"
    for _ in range(_TRIES):
        with ExitStack() as attempt:
            try:
                opened: list[tuple[Path, IO[bytes]]] = [(state, attempt.enter_context(state.open("rb")))]
                opened += [(path, attempt.enter_context(path.open("rb"))) for path in sorted(checkpoint.glob("totals-*"))]
                now = state.stat()
            except FileNotFoundError:
                if not state.exists():
                    return []  # before the first round
                continue
            before = os.fstat(opened[0][1].fileno())
            if (before.st_ino, before.st_mtime_ns) == (now.st_ino, now.st_mtime_ns):
                ends.push(attempt.pop_all())
                return opened
    raise BadInput(f"{checkpoint} changes faster than it can be copied: back up again", code="backup-interrupted")


def _read(path: Path, phrase: str, out: Path | None) -> Backup:
    """Read a backup to its end; extract it where `out` is given."""
    content: Backup | None = None
    names: set[str] = set()
    with read_archive(path, phrase) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
                for entry in tar:
                    name = safe_name(entry, path)
                    if str(name) in names:
                        raise BadInput(f"{path} contains {name} twice: nothing was restored", code="unsafe-archive")
                    names.add(str(name))
                    file = tar.extractfile(entry) if entry.isreg() else None
                    if content is None:
                        content = _read_index(file, name, path)
                        continue
                    _extract(entry, file, None if out is None else out / name)
                    _count(content, entry, name)
        except tarfile.TarError:
            raise BadInput(f"{path} contains no readable archive", code="unsafe-archive") from None
        while stream.read(CHUNK):  # to the last chunk, which proves that nothing is missing
            pass
    if content is None:
        raise BadInput(f"{path} is empty", code="not-a-backup")
    return content


def _read_index(file: IO[bytes] | None, name: PurePosixPath, path: Path) -> Backup:
    try:
        values: dict[str, Any] = json.loads(file.read()) if file is not None and str(name) == INDEX else {}
        return Backup(str(values["time"]), str(values["version"]), bool(values["authorities"]))
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path} does not begin with {INDEX}: it is not a backup of a server", code="not-a-backup") from None


def _extract(entry: tarfile.TarInfo, file: IO[bytes] | None, target: Path | None) -> None:
    if target is None:
        while file is not None and file.read(CHUNK):
            pass
    elif file is None:
        make_folder(target)
    else:
        make_folder(target.parent)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            shutil.copyfileobj(file, f, CHUNK)
            os.fchmod(f.fileno(), entry.mode & 0o777)
        os.utime(target, (entry.mtime, entry.mtime))


def _count(content: Backup, entry: tarfile.TarInfo, name: PurePosixPath) -> None:
    if not entry.isreg():
        return
    content.files, content.bytes = content.files + 1, content.bytes + entry.size
    if name.parts[:2] == ("server", "runs") and name.parts[3:] == ("checkpoint", "plan.json"):
        content.begun.add(name.parts[2])
    if name.parts[:2] == ("server", "runs") and name.parts[3:] == ("summary.json",):
        content.finished.add(name.parts[2])


def _stop_runs(folder: Path) -> None:
    """Mark runs as stopped that were running or queued, and forget ids of the lost SuperLink."""
    for path in folder.glob("*.json"):
        try:
            record = json.loads(path.read_text())
        except ValueError:
            continue  # it was damaged before the backup; `rounds server status` names it
        if record.get("state") in (RUNNING, QUEUED):
            record["state"] = STOPPED
            record.setdefault("history", []).append([STOPPED, _now()])
        record["flower"] = []
        path.write_text(json.dumps(record, indent=1))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
