"""Record a recalibration, or the return to an earlier model, in the site's own ledger of the watch.

A site that recalibrates before it watches gets a ledger whose start names no checks; the watch starts again with its checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.analysis.watch.record import HEAD, LEDGER, WatchRecord, WatchStart
from grandrounds.analysis.watch.signer import Signer
from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from grandrounds.analysis.recalibration.recalibrate import Recalibration
    from grandrounds.runs.run import Run

RECALIBRATION, UNDO = "recalibration", "recalibration undone"
"""Actions as the ledger names them."""


def record_recalibration(
    run: Run, done: Recalibration, folder: Path, signer: Signer, *, alarm: str | None = None, note: str = ""
) -> None:
    """Record a recalibration that was written.

    Args:
        run: The run.
        done: The recalibration.
        folder: The folder of the site's watch.
        signer: The site's key.
        alarm: The alarm that caused it.
        note: A remark.

    Raises:
        BadInput: The ledger does not verify, has another key, or has no such alarm.
    """
    line = done.line
    intercepts = {f"intercept {word}": float(v) for word, v in zip(done.by_class, line.intercept, strict=False)}
    figures: dict[str, float] = {
        "slope": line.slope,
        **({"intercept": float(line.intercept[0])} if len(line.intercept) == 1 else intercepts),
        "rows": done.rows,
        "patients": done.patients,
        **{f"patients with {word}": count for word, count in done.by_class.items()},
    }
    models = {"before": done.model_before, "after": done.model_after}
    _act(run, done.site, folder, signer, f"{RECALIBRATION}: {done.update.kind}", done.by, figures, models, alarm, note)


def record_undo(
    run: Run, site: str, folder: Path, signer: Signer, *, before: str, after: str, by: str, note: str = ""
) -> None:
    """Record the return to an earlier model.

    Args:
        run: The run.
        site: The site.
        folder: The folder of the site's watch.
        signer: The site's key.
        before: SHA-256 of the model that was set aside.
        after: SHA-256 of the model that is used now.
        by: The person who ordered it.
        note: A remark.

    Raises:
        BadInput: The ledger does not verify, or has another key.
    """
    _act(run, site, folder, signer, UNDO, by, {}, {"before": before, "after": after}, None, note)


def check_record(folder: Path, signer: Signer, alarm: str | None) -> None:
    """Check, before a model is changed, that the change can be recorded.

    Args:
        folder: The folder of the site's watch.
        signer: The site's key.
        alarm: The alarm that the action will name.

    Raises:
        BadInput: The ledger does not verify, has another key, or has no such alarm.
    """
    if (folder / LEDGER).exists() or (folder / HEAD).exists():
        with WatchRecord.open(folder, signer=signer) as record:
            if alarm is not None:
                record.alarm(alarm)
    elif alarm is not None:
        raise BadInput(f"{folder} has no record of a watch and no alarm '{alarm}': leave --alarm out", code="unknown-alarm")


def _act(
    run: Run,
    site: str,
    folder: Path,
    signer: Signer,
    action: str,
    by: str,
    figures: Mapping[str, float],
    models: Mapping[str, str],
    alarm: str | None,
    note: str,
) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with WatchRecord.open(folder, signer=signer) as record:
        if record.started is None:
            record.start(_start_without_checks(run, site, models["before"]))
        record.act(action, by=by, alarm=alarm, note=note, figures=figures, models=models)


def _start_without_checks(run: Run, site: str, model: str) -> WatchStart:
    signed = run.ledger.head() if (run.folder / LEDGER).exists() else None
    name, entries, root = f"{run.plan['name']}-{run.plan['seed']}", 0, ""
    if signed is not None:
        name, entries, root = signed.head.run, signed.head.size, signed.head.root.hex()
    return WatchStart(name, site, run.folder.resolve().name, entries, root, model, "", {}, 0.0)
