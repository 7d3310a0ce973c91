"""Store the readings of each run in readings.json of a study's folder, so that none is run again.

It is all that must come back from another machine; the run folders may stay there. Runs that studies of one system have in
common, as a table and its figures do, are run by whoever comes first: the others read the folders that are still there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import use_earlier_names
from grandrounds.experiment.sections import Scan
from grandrounds.methods.exact.options import CardOptions, ExactOptions, GAMOptions, TreesOptions
from grandrounds.methods.personal.options import PersonalOptions
from grandrounds.methods.quality.options import QualityOptions
from grandrounds.methods.watch.options import WatchOptions
from grandrounds_studies.results import FIRST, MEASURED, Reading
from grandrounds_studies.study import Cell, Study

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

READINGS = "readings.json"
RUNS = "runs"
SCHEMA = 1
ADDED: dict[tuple[str, ...], Any] = {
    ("method", "veil", "percentiles"): 0.0,
    ("method", "robust", "guard"): 0.0,
    ("method", "weigh", "own_halves"): False,
    ("privacy", "sites"): 0,
    ("privacy", "unit"): ("auto", "row"),
    ("method", "preset"): "default",
    ("method", "weigh", "least_share"): 0.5,
    ("data", "decimal"): "auto",
    ("data", "text_encoding"): "auto",
    ("data", "separator"): "auto",
    ("data", "dates"): "auto",
    ("data", "part"): None,
    ("data", "sheet"): None,
    ("data", "censored"): "value",
    ("data", "features"): [],
    ("data", "names"): {},
    ("data", "units"): {},
    ("data", "coding"): "levels",
    ("data", "cohort"): None,
    ("data", "complete"): False,
    ("data", "products"): [],
    ("data", "scan"): Scan().model_dump(mode="json"),
    ("data", "task"): ("auto", "classification"),
    ("data", "duration"): None,
    ("method", "exact"): ExactOptions().model_dump(mode="json"),
    ("method", "gam"): GAMOptions().model_dump(mode="json"),
    ("method", "trees"): TreesOptions().model_dump(mode="json"),
    ("method", "card"): CardOptions().model_dump(mode="json"),
    ("method", "watch"): WatchOptions().model_dump(mode="json"),
    ("method", "quality"): QualityOptions().model_dump(mode="json"),
    ("personal",): PersonalOptions().model_dump(mode="json"),
    ("split", "seed"): None,
    ("split", "without"): [],
    ("split", "keep_setup"): False,
    ("engine", "keep_states"): 256,
    ("train", "continue_epoch"): False,
    ("train", "objective"): None,
    ("train", "objective_options"): {},
    ("evaluation", "subgroups"): [],
    ("evaluation", "bands"): {},
    ("evaluation", "least"): 5,
    ("evaluation", "mitigation"): "none",
}
"""Settings that came in after readings were kept, with the value (or values) at which a plan asks for what it
did without them."""
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"]
"""Words of version 0.1 for a missing value."""


class Kept:
    """readings.json of a folder: a run's name -> a digest of its plan, its figures, what else was kept, its machine.

    All of a folder are of one version (`measured`).
    """

    def __init__(self, folder: Path, runs: dict[str, dict[str, Any]], measured: str = MEASURED) -> None:
        self.folder, self._runs, self.measured = folder, runs, measured

    @classmethod
    def read(cls, folder: Path) -> Kept:
        """Read the folder's readings; a missing folder is created."""
        path = folder / READINGS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = json.loads(path.read_text()) if path.exists() else {"runs": {}}
            measured = str(held.get("measured", FIRST)) if held["runs"] else MEASURED
            return cls(folder, {name: {**one} for name, one in held["runs"].items()}, measured)
        except OSError as e:
            raise BadInput(f"cannot use {folder}: {e.strerror or e}; choose another --out") from None
        except (ValueError, KeyError, AttributeError, TypeError):
            raise BadInput(f"{path} is damaged: remove it, finished runs are read again") from None

    def has(self, name: str, plan: Mapping[str, Any]) -> bool:
        """Return True if the run of this plan has a reading; a reading of another plan under its name is an error."""
        held = self._runs.get(name)
        same = first_digest if self.measured == FIRST else digest
        if held is not None and held.get("plan") != same(plan):
            raise BadInput(
                f"{self.folder / READINGS} has {name} of another experiment, or of another version's: "
                "choose another --out, or remove that folder"
            )
        return held is not None

    def reading(self, study: Study, cell: Cell, plan: Mapping[str, Any]) -> Reading | None:
        """Return the reading of a run; None if there is none, or an earlier version read fewer measures."""
        if not self.has(cell.name, plan):
            return None
        held = self._runs[cell.name]
        figures = held.get("figures", {})
        if not {m.name for m in study.measures} <= set(figures):
            return None
        values = {k: float("nan") if v is None else float(v) for k, v in figures.items()}
        return Reading(values, held.get("kept", {}), held.get("machine", {}))

    def refuse_more(self, missing: Sequence[str]) -> None:
        """Refuse to run what is missing beside readings of another version.

        Args:
            missing: names of the runs that are not kept.

        Raises:
            BadInput: runs are missing, and the kept ones are of another version.
        """
        if missing and self.measured != MEASURED:
            count = "1 run is" if len(missing) == 1 else f"{len(missing)} runs are"
            raise BadInput(
                f"{self.folder / READINGS} was measured with {self.measured}, {count} missing ({missing[0]} ...), and the "
                f"numbers of {self.measured} and {MEASURED} are not mixed: run the study in another folder (--out), or remove "
                "that folder"
            )

    def add(self, name: str, plan: Mapping[str, Any], reading: Reading) -> None:
        """Keep a run's reading; the file is whole at any time."""
        from grandrounds.core.arrays import plain

        held = {"figures": reading.figures, "kept": reading.kept, "machine": reading.machine}
        self._runs[name] = plain({"plan": digest(plan), "same": nameless(plan), **held})
        text = json.dumps({"schema": SCHEMA, "measured": self.measured, "runs": self._runs}, indent=1)
        try:
            write_atomic(self.folder / READINGS, text.encode(), durable=False)
        except OSError as e:
            raise RunFailed(f"cannot write {self.folder / READINGS}: {e.strerror or e}") from None


def digest(plan: Mapping[str, Any]) -> str:
    """Which experiment a plan is of: all of it but what a run fills in about its data."""
    data = {k: v for k, v in plan["data"].items() if k not in ("kinds", "sha256")}
    known = use_earlier_names({**plan, "data": data})
    for path, usual in ADDED.items():
        known = _without(known, path, usual)
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def first_digest(plan: Mapping[str, Any]) -> str:
    """The digest that version 0.1 gave to the same experiment as it was then: its event was the last class, and SSE-AGG's one
    preset is "drift" of today."""
    from grandrounds.data.readers import DEFAULT_MISSING

    data = {k: v for k, v in plan["data"].items() if k != "event"}
    if list(data["missing"]) == list(DEFAULT_MISSING):
        data["missing"] = MISSING
    method = dict(plan["method"])
    if method["preset"] == "drift":
        method["preset"] = "default"
    method["weigh"] = {k: v for k, v in method["weigh"].items() if k != "own_halves"}
    return digest({**plan, "data": data, "method": method})


def _without(values: Mapping[str, Any], path: tuple[str, ...], usual: Any) -> dict[str, Any]:
    """The same values without the setting at this path, where it is as usual."""
    first, *rest = path
    if first not in values:
        return dict(values)
    if rest:
        return {**values, first: _without(values[first], tuple(rest), usual)}
    known = usual if isinstance(usual, tuple) else (usual,)
    return {k: v for k, v in values.items() if k != first or v not in known}


def nameless(plan: Mapping[str, Any]) -> str:
    """The digest of a plan by whatever name: the studies of a table and of its figures name the same run differently."""
    return digest({**plan, "name": ""})


def finished_beside(folder: Path) -> dict[str, Run]:
    """`nameless` digest -> finished run, of all studies whose folders lie beside this one."""
    from grandrounds.runs.run import Run

    found: dict[str, Run] = {}
    for file in sorted(folder.parent.glob(f"*/{READINGS}")):
        if file.parent == folder:
            continue
        try:
            read = json.loads(file.read_text())
            if read.get("measured", FIRST) != MEASURED:
                continue
            held = {name: one["same"] for name, one in read["runs"].items() if "same" in one}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            continue  # another study's damage is reported when that study is run
        for name, same in held.items():
            run = file.parent / RUNS / name
            if (run / "summary.json").exists():
                found[same] = Run(run)
    return found
