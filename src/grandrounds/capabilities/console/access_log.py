"""The access log: sign-ins, views of patients and downloads of models. JSON lines, in a file that its owner alone may read.

A line names a patient by run, site and row number. Patients' names and values are never in it.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.deploy.files import make_folder
from grandrounds.core.errors import BadInput, GrandRoundsError, visible

SIGN_IN, WRONG_SIGN_IN, SIGN_OUT, REFUSED = "sign-in", "wrong sign-in", "sign-out", "refused"
PATIENT, PATIENTS, NOT_FOUND = "patient", "patients", "patient not found"
LOCK, UNLOCK, LOG = "lock", "unlock", "access log"
DECISION, WRONG_PASSPHRASE, DOWNLOAD = "model decision", "wrong passphrase", "model download"
LogEntry = dict[str, Any]
"""An entry of the access log, as its line of JSON has it."""
EVENTS = (SIGN_IN, WRONG_SIGN_IN, SIGN_OUT, REFUSED, PATIENT, PATIENTS, NOT_FOUND, DECISION, WRONG_PASSPHRASE, DOWNLOAD)
LONGEST = 200
"""Maximum length of a text in an entry: the name that was tried, a run, an address."""
_MODE = 0o600
_KEPT = 0o640  # an existing file may be readable by its group, at most
_log = logging.getLogger("grandrounds.capabilities.console")


class AccessLogFault(GrandRoundsError):
    """The access log cannot be written, so nobody signs in, and no patient is shown and no model given out."""


def default_file() -> Path:
    """Find the file that is written unless another is named: $XDG_STATE_HOME/grandrounds/console-access.jsonl.

    Returns:
        The path; below ~/.local/state where the variable is not set.
    """
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "grandrounds" / "console-access.jsonl"


class AccessLog:
    """An access log that appends entries to `file`; without one, entries are dropped.

    A file that was renamed (rotation) is left, and a new one is begun under the name.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._handle: int | None = None
        self._turn = threading.Lock()

    def check(self) -> None:
        """Open the file for the first time.

        Raises:
            BadInput: It cannot be written, or is not a plain file.
        """
        if self.file is None:
            return
        if not self.file.parent.exists():
            make_folder(self.file.parent)
        try:
            with self._turn:
                self._open()
        except OSError as e:
            why = f"cannot write the access log {self.file}: {e.strerror or e}"
            raise BadInput(f"{why}; name another with --access-log FILE", code="cannot-write") from None

    def write(self, event: str, *, user: str, address: str, roles: Iterable[str] = (), **facts: Any) -> None:
        """Append one entry, whole.

        Args:
            event: One of `EVENTS`.
            user: The user's name, or the name that was tried.
            address: The network address that the request came from.
            roles: The user's roles.
            **facts: Further facts: run, site, row, view. Never a patient's values.

        Raises:
            AccessLogFault: It cannot be written.
        """
        if self.file is None:
            return
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "user": user[:LONGEST],
            "roles": [str(role) for role in roles],
            "address": address[:LONGEST],
            **{name: value[:LONGEST] if isinstance(value, str) else value for name, value in facts.items()},
        }
        line = json.dumps(entry).encode() + b"\n"  # ASCII: control characters and marks of direction are escapes
        try:
            with self._turn:
                handle = self._open()
                if os.write(handle, line) != len(line):
                    os.write(handle, b"\n")  # the disk is full: the partial entry stays on a line of its own
                    raise OSError("the disk is full")
        except OSError as e:
            _log.error("the access log cannot be written: %s", e)
            raise AccessLogFault(
                "the access log cannot be written, so nothing is shown. Contact the administrator of this console.",
                code="cannot-write",
            ) from None

    def try_write(self, event: str, **facts: Any) -> None:
        """Append one entry for a request that shows no patient; an error goes to the console's own log only."""
        with suppress(AccessLogFault):
            self.write(event, **facts)

    def _open(self) -> int:
        """Return the handle of the file that has the name now."""
        assert self.file is not None
        if self._handle is not None:
            named, current = _facts(self.file), os.fstat(self._handle)
            if named is not None and (named.st_dev, named.st_ino) == (current.st_dev, current.st_ino):
                return self._handle
            os.close(self._handle)
            self._handle = None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(self.file, flags, _MODE)
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                raise OSError("it is not a plain file")
            if stat.S_IMODE(mode) & ~_KEPT:
                os.fchmod(handle, stat.S_IMODE(mode) & _KEPT)
        except OSError:
            os.close(handle)
            raise
        self._handle = handle
        return handle


@dataclass(frozen=True)
class Filter:
    """Filter for entries; all given conditions must match.

    `since`, `until`: a day or time in ISO form, both included. `subject`: the user's number at the provider of single sign-on;
    "" for a local user, None for any.
    """

    user: str = ""
    run: str = ""
    row: int | None = None
    event: str = ""
    since: str = ""
    until: str = ""
    subject: str | None = None

    def matches(self, entry: LogEntry) -> bool:
        """Tell whether an entry matches."""
        rows = entry.get("rows", [entry.get("row")])
        return (
            self.user in ("", entry.get("user"))
            and (self.subject is None or self.subject == entry.get("subject", ""))
            and self.run in ("", entry.get("run"))
            and self.event in ("", entry.get("event"))
            and (self.row is None or (isinstance(rows, list) and self.row in rows))
            and str(entry.get("time", "")) >= self.since
            and (not self.until or str(entry.get("time", ""))[: len(self.until)] <= self.until)
        )


def read_entries(file: Path, chosen: Filter = Filter()) -> Iterator[LogEntry]:  # noqa: B008
    """Read an access log, oldest entry first.

    Args:
        file: The log.
        chosen: Which entries.

    Yields:
        Entries; of a damaged line one with the key "damaged", its line number.

    Raises:
        BadInput: It cannot be read.
    """
    try:
        with file.open("rb") as f:
            for number, line in enumerate(f, 1):
                try:
                    entry = json.loads(line)
                except ValueError:
                    entry = None
                if not isinstance(entry, dict):
                    yield {"damaged": number}
                elif chosen.matches(entry):
                    yield entry
    except OSError as e:
        raise BadInput(f"cannot read the access log {file}: {e.strerror or e}", code="cannot-read") from None


def entry_text(entry: LogEntry) -> str:
    """Format an entry as one line of text.

    Args:
        entry: As `read_entries` gives it.

    Returns:
        The line; control characters in names are escapes.
    """
    if "damaged" in entry:
        return f"line {entry['damaged']} is damaged"
    roles = ", ".join(map(str, entry.get("roles", ())))
    who = f"{entry.get('user') or '(no name)'}{f' ({roles})' if roles else ''} from {entry.get('address', '?')}"
    text = f"{str(entry.get('time', ''))[:19].replace('T', ' ')} UTC  {entry.get('event', '?')}  {who}"
    rows = entry.get("rows")
    if isinstance(rows, list):
        text += f": rows {', '.join(map(str, rows))}"
    elif "row" in entry:
        text += f": row {entry['row']}"
    places = [f"{name} {entry[name]}" for name in ("site", "run", "view", "area", "by", "why") if entry.get(name)]
    return visible(" ".join(text.split("\n")) + (f", {', '.join(places)}" if places else "")).replace("\n", "\\n")


def _facts(file: Path) -> os.stat_result | None:
    try:
        return os.lstat(file)
    except OSError:
        return None
