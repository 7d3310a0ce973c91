"""Attack a finished run to infer membership: figures, bounds by epsilon, and sentences. It needs the run's data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np

from grandrounds.analysis.membership.shadows import Ended, Target, find_target, run_shadows
from grandrounds.core.arrays import NUMBER, misfit, read_file, read_json, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.sources import DATA_FRAME
from grandrounds.methods.baselines import POOL
from grandrounds.privacy.attacks.membership import FPR, Attack, judged, most_area, most_hits, offline, online
from grandrounds.privacy.in_words import plain

if TYPE_CHECKING:
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows

SCHEMA = 1
FILE = "attacks.json"
THRESHOLD = "loss threshold"
OFFLINE = "LiRA, offline"
ONLINE = "LiRA, online"
_FEW = 100
_ATTACK_SHAPE = {
    "attack": str,
    "members": int,
    "nonmembers": int,
    "auc": float,
    "low": NUMBER,
    "high": NUMBER,
    "tpr": float,
}
_BOUND_SHAPE = {"epsilon": float, "delta": float, "auc": float, "tpr": float, "broken": bool}
_FILE_SHAPE = {
    "model": str,
    "shadows": int,
    "fpr": float,
    "attacks": [_ATTACK_SHAPE],
    "separate": bool,
    "sites": {"*": _ATTACK_SHAPE},
}
_FILE_SHAPE |= {"bound": (None, _BOUND_SHAPE), "sentences": [str], "notes": [str]}
_COLUMN_SHAPE = {
    **{"column": str, "kind": str, "values": int, "members": int, "nonmembers": int, "accuracy_members": float},
    **{"accuracy_nonmembers": float, "advantage": float, "low": float, "high": float, "low_all": float, "high_all": float},
    **{"marginal": float, "imputation": float},
}
_STATISTIC_SHAPE = {
    **{"kind": str, "statistic": str, "attacked": bool, "attack": str, "finding": str, "exposed": (None, int)},
    **{"total": (None, int), "share": NUMBER, "low": NUMBER, "high": NUMBER, "unit": str},
}
_UPDATE_SHAPE = {"rows": int, "error": float, "rebuilt": float, "low": float, "high": float, "tested": int, "own": bool}
_PROTOTYPES_SHAPE = {
    "attack": (None, _ATTACK_SHAPE),
    "classes": {"*": {"probability": float, "values": {"*": str}}},
    "sentences": [str],
}
_FILE_SHAPE |= {
    "tried": [str],
    "not_tried": [str],
    "attribute": (
        None,
        {
            **{"confidence": float, "worst": (None, str), "leaking": [str], "columns": [_COLUMN_SHAPE]},
            **{"sentences": [str], "notes": [str]},
        },
    ),
    "reconstruction": (
        None,
        {
            **{"statistics": [_STATISTIC_SHAPE], "updates": [_UPDATE_SHAPE], "protection": str},
            **{"prototypes": (None, _PROTOTYPES_SHAPE), "sentences": [str], "notes": [str]},
        },
    ),
}
_SURE = 1.7
"""Half widths of a 95% interval that make 3.3 deviations, since the best of three attacks is tested."""


class AttackEntry(TypedDict):
    """One attack in attacks.json."""

    attack: str
    members: int
    nonmembers: int
    auc: float
    low: float
    high: float
    tpr: float


class BoundEntry(TypedDict):
    """The bound that epsilon sets on any attack, in attacks.json."""

    epsilon: float
    delta: float
    auc: float
    tpr: float
    broken: bool


class AttacksFile(TypedDict):
    """The content of attacks.json; `capabilities/attacks/` adds the keys from `tried` on."""

    schema: int
    model: str
    shadows: int
    fpr: float
    attacks: list[AttackEntry]
    separate: bool
    sites: dict[str, AttackEntry]
    bound: BoundEntry | None
    sentences: list[str]
    notes: list[str]
    tried: list[str]
    not_tried: list[str]
    attribute: dict[str, Any] | None
    reconstruction: dict[str, Any] | None


@dataclass(frozen=True)
class Promise:
    """The bound that a run's epsilon sets on any attack on one patient."""

    epsilon: float
    delta: float
    max_auc: float
    max_tpr: float
    unit: str = "patient"

    @classmethod
    def from_statement(cls, privacy: Mapping[str, Any]) -> Promise | None:
        """Read the bound from a privacy statement.

        Returns:
            None without a finite epsilon per patient; an epsilon per site gives no direct bound for patients.
        """
        epsilon = privacy.get("epsilon")
        unit = privacy.get("unit") or "patient"
        if epsilon is None or not np.isfinite(epsilon) or unit not in ("patient", "row"):
            return None
        delta = float(privacy.get("delta") or 0.0)
        return cls(float(epsilon), delta, most_area(epsilon, delta), most_hits(epsilon, delta), unit)


@dataclass(frozen=True)
class Membership:
    """Attacks on all sites' rows together, the loss threshold by site, and what bounds them."""

    attacks: tuple[Attack, ...]
    sites: Mapping[str, Attack]
    separate: bool  # whether sites use models of their own
    shadows: int
    model: str  # sha256 of what was attacked
    promise: Promise | None = None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Attack:
        """The attack with the largest AUC."""
        return max(self.attacks, key=lambda a: a.auc)

    @property
    def broken(self) -> bool:
        """True if an attack did better than epsilon allows, by far more than its 95% interval explains."""
        p = self.promise
        return p is not None and any(a.auc - _SURE * (a.auc - a.low) > p.max_auc for a in self.attacks)

    def sentences(self) -> list[str]:
        """Explain the results in sentences."""
        best = self.best
        if best.low <= 0.5:
            lines = [
                f"An AUC of 0.5 is guessing, and no attack did clearly better (best {best.auc:.3f}): "
                "these attacks cannot identify training patients."
            ]
        else:
            lines = [
                f"An AUC of 0.5 is guessing. Shown one patient who was trained on and one who was not, the best attack "
                f"({best.attack}) picks the right one {best.auc:.0%} of the time; at {FPR:.0%} false alarms it finds "
                f"{best.tpr:.1%} of those trained on ({FPR:.0%} is guessing)."
            ]
        p = self.promise
        if p is None:
            lines.append("This run has no epsilon per patient, so a stronger attack may find more.")
        else:
            lines.append(
                f"Epsilon = {p.epsilon:.3g} for each {p.unit} (delta = {plain(p.delta)}) limits any attack on covered data to "
                f"an AUC of {p.max_auc:.3f} and to {p.max_tpr:.1%} of members at {FPR:.0%} false alarms: "
                "TPR <= e^epsilon FPR + delta."
            )
        if self.broken:
            lines.append("An attack did better than epsilon allows: the guarantee does not hold.")
        return lines

    def merge_earlier(self, run: Run) -> Membership:
        """Add an earlier attack's shadow runs on the same models, where this one made none."""
        try:
            earlier = None if self.shadows else read_attacks(run)
            if earlier is None or not earlier["shadows"]:
                return self
            every = {a["attack"]: Attack.from_dict(a) for a in earlier["attacks"]} | {a.attack: a for a in self.attacks}
            shadows, notes = int(earlier["shadows"]), tuple(earlier["notes"])
        except (BadInput, LookupError, TypeError, ValueError):
            return self  # damaged: there is nothing to keep
        note = f"LiRA's figures are those of an earlier attack with {shadows} shadow runs"
        notes = tuple(dict.fromkeys((*self.notes, *notes, note)))
        return replace(self, attacks=tuple(every.values()), shadows=shadows, notes=notes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], promise: Promise | None) -> Membership:
        """Read the membership attacks of attacks.json; the bound is that of the run."""
        return cls(
            attacks=tuple(Attack.from_dict(a) for a in values["attacks"]),
            sites={name: Attack.from_dict(a) for name, a in values["sites"].items()},
            separate=bool(values["separate"]),
            shadows=int(values["shadows"]),
            model=str(values["model"]),
            promise=promise,
            notes=tuple(values["notes"]),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the content of attacks.json."""
        p = self.promise
        return {
            "schema": SCHEMA,
            "model": self.model,
            "shadows": self.shadows,
            "fpr": FPR,
            "attacks": [a.to_dict() for a in self.attacks],
            "separate": self.separate,
            "sites": {name: a.to_dict() for name, a in self.sites.items()},
            "bound": None
            if p is None
            else {"epsilon": p.epsilon, "delta": p.delta, "auc": p.max_auc, "tpr": p.max_tpr, "broken": self.broken},
            "sentences": self.sentences(),
            "notes": list(self.notes),
        }


def attack_run(
    run: Run,
    *,
    shadows: int = 0,
    jobs: int = 1,
    data: Any = None,
    ended: Ended = lambda name: None,
    run_rows: RunRows | None = None,
) -> Membership:
    """Attack the models in use of a finished run.

    The loss threshold costs a pass over the rows; LiRA needs shadow runs. Both forms of LiRA are evaluated where rows were
    trained on in some shadow runs.

    Args:
        run: A finished run.
        shadows: How many shadow runs to make.
        jobs: How many of them run at a time.
        data: The run's own rows, where they came from memory.
        ended: Called with the name of each shadow run that ended.
        run_rows: The run's rows, if they were read already.

    Raises:
        BadInput: The run is not finished, or has no rows to attack.
        RunFailed: Too few shadow runs ended.
    """
    from grandrounds.runs.run_rows import RunRows as _RunRows

    if not run.finished:
        raise BadInput(
            f"{run.folder} is not finished, so there is no model to attack: `rounds resume {run.folder}`",
            code="run-not-finished",
        )
    if run.summary.task != CLASSIFICATION:
        raise BadInput(
            f"{run.folder} predicts no class ({run.summary.task}): membership attacks compare probabilities of classes",
            code="not-classification",
        )
    if run.plan["data"]["table"] == DATA_FRAME and data is None and run_rows is None:
        raise BadInput(
            f"{run.folder} was made from a {DATA_FRAME} in Python: attack it there, with attack_run(run, data=frame)",
            code="rows-not-available",
        )
    run_rows = run_rows or _RunRows.read(run, data)
    target = find_target(run, run_rows)
    attacks = [judged(THRESHOLD, target.confidence, target.member)]
    notes = list(target.notes)
    if shadows:
        shadow_models = run_shadows(run, run_rows, target, count=shadows, jobs=jobs, ended=ended)
        scores = (target.confidence, shadow_models.confidence, shadow_models.inside)
        attacks += [judged(OFFLINE, offline(*scores), target.member), judged(ONLINE, online(*scores), target.member)]
        notes += [f"{name} did not end and is left out: {why}" for name, why in shadow_models.failed.items()]
    if attacks[0].nonmembers < _FEW:
        notes.append(
            f"with {attacks[0].nonmembers} non-members, {FPR:.0%} false alarms is less than one of them: the TPR "
            "there is imprecise"
        )
    return Membership(
        attacks=tuple(attacks),
        sites=_attack_sites(target),
        separate=bool(run.summary["models"]),
        shadows=shadows,
        model=model_hash(run),
        promise=Promise.from_statement(run.summary["privacy"]),
        notes=tuple(notes),
    )


def _attack_sites(target: Target) -> dict[str, Attack]:
    """Attack each site's own rows by the loss threshold; none where rows are pooled and so no site's own."""
    out = {}
    for name in dict.fromkeys(target.site.tolist()):
        mine = target.site == name
        if name != POOL and target.member[mine].any() and not target.member[mine].all():
            out[name] = judged(THRESHOLD, target.confidence[mine], target.member[mine])
    return out


def model_hash(run: Run) -> str:
    """Hash all model files of a run: an attack's findings hold for these and no others. Without a model it is the summary."""
    digest = hashlib.sha256()
    if "statistic" in run.summary:  # a table or a curve, without a model
        return hashlib.sha256(read_file(run.folder / "summary.json")).hexdigest()
    for name in ("model.safetensors", *sorted(set(run.summary["models"].values()))):
        digest.update(hashlib.sha256(read_file(run.model_file(name))).digest())
    return digest.hexdigest()


def write_attacks(folder: Path, attacks: Mapping[str, object]) -> Path:
    """Write attacks.json to a run folder; returns its path."""
    path = folder / FILE
    try:
        write_atomic(path, json.dumps(attacks, indent=1, allow_nan=False).encode())
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None
    return path


def read_attacks(run: Run) -> AttacksFile | None:
    """Read attacks.json, if the run was attacked and its models are still the same.

    Raises:
        BadInput: The file is damaged.
    """
    path = run.folder / FILE
    if not path.is_symlink() and not path.exists():
        return None
    content = read_json(path)
    fault = misfit(content, _FILE_SHAPE)
    if fault:
        raise BadInput(
            f"{path} is damaged ({fault}): make it again with `rounds attack {run.folder}`", code="damaged-file"
        )
    return cast(AttacksFile, dict(content)) if content["model"] == model_hash(run) else None
