"""The run folder: write and read its files. They are JSON, TOML and arrays only."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.audit.files import ENVIRONMENT
from grandrounds.core import toml
from grandrounds.core.arrays import (
    LARGEST,
    LARGEST_JSON,
    NUMBER,
    Array,
    make_folder,
    misfit,
    plain,
    read_file,
    read_json,
    save,
    write_atomic,
)
from grandrounds.core.capability import capabilities, names_of, not_installed
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plugins import STAMP, is_path
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.data.kinds import AnyEncoding
from grandrounds.data.schema import Schema
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.explain.percentiles import Population
from grandrounds.methods import METHODS
from grandrounds.models import MODELS, Model
from grandrounds.models.protocol import Calibration
from grandrounds.report.page import report_page
from grandrounds.report.provenance import LedgerState, Provenance
from grandrounds.runs.environment import environment, own_version
from grandrounds.runs.readable_model import readable_file

SCHEMA = 1
_MANY = 100  # number of sites from which on summary.json is written without line breaks
_LEDGER = ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.head.json", "server.pub")
PERCENTILES = "percentiles.json"
FAILURE = "failure.json"
"""Why a run ended without a summary (runs/ending.py)."""
_FIRST = ("experiment.toml", ENVIRONMENT, "schema.json")
"""Files that a run writes before its plan is in the checkpoint; until then it cannot be resumed."""

_OWN = (*_FIRST, PERCENTILES, "round_logs.json", FAILURE, *_LEDGER)


_FIGURES = {"count": NUMBER, "accuracy": NUMBER, "majority": NUMBER, "auroc": NUMBER, "log_loss": NUMBER, "*": NUMBER}
_OUTCOMES = {"count": NUMBER, "*": NUMBER}
_PERSONAL = {
    "part": str, "guard": bool, "rows": str, "spread": NUMBER, "stays": bool, "choices?": {"*": str}, "harmed?": (None, [str]),
    "tested?": [str], "missing?": {"*": str}, "differs?": [str], "differences?": {"*": {"tested": int, "features": list}},
    "untested?": str,
}  # fmt: skip
_EXPLAINED = {
    "explainer?": str,
    "training?": {"*": NUMBER},
    "deployed?": {"*": NUMBER},
    "top?": [{"feature": str, "share": NUMBER}],
}
_SUMMARY = {
    "name?": str, "method": str, "model?": str, "data": str, "labels?": {"*": {"*": str}}, "seed?": int, "threshold": NUMBER,
    "sites": {"*": int},
    "final": {**_FIGURES, "auroc_low?": NUMBER}, "validation?": {"*": NUMBER}, "training?": {"*": NUMBER},
    "generalisation_gap": {"log_loss": NUMBER, "*": NUMBER},
    "per_site": {"*": _FIGURES}, "worst_site?": {"*": (str, *NUMBER)}, "below_majority?": list, "subgroups?": dict,
    "fairness?": {"columns": dict, "gaps": [dict], "comparisons": int, "*": (str, *NUMBER, dict, list)},
    "decision_curve?": {"*": [NUMBER]}, "reliability?": ({}, {"of?": str, "edges": [NUMBER], "*": [NUMBER]}),
    "tasks": {"*": {"*": NUMBER}}, "attacks": dict,
    "finetuned": ({}, {"epochs": int, "final": _FIGURES, "per_site": {"*": _FIGURES}}),
    "personal?": ({}, {**_PERSONAL, "final?": _FIGURES, "per_site?": {"*": _FIGURES}}),
    "models": {"*": str}, "shortcut?": dict, "rows": {"*": {"train": int, "val": int, "test": int}},
    "privacy": {"statement": str, "epsilon?": NUMBER, "delta?": NUMBER}, "rounds": int, "stopped": str,
    "temperature?": NUMBER, "parameters": int, "inputs": [int], "classes?": [str],
    "event?": (None, {}, {"class": str, "other": str, "label": (str, None), "share": NUMBER, "by": str}),
    "cost": {"bytes_down": float, "bytes_up": float, "evaluation_bytes": float, "messages": float, "seconds": float,
             "virtual_seconds": float, "*": (str, *NUMBER, dict, list)},
    "warnings": [str], "notes": {"*": [str]}, "reference?": dict, "explanation": _EXPLAINED, "cohorts?": dict,
    "withdrawal?": {"site": str, "repeats": {"folder": str}, "setup": str, "remains": [str]},
    "environment": {"python": str, "packages": {"*": (str, None)}, "processor": str, "cores": int, "memory_gib": NUMBER},
}  # fmt: skip
"""Keys of summary.json that commands and pages use; optional keys end in "?"."""

_OUTCOME_SUMMARY = _SUMMARY | {
    "final": _OUTCOMES, "generalisation_gap": {"*": NUMBER}, "per_site": {"*": _OUTCOMES},
    "finetuned": ({}, {"epochs": int, "final": _OUTCOMES, "per_site": {"*": _OUTCOMES}}),
    "personal?": ({}, {**_PERSONAL, "final?": _OUTCOMES, "per_site?": {"*": _OUTCOMES}}),
    "threshold": (None,), "task": str, "outcome": {"task": str, "label": str, "duration": (str, None), "*": (str, *NUMBER, None)},
}  # fmt: skip
"""The same of a run whose task is not classification."""

_STATISTIC_SUMMARY = {
    key: kind for key, kind in _SUMMARY.items()
    if key not in ("threshold", "generalisation_gap", "tasks", "attacks", "finetuned", "parameters", "explanation")
} | {
    "final": {"*": NUMBER}, "per_site": {"*": {"*": NUMBER}},
    "statistic": {"exchanges": {"*": NUMBER}, "sites": [str], "rows": int},
}  # fmt: skip
"""The same of a run whose result is a table or a curve, without a model."""


def kind_of(name: str, values: object) -> Any:
    """Return the keys of a JSON file of a run folder, which depend on the task of the run, and on whether it has a model."""
    if name != "summary.json" or not isinstance(values, Mapping):
        return KINDS.get(name, dict)
    if STATISTIC in values:
        return _STATISTIC_SUMMARY
    return _OUTCOME_SUMMARY if values.get("task", CLASSIFICATION) != CLASSIFICATION else _SUMMARY



_DECISION = {
    "weights": {"*": NUMBER}, "signals": {"*": {"*": (*NUMBER, str, list)}}, "why": str, "asked": [str],
    "missing": {"*": str}, "shares?": dict, "stages?": [dict], "releases?": list,
}  # fmt: skip
_ROUND = {
    "round": int, "decision": _DECISION, "val?": {"*": NUMBER}, "test?": {"*": NUMBER}, "sites?": {"*": {"*": NUMBER}},
    "explanation?": dict, "virtual_seconds?": NUMBER, "seconds?": NUMBER,
}  # fmt: skip
_SKETCHED = {
    "sketches?": {"*": [NUMBER]}, "error?": {"*": [NUMBER]}, "consensus": [NUMBER], "overall?": [NUMBER],
    "to_consensus?": {"*": NUMBER}, "rows?": {"*": int}, "flat?": list, "pairs?": (None, dict), "drift?": NUMBER,
}  # fmt: skip
_EXPLANATIONS = {
    "sketch": {"explainer": str},
    "features": [str],
    "rounds": [{"round": int, "training?": _SKETCHED, "deployed?": _SKETCHED}],
    "final?": ({}, _SKETCHED),
}
_COLUMNS = {"columns": [{"name": str, "kind": str, "why": str, "order": [str]}]}
KINDS: dict[str, Any] = {
    "summary.json": _SUMMARY,
    "round_logs.json": {"rounds": [_ROUND]},
    "explanations.json": _EXPLANATIONS,
    "schema.json": _COLUMNS,
}
"""Keys of the JSON files of a run folder, for `arrays.misfit`."""


STATISTIC = "statistic"
"""Key of summary.json that only a run without a model has."""


class InUse(BadInput):
    """Another process is making a run in this folder."""


class RunFolder:
    """Paths and writers of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._claim: int | None = None

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def rounds(self) -> Path:
        return self.path / "round_logs.json"

    @property
    def explanations(self) -> Path:
        return self.path / "explanations.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def at_sites(self) -> Path:
        """The folder of files that real sites would keep: heat maps of their own images."""
        return self.path / "at_sites"

    @property
    def experiment(self) -> Path:
        return self.path / "experiment.toml"

    def create(self) -> None:
        """Make the folder and lock it for this process; a folder with files in it is never overwritten.

        Raises:
            InUse: Another process is making a run in it.
            BadInput: The folder is not empty, or cannot be made.
        """
        try:
            if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
                raise BadInput(f"{self.path} exists and is no folder: choose another --out", code="folder-in-the-way")
            new = not self.path.exists()
            self._claim = self._claimed()
            try:
                if not self._begun():
                    self._clear()  # left by a process that died before it wrote the plan
                if any(self.path.iterdir()):
                    raise BadInput(
                        f"{self.path} exists and is not empty: choose another --out, or `rounds resume {self.path}`",
                        code="folder-in-use",
                    )
                self.checkpoint.mkdir()
            except BaseException:
                if new:
                    self.path.rmdir()
                self.release()
                raise
        except OSError as e:
            raise BadInput(
                f"cannot make the run folder {self.path}: {e.strerror or e}; choose another --out",
                code="cannot-make-folder",
            ) from None

    def _claimed(self) -> int:
        """Lock the folder and return its handle; the lock ends with this process."""
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine, on_disk = os.fstat(handle), self.path.stat()
                if (mine.st_dev, mine.st_ino) == (on_disk.st_dev, on_disk.st_ino):
                    return handle
            except BlockingIOError:
                os.close(handle)
                raise InUse(
                    f"{self.path} is being run by another process: choose another --out, or wait for it"
                ) from None
            except FileNotFoundError:
                pass
            except OSError as e:
                if e.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                    os.close(handle)
                    raise
                return handle  # this file system (NFS) has no locks on folders: the checkpoint has its own
            os.close(handle)  # the process that had locked the folder removed it

    def release(self) -> None:
        """Unlock the folder."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def _begun(self) -> bool:
        """Tell whether a run has written its plan here, or another file is in the folder."""
        if not self.checkpoint.is_dir():
            return any(self.path.iterdir())
        inside = {p for p in self.path.rglob("*") if p.name not in ("lock", STAMP)}
        return bool(inside - {self.checkpoint, *self._first()})

    def _first(self) -> list[Path]:
        """List the first files of a run, complete or partly written."""
        return [path for n in _FIRST for path in (self.path / n, *self.path.glob(f".{n}*.part"))]

    def discard(self) -> None:
        """Remove the folder where no round is finished; a folder with a finished round is never removed."""
        self._clear()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _clear(self) -> None:
        if (self.checkpoint / "state.safetensors").exists() or not self.checkpoint.is_dir():
            return
        for path in [*self.checkpoint.iterdir(), *self._first(), *(self.path / n for n in _OWN)]:
            path.unlink(missing_ok=True)
        self.checkpoint.rmdir()

    def sweep(self) -> None:
        """Remove partly written files of a killed process; the caller has locked the run."""
        for folder in (self.path, self.checkpoint):
            for part in folder.glob(".*.part"):
                if not part.is_dir() or part.is_symlink():
                    part.unlink(missing_ok=True)

    def refuse_without_capability(self) -> None:
        """Raise where the run has a method or a model of a capability that is not installed: nothing could read its records.

        A folder whose plan cannot be read is not refused here: what reads the plan says what is wrong with it.
        """
        try:
            plan = Checkpoint(self.checkpoint).plan()
            method, model = str(plan["method"]["name"]), str(plan["model"]["name"])
        except (BadInput, LookupError, TypeError):
            return
        if method in METHODS or is_path(method):
            if model in MODELS or is_path(model):
                return
            what = f"model '{model}'"
        else:
            what = f"method '{method}'"
        try:
            recorded = [str(name) for name in self.read(self.path / ENVIRONMENT)["capabilities"]]
        except (BadInput, LookupError, TypeError):
            recorded = []
        missing = [name for name in recorded if name not in {c.name for c in capabilities()}]
        of = f"the capability '{missing[0]:.40}', which" if missing else "a capability that"
        raise not_installed(f"{self.path} is a run with {what} of {of} is not installed here: read it where it is, or install it")

    def write_experiment(self, values: Mapping[str, Any], schema: Schema | None, assumed: Sequence[str] = ()) -> None:
        """Write experiment.toml, environment.json and schema.json; `assumed`: sentences on how the table was read."""
        head = "# The whole experiment as it was run. `rounds run experiment.toml` repeats it to the bit."
        write_atomic(self.experiment, toml.dumps(values, head=head).encode())
        used = names_of(methods=values["method"]["name"], models=values["model"]["name"])
        write_atomic(self.path / ENVIRONMENT, _json({**environment(), "capabilities": used}), durable=False)
        if schema is not None:
            read = {"assumed": list(assumed)} if assumed else {}
            values = {"schema": SCHEMA, **schema.to_dict(), **read}
            write_atomic(self.path / "schema.json", _json(values), durable=False)

    def write_percentiles(self, population: Population | None) -> None:
        """Write the distribution of each column over all sites, where it may be stored; a resumed run has it already."""
        if population is not None:
            values = {"schema": SCHEMA, **population.to_dict()}
            write_atomic(self.path / PERCENTILES, _json(values, lines=False), durable=False)

    def own_model(self, number: int) -> Path:
        """Return the path of one of several models."""
        return self.path / "models" / f"{number + 1}.safetensors"

    def write_model(
        self,
        path: Path,
        model: Model,
        theta: Array,
        spec: Mapping[str, Any],
        encoding: AnyEncoding,
        schema: Schema | None,
        calibration: Calibration | None,
        threshold: float,
        mitigation: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a final model with all that is needed to score a patient."""
        if path.parent != self.path:
            make_folder(path.parent)
        meta = {
            "schema": SCHEMA,
            "spec": dict(spec),
            "encoding": encoding.to_dict(),
            "columns": None if schema is None else _without_reasons(schema).to_dict(),
            "temperature": None if calibration is None else calibration.temperature,
            "threshold": threshold,
        }
        if calibration is not None and calibration.platt is not None:
            meta["platt"] = calibration.platt
        if mitigation:
            meta["mitigation"] = dict(mitigation)
        save(path, {n: np.ascontiguousarray(a) for n, a in model.layout.views(theta).items()}, meta)

    def write_rounds(self, records: Sequence[RoundRecord]) -> None:
        write_atomic(self.rounds, _json({"schema": SCHEMA, "rounds": records}, lines=False), durable=False)

    def write_explanations(self, explanations: Mapping[str, Any]) -> None:
        write_atomic(self.explanations, _json({"schema": SCHEMA, **plain(explanations)}, lines=False), durable=False)

    def summary_text(self, summary: Mapping[str, Any]) -> bytes:
        """Return the bytes of summary.json; they are hashed before they are written."""
        where = environment()
        return _json({"schema": SCHEMA, **summary, "environment": where}, lines=len(summary["per_site"]) < _MANY)

    def write_report(self, summary: bytes, ledger: LedgerState | None) -> None:
        """Write report.html from the other files and the summary; it contains their hashes."""
        record = RunSummary.from_dict(json.loads(summary))
        reasons = self.read(self.explanations) if self.explanations.exists() else None
        inputs = {"summary.json": hashlib.sha256(summary).hexdigest(), **self.input_hashes()}
        carried = Provenance(ledger, inputs, own_version())
        rounds = [RoundRecord.from_dict(values) for values in self.read(self.rounds)["rounds"]]
        model = readable_file(self.model)
        page = report_page(record, rounds, record.environment, reasons, model=model, provenance=carried)
        write_atomic(self.report, page.encode(), durable=False)

    def input_hashes(self) -> dict[str, str]:
        """Hash the files besides summary.json that a report is drawn from.

        Returns:
            SHA-256 by file name.

        Raises:
            BadInput: One of them is no plain file, or larger than such a file may be.
        """
        sizes = {self.rounds: LARGEST_JSON, self.explanations: LARGEST_JSON, self.model: LARGEST}
        files = {file: largest for file, largest in sizes.items() if file.is_file()}
        return {f.name: hashlib.sha256(read_file(f, largest=most)).hexdigest() for f, most in files.items()}

    def write_summary(self, summary: bytes) -> None:
        """Write summary.json, which marks the run as finished; it is the last file."""
        write_atomic(self.summary, summary)

    def read(self, path: Path) -> Any:
        """Read a JSON file of this folder.

        Raises:
            BadInput: The file is missing, is not JSON, is of another format, or lacks a key; the sentence names the key.
        """
        values = read_json(path)
        if isinstance(values, dict) and values.get("schema", SCHEMA) != SCHEMA:
            raise BadInput(
                f"{path} was written by another version of Grand Rounds: read it with that version", code="other-version"
            )
        fault = misfit(values, kind_of(path.name, values)) or (
            _site_without_scores(values) if path == self.summary else ""
        )
        if fault:
            raise BadInput(
                f"{path} is damaged: {fault} is missing or of the wrong kind; run the experiment again",
                code="damaged-file",
            )
        return values


def _site_without_scores(summary: Mapping[str, Any]) -> str:
    """Return the key of a fine-tuned site without scores of the common model; "" where every site has them."""
    tuned = summary.get("finetuned", {}).get("per_site", {})
    return next((f"per_site.{site}" for site in tuned if site not in summary["per_site"]), "")


def _without_reasons(schema: Schema) -> Schema:
    """Return the schema without the reasons for each kind: the bytes of a model do not depend on them."""
    return replace(schema, columns=tuple(replace(c, why="") for c in schema.columns))


def _json(values: Any, *, lines: bool = True) -> bytes:
    """Return JSON text; with `lines` it has line breaks, which takes many times longer."""
    return json.dumps(values, indent=1 if lines else None, allow_nan=False).encode()
