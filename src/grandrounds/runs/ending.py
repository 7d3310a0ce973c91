"""failure.json of a run folder: why a run ended without a summary. It is removed when the run is resumed.

The file never holds a traceback or a cell of a table. The sentence of an error that was raised while rows were read or used,
or by code of one's own, can quote cells (`quotes_cells`), so its code alone is recorded. Writing it must not hide the error that
it describes: a full disk leaves no file, and then the run counts as interrupted.
"""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.core.arrays import read_json, write_atomic
from grandrounds.core.ending import FAILED, STOPPED, Ending, interrupted
from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.report.overview import FINISHED, RUNNING
from grandrounds.runs.environment import own_version
from grandrounds.runs.folder import FAILURE

_LARGEST = 64 * 1024
CHANGEABLE = ("method.rounds", "engine.", "evaluation.")
"""Beginnings of the settings that a resumed run may change."""
TOO_FEW_SITES, MIN_SITES = "too-few-sites", "engine.min_sites"
_STOP_CODES = ("run-stopped",)
"""Codes of errors that a person's request to stop raises."""


def record_ending(folder: Path, ending: Ending) -> None:
    """Write failure.json, unless the run has no plan yet or is finished. A folder that cannot be written stays as it is.

    Args:
        folder: The run folder.
        ending: The end of the run; its time and version are added where they are missing, and paths of the folder shortened.
    """
    if not (folder / "checkpoint" / "plan.json").is_file() or (folder / "summary.json").exists():
        return
    values = ending.to_dict()
    values["sentence"] = ending.sentence.replace(str(folder), folder.name)  # people without access to this machine read it
    values["time"] = ending.time or datetime.now(UTC).isoformat(timespec="seconds")
    values["version"] = ending.version or own_version()
    with contextlib.suppress(OSError, BadInput):
        write_atomic(folder / FAILURE, json.dumps(values, indent=1).encode())


def clear_ending(folder: Path) -> None:
    """Remove failure.json: the run continues."""
    (folder / FAILURE).unlink(missing_ok=True)


def read_ending(folder: Path) -> Ending | None:
    """Read failure.json.

    Args:
        folder: The run folder.

    Returns:
        The end of the run; None where there is no file, or one that cannot be read.
    """
    path = folder / FAILURE
    if path.is_symlink() or not path.is_file():
        return None
    try:
        values = read_json(path, largest=_LARGEST)
        return Ending.from_dict(values) if isinstance(values, dict) else None
    except (BadInput, ValueError):
        return None


def read_state(folder: Path) -> tuple[str, Ending | None]:
    """Read the state of a run, and its end where it did not finish.

    Args:
        folder: The run folder.

    Returns:
        "finished" or "running" and None; else "failed", "stopped" or "interrupted" and the end.
    """
    if (folder / "summary.json").exists():
        return FINISHED, None
    if Checkpoint(folder / "checkpoint").is_locked():
        return RUNNING, None
    ending = read_ending(folder) or interrupted()
    return ending.state, ending


def describe_error(error: BaseException, *, rounds: int, at_hospitals: bool = False) -> Ending:
    """Describe the error that ended a run, without values from data.

    Args:
        error: The error.
        rounds: Rounds that were finished.
        at_hospitals: The run is of real hospitals: its server resumes it, with the settings that it has.

    Returns:
        The end; STOPPED where a person stopped the run.
    """
    if isinstance(error, KeyboardInterrupt):
        sentence = "The person who ran it stopped it (Ctrl-C)."
        return Ending(
            STOPPED, "stopped-by-user", sentence, "Resume it to continue from the last finished round.", rounds
        )
    if isinstance(error, MemoryError):
        fix = "Use fewer rows, sites or hidden units, or a larger machine; then resume it."
        return Ending(FAILED, "too-little-memory", "This machine has too little memory for the run.", fix, rounds)
    if isinstance(error, GrandRoundsError):
        if error.quotes_cells:
            sentence = f"Rows could not be read or used (error {error.code or 'without a code'})."
            fix = "The sentence was printed where the run was started: it can quote cells, so it is not stored. Then resume it."
            return Ending(FAILED, error.code, sentence, fix, rounds)
        state = STOPPED if error.code in _STOP_CODES else FAILED
        settings = error.settings if isinstance(error, RunFailed) and not at_hospitals else ()
        fix = _suggest_fix(error, settings, at_hospitals=at_hospitals)
        return Ending(state, error.code, _sentence(str(error)), fix, rounds, settings=settings)
    sentence = f"The program ended by {type(error).__name__} in {_place(error)}."
    fix = "Resume it; if it fails again, report the type and the place of the error."
    return Ending(FAILED, "unexpected-error", sentence, fix, rounds)


def _suggest_fix(error: GrandRoundsError, settings: tuple[str, ...], *, at_hospitals: bool) -> str:
    """Suggest how to change the settings that an error names, as the command line does; "" where it names none."""
    try:
        from grandrounds.experiment.hints import CHANGED_FILES, hint, named_settings
    except ImportError:  # a machine with NumPy alone has no descriptions of settings
        return ""
    text = str(error)
    line = "" if error.code in CHANGED_FILES else hint(text)
    if not line:
        return ""
    too_few, names = error.code == TOO_FEW_SITES, named_settings(text)
    if too_few and not settings and MIN_SITES in names:
        return "Resume it when more sites can answer."
    changeable = [name for name in names if name.startswith(CHANGEABLE)]
    if changeable and not at_hospitals:
        return _sentence(hint(" ".join(changeable)))
    start = "rounds server submit" if at_hospitals else "rounds run"
    return f"A resumed run keeps {'it' if len(names) == 1 else 'them'}: {line} in a new run ({start} ...)."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def finished_rounds(checkpoint: Checkpoint) -> int:
    """Return the number of finished rounds; 0 where the checkpoint cannot be read."""
    try:
        snapshot = checkpoint.read()
    except (GrandRoundsError, OSError):
        return 0
    return 0 if snapshot is None else int(snapshot.facts["round"])


def _place(error: BaseException) -> str:
    """Return the last module of this package that the error passed, with its line."""
    trace, place = error.__traceback__, "an unknown place"
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name.startswith("grandrounds"):
            place = f"{name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place
