"""Commands that a watch calls for an alarm, such as an e-mail or a webhook.

A command gets the alarm as JSON on standard input and in environment variables. It runs without a shell and has a time limit. A
failure is recorded and printed, and never stops the watch: the next reading calls the command again, until it ends well. So an
alarm is delivered at least once, and its id tells a second delivery. Acknowledged and silenced alarms are not delivered.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from grandrounds.audit.watch_entry import DELIVERED
from grandrounds.capabilities.watch.at_sites.alarm_states import OPEN, RecordedAlarm
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.core.errors import BadInput, visible

SECONDS = 30.0
"""Time limit of a command."""
_PARTS = (
    "run", "site", "date", "check", "type", "column", "direction", "patient", "since", "patients", "sentence", "details",
    "advice", "figures",
)  # fmt: skip
_VARIABLES = ("id", "run", "site", "date", "check", "kind", "column", "since", "patients", "sentence")
_SHOWN = 200


@dataclass(frozen=True)
class Hook:
    """A command for alarms.

    Attributes:
        command: The program and its arguments.
        seconds: Its time limit.
    """

    command: tuple[str, ...]
    seconds: float = SECONDS

    @classmethod
    def parse(cls, line: str, *, seconds: float = SECONDS) -> Hook:
        """Split a command line into a program and its arguments, as a shell would, without running one.

        Args:
            line: The command line.
            seconds: The time limit.

        Returns:
            The hook.

        Raises:
            BadInput: The line is empty or a quote is open, or the limit is not positive.
        """
        try:
            command = tuple(shlex.split(line))
        except ValueError as e:
            raise BadInput(f"the command '{line}' cannot be split ({e}): close its quotes", code="bad-hook") from None
        if not command:
            raise BadInput("the command for alarms is empty: name a program (--on-alarm COMMAND)", code="bad-hook")
        if not seconds > 0:
            raise BadInput(f"the time limit of a command is {seconds} s: it must be above 0", code="bad-hook")
        return cls(command, seconds)

    @property
    def name(self) -> str:
        """The program and a hash of the whole command: its arguments may hold a secret, and are not recorded."""
        digest = hashlib.sha256(json.dumps(self.command).encode()).hexdigest()
        return f"{Path(self.command[0]).name} {digest[:8]}"

    def call(self, alarm: RecordedAlarm) -> tuple[str, str]:
        """Call the command for an alarm.

        Args:
            alarm: The alarm.

        Returns:
            DELIVERED or the cause of a failure, and the last line of its standard error.
        """
        payload = describe_alarm(alarm)
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(json.dumps(payload).encode() + b"\n")
            given.seek(0)
            try:
                process = subprocess.Popen(
                    self.command,
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, **_variables(payload)},
                    start_new_session=True,
                )
            except (OSError, ValueError) as e:
                return f"cannot be started: {getattr(e, 'strerror', None) or e}", ""
            try:
                code = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                _stop(process)
                return f"no end within {self.seconds:g} s", ""
            except BaseException:
                _stop(process)
                raise
            return (DELIVERED if code == 0 else _ended(code)), _last_line(errors)


def notify(record: WatchRecord, hooks: Sequence[Hook]) -> list[str]:
    """Call every hook for every open alarm that it has not taken, and record the results.

    Args:
        record: The record of the watch.
        hooks: The hooks.

    Returns:
        A sentence for each failure.
    """
    failures = []
    for hook in hooks:
        for alarm in record.alarms():
            if alarm.state != OPEN or alarm.is_delivered(hook.name):
                continue
            result, words = hook.call(alarm)
            record.add_notice(alarm.id, hook=hook.name, result=result)
            if result != DELIVERED:
                more = f" ({words})" if words else ""
                again = "it is called again at the next reading"
                failures.append(f"{Path(hook.command[0]).name} did not take alarm {alarm.id}: {result}{more}; {again}")
    return failures


def describe_alarm(alarm: RecordedAlarm) -> dict[str, Any]:
    """Return an alarm as JSON for a command: the parts of its entry, without signatures and hashes."""
    parts = {("kind" if name == "type" else name): alarm.content.get(name) for name in _PARTS if name in alarm.content}
    return {"schema": 1, "id": alarm.id, **parts, "state": alarm.state}


def _variables(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of an alarm, each in one line without control characters."""
    texts = {name: "" if payload.get(name) is None else str(payload[name]) for name in _VARIABLES}
    return {f"GRANDROUNDS_ALARM_{name.upper()}": visible(" ".join(text.split())) for name, text in texts.items()}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a command with all processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"ended by signal {-code}"


def _last_line(errors: IO[bytes]) -> str:
    """Return the last line of a command's standard error, for the terminal alone."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4096))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return visible(lines[-1])[:_SHOWN] if lines else ""
