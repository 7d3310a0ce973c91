"""Recalibrate the model of a finished run at one hospital, on labelled recent patients, and go back to the earlier one.

The new model is a further file in the hospital's folder, which `Run.model_for` uses from then on. The run's own files and its
ledger stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.watch.recalibration.figures import (
    CalibrationFigures,
    Decisions,
    Estimate,
    average_by_patient,
    cross_validate,
    decide,
    flag,
    measure_calibration,
)
from grandrounds.capabilities.watch.recalibration.line_fit import NONE, Update, choose_update
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table, missing_mask, to_text
from grandrounds.methods.guard.candidates import COMMON, Line, is_shiftable, score_rows
from grandrounds.methods.guard.site import digest_model
from grandrounds.metrics.mitigation import THRESHOLDS
from grandrounds.models.dense import targets
from grandrounds.models.losses import CROSS_ENTROPY
from grandrounds.models.protocol import COLUMN_KERNELS
from grandrounds.runs.personal_models import RECALIBRATED, undo_recalibrated, write_recalibrated
from grandrounds.runs.run_rows import overlap_warnings, row_sites

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run

LEAST = 20
"""Least patients of each class: the standard error of an intercept is then about 0.3 log-odds."""

SLOPE_PATIENTS = 100
"""Patients below which the slope is left alone: with few patients simple updates are safer (Steyerberg et al. 2004)."""


@dataclass(frozen=True)
class Recalibration:
    """A recalibration of one hospital's model.

    Attributes:
        site: The hospital.
        rows: Labelled rows.
        patients: Patients among them.
        by_class: Patients with a row of each class.
        label: The event as readers see it, "disease = yes"; "" for several classes.
        update: The update, with the tests that chose it.
        line: The line in the order of the model's classes, as it is applied to the model.
        intercept_only: Slope and intercept were not among the choices.
        before: Calibration before.
        after: Calibration after, of patients whose fold had no part in the fit.
        gain: Fall of the log loss by the update, of the same patients.
        folds: The update of each fold.
        decisions: Decisions before and after, at the model's threshold; None for several classes.
        changed: Rows whose decision changes, of the same cross-validation.
        model_before: SHA-256 of the earlier model file.
        file_before: The earlier model file.
        model_after: SHA-256 of the new model file; "" if none was written.
        file: The new model file; None if none was written.
        time: Time in UTC.
        by: Person who ordered it.
        warnings: Sentences on the rows.
    """

    site: str
    rows: int
    patients: int
    by_class: Mapping[str, int]
    label: str
    update: Update
    line: Line
    intercept_only: bool
    before: CalibrationFigures
    after: CalibrationFigures
    gain: Estimate
    folds: tuple[str, ...]
    decisions: tuple[Decisions, Decisions] | None
    changed: int
    model_before: str
    file_before: Path
    model_after: str
    file: Path | None
    time: str
    by: str
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the recalibration as JSON values."""
        tests = [{"smaller": t.smaller, "larger": t.larger, "statistic": t.statistic, "degrees": t.degrees, "p": t.p}
                 for t in self.update.tests]  # fmt: skip
        return {
            "site": self.site,
            "rows": self.rows,
            "patients": self.patients,
            "patients_by_class": dict(self.by_class),
            "update": self.update.kind,
            "reason": self.update.reason,
            "tests": tests,
            "slope": self.line.slope,
            "intercept": self.line.intercept.tolist(),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "after_by": "cross-validation",
            "log_loss_gain": [self.gain.value, self.gain.low, self.gain.high],
            "folds": list(self.folds),
            "decisions": None if self.decisions is None else [d.to_dict() for d in self.decisions],
            "decisions_changed": self.changed,
            "model_before": self.model_before,
            "model_after": self.model_after,
            "file": None if self.file is None else str(self.file),
            "time": self.time,
            "by": self.by,
            "warnings": list(self.warnings),
        }

    def facts(self) -> dict[str, Any]:
        """Return the facts that a record of actions keeps: no figure of a single patient."""
        return {
            "update": self.update.kind,
            "slope": self.line.slope,
            "intercept": self.line.intercept.tolist(),
            "rows": self.rows,
            "patients": self.patients,
            "patients_by_class": dict(self.by_class),
            "model_before": self.model_before,
            "model_after": self.model_after,
            "time": self.time,
            "by": self.by,
        }


def recalibrate(
    run: Run,
    site: str,
    rows: Table | ImageSet,
    *,
    intercept_only: bool = False,
    label: str | None = None,
    patient: str | None = None,
    by: str = "",
    write: bool = True,
) -> Recalibration:
    """Recalibrate the model that a hospital uses, on its labelled recent patients.

    Args:
        run: A finished run.
        site: The hospital, by name or number.
        rows: Labelled rows. Rows of other hospitals and rows without a label are left out.
        intercept_only: Update the intercept at most.
        label: Column with the outcome; by default that of the run.
        patient: Column that names the patient; by default that of the run. Rows of one patient count as one patient.
        by: The person who orders it, for the record.
        write: Write the new model; else it is only computed.

    Returns:
        The recalibration. `file` is None where the model fits these patients as it is.

    Raises:
        BadInput: The model cannot be recalibrated, the rows do not fit it, or they are too few.
    """
    name = site_named(site, list(run.summary["per_site"]), where=run.folder)
    model = run.model_for(name)
    _refuse_model(run, model)
    labelled, warnings = _select_rows(run, name, model, _rename_label(model, rows, label))
    logits, y, _ = model.score_labelled(labelled)
    event = model.event
    sign = -1.0 if event is not None and model.encoding.classes.index(event.word) == 0 else 1.0
    scores, truth = sign * logits, y if sign > 0 else 1 - y
    units = _patients(run, labelled, patient)
    by_class = _count_patients(truth, units, model, sign)
    _refuse_few(by_class, name)
    patients, seed = int(units.max()) + 1, int(run.plan["seed"])
    only = intercept_only or patients < SLOPE_PATIENTS
    target = targets(truth, scores.shape[1], np.float64)
    update = choose_update(scores, target, units, intercept_only=only)
    if update.fit.line.slope <= 0:
        raise BadInput(
            f"the model ranks the patients of {name} the wrong way round (slope {update.fit.line.slope:.2f}): no recalibration "
            "repairs that; check the label and the units of its columns, or train again",
            code="ranks-backwards",
        )
    after, folds = cross_validate(scores, truth, units, intercept_only=only, seed=seed, site=name)
    losses = [score_rows(CROSS_ENTROPY, z, target) for z in (scores, after)]
    threshold, two = model.threshold, event is not None
    path = run.deployed_path(name)
    facts: dict[str, Any] = {
        "site": name,
        "rows": len(y),
        "patients": patients,
        "by_class": by_class,
        "label": "" if event is None else event.title,
        "update": update,
        "line": Line(update.fit.line.slope, sign * update.fit.line.intercept),
        "intercept_only": only,
        "before": measure_calibration(scores, truth, units, seed=seed, site=name),
        "after": measure_calibration(after, truth, units, seed=seed, site=name),
        "gain": average_by_patient(losses[0] - losses[1], units),
        "folds": folds,
        "decisions": (decide(scores, truth, threshold), decide(after, truth, threshold)) if two else None,
        "changed": _count_changed(scores, after, threshold if two else None),
        "model_before": hash_model(path),
        "file_before": path,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": by,
        "warnings": warnings,
    }
    if update.kind == NONE or not write:
        return Recalibration(**facts, model_after="", file=None)
    file = _write(run, name, model, Recalibration(**facts, model_after="", file=None))
    return Recalibration(**facts, model_after=hash_model(file), file=file)


def undo_recalibration(run: Run, site: str) -> tuple[Path, Path]:
    """Go back to the model before the last recalibration of a hospital.

    Args:
        run: A finished run.
        site: The hospital, by name or number.

    Returns:
        The file that was set aside, and the file that is used now.

    Raises:
        BadInput: There is no recalibration.
    """
    name = site_named(site, list(run.summary["per_site"]), where=run.folder)
    undone = undo_recalibrated(run.site_folder(name))
    return undone, run.deployed_path(name)


def hash_model(path: Path) -> str:
    """Return the SHA-256 of a model file, as `sha256sum` prints it."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _write(run: Run, site: str, model: TrainedModel, done: Recalibration) -> Path:
    """Write the recalibrated model beside the earlier files."""
    own = run.personal_file(site)
    if own is None:
        base = "its own model" if site in run.summary["models"] else COMMON
    else:
        base = str(own.facts.get("base", own.choice)) if own.choice == RECALIBRATED else own.choice
    theta = done.line.apply(model.net, model.theta)
    facts = {
        **done.facts(),
        "site": site,
        "base": base,
        "common_sha256": digest_model(model.theta) if own is None else own.common,
        "file_before": done.file_before.name,
    }
    return write_recalibrated(run.site_folder(site), theta, {k: v for k, v in facts.items() if k != "model_after"}).path


def _refuse_model(run: Run, model: TrainedModel) -> None:
    """Refuse a model without risks of classes, or one that no line can be put into."""
    why = ""
    kernel, several = model.net.kernel, model.net.outputs > 1
    if model.task != CLASSIFICATION:
        why = f"it predicts {_OUTCOMES.get(model.task, model.task)} and no risk of a class; train it again with recent patients"
    elif model.spec.get("tasks"):
        why = "its sites have different tasks in one model; recalibrate a run of one task"
    elif kernel == "card":
        why = "a risk card prints its risks, and staff who add up points would read others; fit a new one with `rounds card`"
    elif kernel == "forest":
        why = "no change of a forest's leaves shifts its log-odds; use model 'trees' or 'logistic'"
    elif several and (kernel in COLUMN_KERNELS or kernel == "boosted"):
        why = f"model '{model.spec['name']}' has one intercept for all classes; use a linear model or a net"
    elif kernel != "boosted" and not is_shiftable(model.net):
        why = "the net does not end in a linear layer with a bias; end it in one"
    elif model.mitigation is not None and model.mitigation.kind != THRESHOLDS:
        why = f"it corrects risks by {model.mitigation.grouping.column} already (evaluation.mitigation); train it again without"
    if why:
        raise BadInput(f"the model of {run.folder} cannot be recalibrated: {why}", code="cannot-recalibrate")


_OUTCOMES = {"survival": "the hazard of an event over time", "regression": "a number", "count": "a count"}


def _select_rows(
    run: Run, site: str, model: TrainedModel, rows: Table | ImageSet
) -> tuple[Table | ImageSet, tuple[str, ...]]:
    """Leave out rows of other hospitals and rows without a label; warn of both, and of rows that the model was trained on."""
    warnings, sites = [], row_sites(run, rows)
    if sites is not None:
        here = np.array([word in (None, site) for word in sites])
        if not here.any():
            raise BadInput(
                f"no row of the table is of {site}: column '{_site_column(model)}' names {sites[0]}; give rows of {site}",
                code="no-rows-of-site",
            )
        if not here.all():
            warnings.append(f"{int((~here).sum())} rows of other hospitals were left out")
        rows = rows.take(np.flatnonzero(here))
    if isinstance(rows, Table) and model.schema is not None:
        missing = missing_mask(rows.column(model.schema.label, flag="the label the model was trained on"))
        if missing.any():
            warnings.append(f"{int(missing.sum())} rows without a label were left out")
            rows = rows.take(np.flatnonzero(~missing))
    if not len(rows):
        raise BadInput("no row of the table has a label: recalibration needs known outcomes", code="missing-labels")
    return rows, (*warnings, *overlap_warnings(run, rows))


def _rename_label(model: TrainedModel, rows: Table | ImageSet, label: str | None) -> Table | ImageSet:
    """Give the outcome the name that the model knows it by."""
    if label is None or model.schema is None or isinstance(rows, ImageSet):
        return rows
    return rows.with_columns({model.schema.label: rows.column(label, flag="--label")})


def _site_column(model: TrainedModel) -> str:
    return "site" if model.schema is None or model.schema.site is None else model.schema.site


def _patients(run: Run, rows: Table | ImageSet, column: str | None) -> Array:
    """Number the patient of each row, from 0; each row is a patient where no column names them."""
    ids: Array | None = None
    if isinstance(rows, ImageSet):
        ids = rows.patient
    else:
        named = column or run.plan["data"].get("patient")
        if column is not None or named in rows.columns:
            values = rows.column(str(named), flag="--id")
            ids = np.array([str(v) for v in to_text(values).tolist()], object)
            missing = missing_mask(values)
            ids[missing] = [f"row {k}" for k in np.flatnonzero(missing)]  # nobody knows that they are one patient
    if ids is None:
        return np.arange(len(rows))
    return np.unique(ids.astype(str), return_inverse=True)[1].ravel()


def _count_patients(truth: Array, units: Array, model: TrainedModel, sign: float) -> dict[str, int]:
    """Count the patients with a row of each class."""
    classes = list(model.encoding.classes)[:: -1 if sign < 0 else 1]
    return {word: len(np.unique(units[truth == k])) for k, word in enumerate(classes)}


def _refuse_few(by_class: Mapping[str, int], site: str) -> None:
    word, count = min(by_class.items(), key=lambda item: item[1])
    if count < LEAST:
        raise BadInput(
            f"{site} has {count} labelled patient{'s' if count != 1 else ''} with outcome '{word}', and a recalibration needs "
            f"{LEAST} of each class: wait for more outcomes",
            code="too-few-patients",
        )


def _count_changed(before: Array, after: Array, threshold: float | None) -> int:
    if threshold is None:
        return int((before.argmax(axis=1) != after.argmax(axis=1)).sum())
    return int((flag(before, threshold) != flag(after, threshold)).sum())
