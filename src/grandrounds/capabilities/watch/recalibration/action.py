"""Record a recalibration, or the return to an earlier model, in the site's own ledger of the watch.

A site that recalibrates before it watches gets a ledger whose start names no checks; the watch starts again with its checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.capabilities.watch.at_sites.record import HEAD, LEDGER, WatchRecord, WatchStart
from grandrounds.capabilities.watch.at_sites.signer import Signer
from grandrounds.capabilities.watch.recalibration.recalibrate import (
    Recalibration,
    hash_model,
    recalibrate,
    undo_recalibration,
)
from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from grandrounds.data.images import ImageSet
    from grandrounds.data.table import Table
    from grandrounds.runs.run import Run

RECALIBRATION, UNDO = "recalibration", "recalibration undone"
"""Actions as the ledger names them."""


def recalibrate_and_record(
    run: Run,
    site: str,
    rows: Table | ImageSet,
    folder: Path,
    signer: Signer,
    *,
    by: str,
    intercept_only: bool = False,
    label: str | None = None,
    patient: str | None = None,
    alarm: str | None = None,
    note: str = "",
) -> Recalibration:
    """Recalibrate the model of a hospital, and record it: no model is changed without its record.

    Args:
        run: A finished run.
        site: The hospital's name.
        rows: Its labelled recent patients.
        folder: The folder of the site's watch.
        signer: The site's key.
        by: The person who decides.
        intercept_only: As in `recalibrate`.
        label: As in `recalibrate`.
        patient: As in `recalibrate`.
        alarm: The alarm of the watch that this answers.
        note: A remark.

    Returns:
        The recalibration.

    Raises:
        BadInput: As in `recalibrate`; or the ledger does not verify, has another key, or has no such alarm.
    """
    check_record(folder, signer, alarm)
    done = recalibrate(run, site, rows, intercept_only=intercept_only, label=label, patient=patient, by=by)
    if done.file is None:
        return done
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
    try:
        _act(run, done.site, folder, signer, f"{RECALIBRATION}: {done.update.kind}", by, figures, models, alarm, note)
    except BaseException:
        undo_recalibration(run, done.site)
        raise
    return done


def undo_and_record(
    run: Run, site: str, folder: Path, signer: Signer, *, by: str, note: str = ""
) -> tuple[Path, Path, Mapping[str, str]]:
    """Go back to the model before the last recalibration of a hospital, and record it.

    Args:
        run: A finished run.
        site: The hospital's name.
        folder: The folder of the site's watch.
        signer: The site's key.
        by: The person who decides.
        note: A remark.

    Returns:
        The file that was set aside, the file that is used now, and the SHA-256 of both: "before" and "after".

    Raises:
        BadInput: There is no recalibration; or the ledger does not verify, or has another key.
    """
    check_record(folder, signer, None)
    deployed = run.deployed_path(site)
    undone, used = undo_recalibration(run, site)
    models = {"before": hash_model(undone), "after": hash_model(used)}
    try:
        _act(run, site, folder, signer, UNDO, by, {}, models, None, note)
    except BaseException:
        undone.rename(deployed)
        raise
    return undone, used, models


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
    return WatchStart.of_run(run, site, model=model, baseline="", rates={}, alarms_per_5000=0.0)
