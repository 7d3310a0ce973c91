"""Membership attacks on a finished run, beside its data: what they found, in figures and in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.membership.shadows import Ended, Target, find_target, run_shadows
from grandrounds.core.arrays import NUMBER, misfit, read_file, read_json, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.data.loading import DATA_FRAME
from grandrounds.methods.baselines import POOL
from grandrounds.privacy.attacks.membership import FPR, Attack, judged, most_area, most_hits, offline, online
from grandrounds.privacy.in_words import plain

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

SCHEMA = 1
FILE = "attacks.json"
THRESHOLD = "loss threshold"
OFFLINE = "LiRA, offline"
ONLINE = "LiRA, online"
_FEW = 100
_FOUND = {"attack": str, "members": int, "nonmembers": int, "auc": float, "low": NUMBER, "high": NUMBER, "tpr": float}
_BOUND = {"epsilon": float, "delta": float, "auc": float, "tpr": float, "broken": bool}
_WHOLE = {"model": str, "shadows": int, "fpr": float, "attacks": [_FOUND], "separate": bool, "sites": {"*": _FOUND}}
_WHOLE |= {"bound": (None, _BOUND), "sentences": [str], "notes": [str]}
_SURE = 1.7
"""Half widths of a 95% interval that make 3.3 deviations: a promise is not called broken by the best of three attacks."""


@dataclass(frozen=True)
class Promise:
    """What a run's epsilon allows any attack on one patient at most."""

    epsilon: float
    delta: float
    area: float
    hits: float
    unit: str = "patient"

    @classmethod
    def of(cls, privacy: Mapping[str, Any]) -> Promise | None:
        """None where no finite epsilon was promised to patients; one of sites says nothing direct of their patients."""
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
        return max(self.attacks, key=lambda a: a.auc)

    @property
    def broken(self) -> bool:
        """Whether an attack did better than the promised epsilon allows, by far more than its 95% interval explains."""
        p = self.promise
        return p is not None and any(a.auc - _SURE * (a.auc - a.low) > p.area for a in self.attacks)

    def sentences(self) -> list[str]:
        """What the figures mean, in plain words."""
        best = self.best
        if best.low <= 0.5:
            said = [
                f"An AUC of 0.5 is guessing, and no attack did clearly better (best {best.auc:.3f}): "
                "these attacks cannot tell who was trained on."
            ]
        else:
            said = [
                f"An AUC of 0.5 is guessing. Shown one patient who was trained on and one who was not, the best attack "
                f"({best.attack}) picks the right one {best.auc:.0%} of the time; at {FPR:.0%} false alarms it finds "
                f"{best.tpr:.1%} of those trained on ({FPR:.0%} is guessing)."
            ]
        p = self.promise
        if p is None:
            said.append("No epsilon is promised to patients by this run, so a stronger attack may find more.")
        else:
            said.append(
                f"Epsilon = {p.epsilon:.3g} for each {p.unit} (delta = {plain(p.delta)}) holds any attack on what it covers to "
                f"an AUC of {p.area:.3f} and to {p.hits:.1%} of members at {FPR:.0%} false alarms: TPR <= e^epsilon FPR + delta."
            )
        if self.broken:
            said.append("An attack did better than epsilon allows: the promise does not hold as it stands.")
        return said

    def with_earlier(self, run: Run) -> Membership:
        """This, and what an earlier attack on the same models found with shadow runs, where this one made none."""
        try:
            told = None if self.shadows else read_attacks(run)
            if told is None or not told["shadows"]:
                return self
            every = {a["attack"]: Attack.from_dict(a) for a in told["attacks"]} | {a.attack: a for a in self.attacks}
            shadows, notes = int(told["shadows"]), tuple(told["notes"])
        except (BadInput, LookupError, TypeError, ValueError):
            return self  # damaged: there is nothing to keep
        said = f"LiRA's figures are those of an earlier attack with {shadows} shadow runs"
        notes = tuple(dict.fromkeys((*self.notes, *notes, said)))
        return replace(self, attacks=tuple(every.values()), shadows=shadows, notes=notes)

    def to_dict(self) -> dict[str, Any]:
        """attacks.json."""
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
            else {"epsilon": p.epsilon, "delta": p.delta, "auc": p.area, "tpr": p.hits, "broken": self.broken},
            "sentences": self.sentences(),
            "notes": list(self.notes),
        }


def attack_run(
    run: Run, *, shadows: int = 0, jobs: int = 1, data: Any = None, ended: Ended = lambda name: None
) -> Membership:
    """Attack the models in use of a finished run; `data` gives its rows again where they came from memory.

    The loss threshold costs a pass over the rows. With `shadows` that many further runs are made for LiRA, `jobs` at a
    time; `ended` is told of each. Both forms are judged where rows were trained on in some shadow runs.
    """
    from grandrounds.analysis.case.rows import RunRows

    if not run.finished:
        raise BadInput(
            f"{run.folder} is not finished, so there is no model to attack: `rounds resume {run.folder}`",
            code="run-not-finished",
        )
    if run.plan["data"]["table"] == DATA_FRAME and data is None:
        raise BadInput(
            f"{run.folder} was made from a {DATA_FRAME} in Python: attack it there, with attack_run(run, data=frame)",
            code="rows-not-available",
        )
    held = RunRows.read(run, data)
    target = find_target(run, held)
    found = [judged(THRESHOLD, target.confidence, target.member)]
    notes = list(target.notes)
    if shadows:
        made = run_shadows(run, held, target, count=shadows, jobs=jobs, ended=ended)
        told = (target.confidence, made.confidence, made.inside)
        found += [judged(OFFLINE, offline(*told), target.member), judged(ONLINE, online(*told), target.member)]
        notes += [f"{name} did not end and is left out: {why}" for name, why in made.failed.items()]
    if found[0].nonmembers < _FEW:
        notes.append(
            f"with {found[0].nonmembers} non-members, {FPR:.0%} false alarms is less than one of them: the share found "
            "there is a rough figure"
        )
    return Membership(
        attacks=tuple(found),
        sites=_by_site(target),
        separate=bool(run.summary["models"]),
        shadows=shadows,
        model=model_hash(run),
        promise=Promise.of(run.summary["privacy"]),
        notes=tuple(notes),
    )


def _by_site(target: Target) -> dict[str, Attack]:
    """The loss threshold on each site's own rows; none where rows are pooled and so no site's own."""
    out = {}
    for name in dict.fromkeys(target.site.tolist()):
        mine = target.site == name
        if name != POOL and target.member[mine].any() and not target.member[mine].all():
            out[name] = judged(THRESHOLD, target.confidence[mine], target.member[mine])
    return out


def model_hash(run: Run) -> str:
    """One hash of all model files of a run: what was found holds for these and no others."""
    digest = hashlib.sha256()
    for name in ("model.safetensors", *sorted(set(run.summary["models"].values()))):
        digest.update(hashlib.sha256(read_file(run.model_file(name))).digest())
    return digest.hexdigest()


def write_attacks(folder: Path, found: Mapping[str, Any]) -> Path:
    path = folder / FILE
    try:
        write_atomic(path, json.dumps(found, indent=1, allow_nan=False).encode())
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None
    return path


def read_attacks(run: Run) -> dict[str, Any] | None:
    """What attacks on this run found, if it was attacked and its models are still those."""
    path = run.folder / FILE
    if not path.is_symlink() and not path.exists():
        return None
    told = read_json(path)
    at = misfit(told, _WHOLE)
    if at:
        raise BadInput(
            f"{path} is damaged ({at}): make it again with `rounds attack {run.folder}`", code="damaged-file"
        )
    return dict(told) if told["model"] == model_hash(run) else None
