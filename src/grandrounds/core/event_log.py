"""Event logs: one JSON object a line for machines, or one line of text for people.

    log_event(logger, "request sent", run="heart-1", site="va", request="0f3a...", bytes=1200)

A line has `time` (UTC), `level` and `event`, then the fields of the event. Text of exceptions is never written, since it may
have values of patients: only the type and the place of an exception are.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from grandrounds.core.errors import BadInput, nearest, visible

Form = Literal["json", "text"]
FORMS = ("json", "text")
LARGEST = 50 * 2**20
"""Bytes of a log file from which on it is moved to NAME.1; an earlier NAME.1 is replaced."""

_FIELDS = "grandrounds_fields"


def log_event(
    logger: logging.Logger, event: str, sentence: str = "", *, level: int = logging.INFO, **fields: object
) -> None:
    """Log an event.

    Args:
        logger: The logger, below "grandrounds".
        event: The kind of event in two or three words, which a program can search for.
        sentence: The event for people; by default its kind and fields.
        level: Level of the logging module.
        fields: Values for JSON: run, round, site, request, seconds, bytes, code. Never values of patients.
    """
    logger.log(level, sentence or event, extra=event_fields(event, **fields))


def event_fields(event: str, **fields: object) -> dict[str, object]:
    """Return `extra` of a logging call for an event, where an exception is logged with it."""
    return {_FIELDS: {"event": event, **fields}}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the event of a record and its fields; empty for a record that is only a sentence."""
    found: dict[str, Any] = getattr(record, _FIELDS, {})
    return found


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "event": "message", **fields_of(record)}
        sentence = record.getMessage()
        if sentence != line["event"]:
            line["text"] = sentence
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = f"{record.exc_info[0].__name__} at {_place(record.exc_info[2])}"
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Formats a record as a line of text: time, sentence, or fields without a sentence; control characters are escapes."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        sentence = record.getMessage()
        if sentence == fields.get("event"):
            sentence += "".join(f" {name}={value}" for name, value in fields.items() if name != "event")
        if record.exc_info and record.exc_info[0] is not None:
            sentence += f" ({record.exc_info[0].__name__} at {_place(record.exc_info[2])})"
        warns = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{_time(record)[:19]}+00:00 {warns}{visible(sentence)}".replace("\n", "\\n")


def choose_form(requested: str | None, stream: IO[str] | None = None) -> Form:
    """Choose the format of a log: as requested; by default text on a terminal, JSON in a file or a service.

    Raises:
        BadInput: There is no such format.
    """
    if requested is None:
        return "text" if (stream or sys.stderr).isatty() else "json"
    if requested not in FORMS:
        raise BadInput(f"--log-format is '{requested}'; {nearest(requested, FORMS)}", code="unknown-log-format")
    return "json" if requested == "json" else "text"


def start_logging(form: Form, *, stream: IO[str] | None = None, level: int = logging.INFO) -> None:
    """Write events of this process to a stream (standard error by default), in place of earlier handlers."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.setLevel(level)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("grandrounds").setLevel(level)


class LineFile(logging.Handler):
    """Appends JSON lines to a file that only its owner can read, and starts anew when it is large.

    A full disk must not end a run, so a line that cannot be written is dropped; `dropped` counts them.
    """

    def __init__(self, path: Path, *, largest: int = LARGEST) -> None:
        super().__init__()
        self.path, self.largest, self.dropped = path, largest, 0
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            append_line(self.path, self.format(record), largest=self.largest)
        except OSError:
            self.dropped += 1


def append_line(path: Path, line: str, *, largest: int = LARGEST) -> None:
    """Append a line to a log with mode 0600; a log that is larger than `largest` is moved to NAME.1 first."""
    if path.exists() and path.stat().st_size > largest:
        path.replace(path.with_name(f"{path.name}.1"))
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as f:
        f.write(f"{line}\n")


def rotate(path: Path, *, largest: int = LARGEST) -> bool:
    """Copy a large log to NAME.1 and empty it, while a program that appends to it is running.

    Lines that are written between the two steps are lost.

    Returns:
        True if the log was emptied.
    """
    try:
        if path.stat().st_size <= largest:
            return False
        old = path.with_name(f"{path.name}.1")
        shutil.copyfile(path, old)
        old.chmod(0o600)
        os.truncate(path, 0)
    except OSError:
        return False
    return True


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _place(trace: Any) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
