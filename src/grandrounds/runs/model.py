"""A trained model with all it needs to score a patient: parameters, encoding, schema, threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import NUMBER, Array, load, misfit
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL
from grandrounds.core.plugins import admit, check, is_path
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.encoding import Encoding, class_numbers
from grandrounds.data.event import LAST, Event, event_place, guess_event
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import AnyEncoding, encoding_from, outcome_of, task_of
from grandrounds.data.outcome import Outcome
from grandrounds.data.schema import Schema
from grandrounds.data.subgroups import Grouping
from grandrounds.data.table import Table
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.metrics import scores, tally, tally_outcome
from grandrounds.metrics.mitigation import THRESHOLDS, GroupRule
from grandrounds.models import TABLES, Model, build_model
from grandrounds.models.dense import class_probabilities
from grandrounds.models.protocol import Calibration
from grandrounds.site.evaluate import score
from grandrounds.site.tasks import task_of_class

_MODEL = {
    "spec": {
        "name": str, "inputs": [int], "classes": int, "hidden?": [int], "trees?": int, "depth?": int, "options?": dict,
        "columns?": str, "tasks?": [str], "task?": str, "weights?": (str, None), "stem?": str, "statistics?": str,
        "keeps?": str, "norm?": str, "personal?": {"part": str, "epochs": int, "strength": float, "mixture": float},
    },
    "encoding": dict, "columns": (None, dict), "threshold": float, "temperature": NUMBER,
    "platt?": (None, {"slope": float, "intercept": float}),
    "mitigation?": {"kind": str, "column": str, "rules": [{"changed": bool, "*": float}], "deployed?": bool},
}  # fmt: skip


@dataclass(frozen=True)
class Predictions:
    """Probabilities (n, C) in the order of `classes`, the decision at the threshold, and notes on imputed values.

    Tasks other than classification have `values` in place of probabilities and decisions.
    """

    probabilities: Array
    classes: tuple[str, ...]
    decisions: Array
    notes: tuple[str, ...]
    event: Event | None = None  # of two classes
    task: str = CLASSIFICATION
    values: Array | None = None  # (n,) predicted numbers, expected counts or log hazards, of other tasks
    label: str = ""  # the column that is predicted
    thresholds: Array | None = None  # (n,) the threshold of each row, where groups have thresholds of their own
    absent: tuple[str, ...] = ()  # columns of the model that the rows lack

    @property
    def columns(self) -> dict[str, Array]:
        """The predictions as the columns of a table: a risk or probabilities and the decision, or one number.

        Where the rows lack columns of the model, `missing_inputs` names them.
        """
        missing = {"missing_inputs": np.full(len(self.probabilities), "; ".join(self.absent), object)} if self.absent else {}
        if self.values is not None:
            names = {REGRESSION: "predicted", COUNT: "expected", SURVIVAL: "risk_score"}
            name = names[self.task] if self.task == SURVIVAL else f"{names[self.task]}_{'_'.join(self.label.split())}"
            return {name: self.values, **missing}
        if self.event is None:
            columns = {f"p({c})": self.probabilities[:, k] for k, c in enumerate(self.classes)}
        else:
            columns = {self.event.column: self.risk}
        if self.thresholds is not None:
            columns["threshold"] = self.thresholds
        return {**columns, "decision": self.decisions, **missing}

    @property
    def risk(self) -> Array:
        """The probability of the event (binary models), (n,)."""
        return self.probabilities[:, event_place(self.classes, None if self.event is None else self.event.word)]


@dataclass(frozen=True)
class Mitigation:
    """The correction of a model by group of patients (evaluation.mitigation).

    Attributes:
        kind: "thresholds" or "recalibration".
        grouping: The groups of the column.
        rules: The rule of each group.
        threshold: The common threshold, for rows without a group.
        deployed: It was fitted to the models that sites deploy, not to the common one.
    """

    kind: str
    grouping: Grouping
    rules: tuple[GroupRule, ...]
    threshold: float
    deployed: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, encoding: AnyEncoding, threshold: float) -> Mitigation | None:
        """Read the correction of a model file; None where it has none."""
        if not values:
            return None
        grouping = next(g for g in encoding.subgroups if g.column == values["column"])
        rules = tuple(GroupRule(**{"threshold": threshold, **rule}) for rule in values["rules"])
        if len(rules) != len(grouping.names):
            raise ValueError("a rule for each group")
        return cls(str(values["kind"]), grouping, rules, threshold, bool(values.get("deployed", False)))

    def apply(self, risk: Array, data: Any) -> tuple[Array, Array, str]:
        """Correct risks (n,) by the group of each row.

        Args:
            risk: Risks of the event.
            data: The rows.

        Returns:
            The corrected risks, the threshold of each row, and a sentence on the correction.
        """
        column = self.grouping.column
        columns = data.columns if isinstance(data, ImageSet) else data.table.columns
        if column not in columns:
            sentence = f"the correction by {column} was not applied: the rows have no such column, and one rule serves all"
            return risk, np.full(len(risk), self.threshold), sentence
        number = self.grouping.number(np.asarray(columns[column]))
        slope, intercept, limit = (
            np.array([getattr(rule, name) for rule in self.rules])[number] for name in ("slope", "intercept", "threshold")
        )
        with np.errstate(divide="ignore"):
            z = slope * (np.log(risk) - np.log1p(-risk)) + intercept
        kept = np.where((slope == 1) & (intercept == 0), risk, 0.5 + 0.5 * np.tanh(0.5 * z))
        names = self.grouping.names
        if self.kind == THRESHOLDS:
            own = ", ".join(f"{names[g]} {r.threshold:.3f}" for g, r in enumerate(self.rules) if r.changed)
            return kept, limit, f"thresholds by {column}: {own or 'none'}; all others {self.threshold:.3f}"
        own = ", ".join(names[g] for g, r in enumerate(self.rules) if r.changed)
        return kept, limit, f"risks are recalibrated by {column}, in these groups: {own or 'none'}"


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its data preparation. The calibration is already in its parameters."""

    net: Model
    spec: Mapping[str, Any]
    theta: Array
    encoding: AnyEncoding
    schema: Schema | None
    threshold: float
    calibration: Calibration | None = None
    mitigation: Mitigation | None = None
    is_deployed: bool = False  # it is the model that a site deploys, in a run with personal parts

    @property
    def temperature(self) -> float | None:
        return None if self.calibration is None else self.calibration.temperature

    @classmethod
    def load(cls, path: Path, *, trust_code: bool | None = False) -> TrainedModel:
        """Read a model file.

        Args:
            path: The file, in its run folder.
            trust_code: Import the code that the file names also where its run was made elsewhere; None: import none.

        Returns:
            The model.

        Raises:
            BadInput: The file is damaged, or its model is untrusted code (see `admit_model`).
        """
        params, meta = load(path)
        try:
            admit_model(path, meta["spec"], trust_code=trust_code)
            fault = misfit(meta, _MODEL)
            if fault:
                raise BadInput(f"{path} is damaged: {fault} is missing or of the wrong kind", code="damaged-model")
            encoding = encoding_from(meta["encoding"])
            _check_sizes(meta["spec"], encoding, params, where=path)
            net = build_model({**meta["spec"], "weights": None}, device="cpu", own_code=True)  # it has its parameters
            return cls(
                net=net,
                spec=meta["spec"],
                theta=net.layout.pack(params, dtype=next(iter(params.values())).dtype),
                encoding=encoding,
                schema=None if meta["columns"] is None else Schema.from_dict(meta["columns"]),
                threshold=float(meta["threshold"]),
                calibration=Calibration.from_record(meta["temperature"], meta.get("platt")),
                mitigation=Mitigation.from_dict(meta.get("mitigation"), encoding, float(meta["threshold"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, StopIteration):
            raise BadInput(f"{path} is not a model of Grand Rounds, or it is damaged", code="damaged-model") from None

    @property
    def task(self) -> str:
        """The type of the outcome."""
        return task_of(self.encoding)

    @property
    def event(self) -> Event | None:
        """The class of the main task whose probability is the risk; None with three classes or more."""
        return self.event_of("")

    def event_of(self, task: str) -> Event | None:
        """Return the event of a task; further tasks have theirs from known words, or the last class."""
        class_indices = self._own_classes(task)
        if len(class_indices) != 2 or self.task not in (CLASSIFICATION, SURVIVAL):
            return None
        words = [self.encoding.classes[c] for c in class_indices]
        stated = self.encoding.event if self.encoding.event in words else guess_event(words) if task else None
        event_index, counts = event_place(words, stated), [self.encoding.class_counts[c] for c in class_indices]
        share = (
            None if getattr(self.encoding, "public", False) or not sum(counts) else counts[event_index] / sum(counts)
        )
        label = None if self.schema is None else self.schema.label
        return Event(words[event_index], words[1 - event_index], label, share, LAST if stated is None else "model")

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters as named arrays."""
        return self.net.layout.views(self.theta)

    def predict(self, table: Any, *, task: str = "", corrected: bool = False) -> Predictions:
        """Score rows; a label is not needed and not used.

        Args:
            table: The rows: a pandas DataFrame, Table or ImageSet.
            task: A further task of the model; "" is the main one. Probabilities are within the classes of the task.
            corrected: Apply the correction by group of patients, where the run has one (evaluation.mitigation).

        Returns:
            Probabilities, decisions and notes on imputed values.

        Raises:
            BadInput: The rows do not fit the model, or it has no such task.
        """
        data = self._read(table, labelled=False)
        logits, notes = self._logits(data)
        absent = self.encoding.absent_columns(data.table) if isinstance(self.encoding, Encoding) else ()
        outcome = outcome_of(self.encoding)
        if outcome is not None:
            if task:
                self._own_classes(task)
            label, none = "" if self.schema is None else self.schema.label, np.empty((len(logits), 0))
            values = outcome.predict(logits[:, 0])
            return Predictions(none, (), none[:, :0], tuple(notes), None, outcome.task, values, label, absent=absent)
        class_indices = self._own_classes(task)
        words = tuple(self.encoding.classes[c] for c in class_indices)
        p = class_probabilities(
            (logits if len(class_indices) == len(self.encoding.classes) else logits[:, class_indices]).astype(float)
        )
        event = self.event_of(task)
        thresholds = None
        if event is None:
            decided = p.argmax(axis=1)
        else:
            event_index, limit = words.index(event.word), np.full(len(p), self.threshold)
            if corrected and self.mitigation is not None and self.mitigation.deployed and not self.is_deployed:
                notes.append(
                    f"the correction by {self.mitigation.grouping.column} was not applied: it is for models that sites deploy "
                    "(choose a site with --for SITE)"
                )
            elif corrected and self.mitigation is not None:
                risk, limit, note = self.mitigation.apply(p[:, event_index], data)
                p = np.stack([1 - risk, risk] if event_index else [risk, 1 - risk], axis=1)
                notes.append(note)
                thresholds = limit if self.mitigation.kind == THRESHOLDS else None
            decided = np.where(p[:, event_index] >= limit, event_index, 1 - event_index)
        words_decided = np.array(words, object)[decided]
        return Predictions(p, words, words_decided, tuple(notes), event, thresholds=thresholds, absent=absent)

    def score_labelled(self, table: Any) -> tuple[Array, Array, tuple[str, ...]]:
        """Score labelled rows of a model that predicts classes.

        Args:
            table: The rows with their label: a pandas DataFrame, Table or ImageSet.

        Returns:
            (n, 1) log-odds of the second of two classes, or (n, C) scores; (n,) class of each row; notes on imputed values.

        Raises:
            BadInput: The rows do not fit the model, or have no label.
        """
        data = self._read(table, labelled=True)
        logits, notes = self._logits(data)
        return logits.astype(np.float64), class_numbers(data.label, self.encoding.classes, where=data.name), tuple(notes)

    def evaluate(self, table: Any) -> dict[str, Any]:
        """Evaluate the main task on labelled rows: all metrics, overall and by site.

        Args:
            table: The rows with their label: a pandas DataFrame, Table or ImageSet.

        Returns:
            The keys "overall", "per_site", "threshold", "event" and "notes"; of other tasks than classification also "task".

        Raises:
            BadInput: The rows do not fit the model, or have no label.
        """
        data = self._read(table, labelled=True)
        logits, notes = self._logits(data)
        names, site = np.array(["all rows"], object), np.zeros(len(data), np.int64)
        if data.site is not None:
            names, site = np.unique(data.site.astype(str), return_inverse=True)
        outcome = outcome_of(self.encoding)
        if outcome is not None:
            return self._evaluate_outcome(outcome, data, logits[:, 0], names, site, notes)
        class_indices = self._own_classes("")
        if len(class_indices) < len(self.encoding.classes):
            logits = logits[:, class_indices]
        words = [self.encoding.classes[c] for c in class_indices]
        y = class_numbers(data.label, words, where=data.name)
        event = self.event
        event_index = 1 if event is None else words.index(event.word)
        total = tally(logits, y, group=site, groups=len(names), classes=len(words), event=event_index)
        each = scores(total, threshold=self.threshold)
        return {
            "overall": {k: float(v) for k, v in scores(total.sum(axis=0), threshold=self.threshold).items()},
            "per_site": {str(s): {k: float(v[i]) for k, v in each.items()} for i, s in enumerate(names)},
            "threshold": self.threshold,
            "event": None if event is None else event.to_dict(),
            "notes": list(notes),
        }

    def _evaluate_outcome(
        self, outcome: Outcome, data: Any, z: Array, names: Array, site: Array, notes: list[str]
    ) -> dict[str, Any]:
        """Evaluate predicted numbers, counts or hazards on labelled rows; pairs of survival are within sites."""
        encoding: Any = self.encoding
        y = encoding.labels(data)
        y = y if outcome.task == SURVIVAL else outcome.standardise(y)
        each = tally_outcome(outcome.task, z, y, site, (len(names),), time=data.duration, scale=outcome.scale)
        by_site = scores(each)
        return {
            "overall": {k: float(v) for k, v in scores(each.sum(axis=0)).items()},
            "per_site": {str(s): {k: float(v[i]) for k, v in by_site.items()} for i, s in enumerate(names)},
            "threshold": None,
            "event": None,
            "notes": list(notes),
            "task": outcome.task,
        }

    def _own_classes(self, task: str) -> list[int]:
        """Return the outputs that belong to a task ("" is the main one)."""
        tasks = list(self.spec.get("tasks", []))
        if task and task not in tasks:
            raise BadInput(
                f"this model has no task '{task}'; {nearest(task, tasks) if tasks else 'it has one task only'}",
                code="unknown-task",
            )
        return [c for c, word in enumerate(self.encoding.classes) if task_of_class(word, tasks) == task]

    def _read(self, source: Any, *, labelled: bool) -> Any:
        """Read rows as the training data were read: images for a net, columns for a table model."""
        if self.schema is None:
            if not isinstance(source, ImageSet):
                raise BadInput(
                    "this model scores images: give an .npz file or an ImageSet", code="model-needs-images"
                )
            return source
        if isinstance(source, ImageSet):
            raise BadInput("this model scores the rows of a table, not images", code="model-needs-table")
        return read_new_rows(_as_table(source), self.schema, labelled=labelled)

    def _logits(self, data: Any) -> tuple[Array, list[str]]:
        encoding: Any = self.encoding
        x = encoding.encode(data, self.theta.dtype)
        return score(self.net, self.theta, x), list(encoding.notes(data))


def _check_sizes(spec: Mapping[str, Any], encoding: AnyEncoding, params: Mapping[str, Array], *, where: Path) -> None:
    """Refuse a model file whose parts do not fit together, before a model of that size is built."""
    stated_sizes = (tuple(spec["inputs"]), spec["classes"])
    meant = (tuple(encoding.inputs), len(encoding.classes))
    if stated_sizes != meant:
        raise BadInput(
            f"{where} is damaged: its model has inputs {stated_sizes[0]} and {stated_sizes[1]} classes, its encoding {meant}",
            code="damaged-model",
        )
    if not params or any(a.dtype.kind not in "fiu" for a in params.values()):
        raise BadInput(f"{where} is damaged: it has no parameters, or they are not numbers", code="damaged-model")
    stored_count = sum(a.size for a in params.values())
    widths = [int(n) for n in spec["hidden"]] if spec["name"] in TABLES and "hidden" in spec else []
    needed = sum(a * b for a, b in pairwise([int(np.prod(encoding.inputs)), *widths]))
    if min(widths, default=1) < 1 or needed > stored_count:
        raise BadInput(
            f"{where} is damaged: model.hidden needs {needed:,} parameters, and the file has {stored_count:,}",
            code="damaged-model",
        )


def _as_table(table: Any) -> Table:
    return table if isinstance(table, Table) else Table.from_pandas(table)


def admit_model(file: Path, spec: Mapping[str, Any], *, trust_code: bool | None) -> None:
    """Decide whether the code that a model file names may be imported: it must be what the plan of its run names.

    Args:
        file: The model file, in a run folder or in its `models/`.
        spec: The model specification in the file.
        trust_code: As in `admit`.

    Raises:
        BadInput: The file's code may not be imported.
    """
    path = spec.get("name")
    if not (isinstance(path, str) and is_path(path)):
        return
    folder = file.parent.parent if file.parent.name == "models" else file.parent
    try:
        plan = Checkpoint(folder / "checkpoint").plan()
    except BadInput:
        raise BadInput(
            f"{file} names code, '{path}', and is in no run folder whose plan lists that code: it is not opened",
            code="code-not-run",
        ) from None
    admit(folder, plan, trust_code=trust_code)
    model = plan.get("model")
    said = model if isinstance(model, Mapping) else {}
    if path != said.get("name") or spec.get("options", {}) != said.get("options", {}):
        raise BadInput(
            f"{file} is a model of '{path}', which is not the model.name and model.options of its run's plan: it was "
            "changed, and is not opened",
            code="code-not-run",
        )
    check(path, "model.name")
