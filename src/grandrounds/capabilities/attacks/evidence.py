"""Attacks on a finished run as evidence: membership, attribute inference and reconstruction, written to attacks.json.

    from grandrounds.capabilities.attacks.evidence import collect_evidence
    evidence = collect_evidence(run)                         # seconds; shadows=16 adds LiRA
    print("\\n".join(evidence.sentences()))

EDPB Opinion 28/2024 names these attacks as tests of a model's anonymity. What was not tried is part of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grandrounds.analysis.membership.attack import SCHEMA, Membership, Promise, attack_run, model_hash, read_attacks
from grandrounds.analysis.membership.shadows import Ended, select_rows
from grandrounds.capabilities.attacks.attribute import AttributeInference, infer_attributes
from grandrounds.capabilities.attacks.findings import AttackedRun
from grandrounds.capabilities.attacks.reconstruction import Reconstruction, rebuild_rows
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.sources import AT_SITES, DATA_FRAME
from grandrounds.privacy.attacks.membership import FPR

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

MEMBERSHIP, ATTRIBUTE, RECONSTRUCTION = "membership", "attribute", "reconstruction"
ATTACKS = (MEMBERSHIP, ATTRIBUTE, RECONSTRUCTION)

_NEVER = (
    "Attacks that join the models of several rounds, and attacks of sites that collude with the server, were not tried.",
    "Gradient matching (deep leakage from gradients) was not tried: updates are inverted by algebra, for dense layers.",
    "An attacker who knows more about a patient than the columns of the table was not tried.",
)
"""Attacks that no run is tested with."""

Progress = Callable[[str, str], None]
"""Called with the name of an attack and the part of it that begins."""


@dataclass(frozen=True)
class Evidence:
    """The attacks on a run.

    Attributes:
        model: Hash of the attacked models.
        separate: Sites use models of their own.
        promise: Bound by epsilon; None without one.
        membership: Membership inference; None where it was not tried.
        attribute: Attribute inference, likewise.
        reconstruction: Reconstruction of disclosed statistics, likewise.
        why: For each attack that was not tried, why.
    """

    model: str
    separate: bool
    promise: Promise | None
    membership: Membership | None
    attribute: AttributeInference | None
    reconstruction: Reconstruction | None
    why: Mapping[str, str]

    @property
    def tried(self) -> list[str]:
        """The attacks that were made."""
        made = {MEMBERSHIP: self.membership, ATTRIBUTE: self.attribute, RECONSTRUCTION: self.reconstruction}
        return [name for name, result in made.items() if result is not None]

    def not_tried(self) -> list[str]:
        """State in sentences which attacks were not made, and which statistics were not attacked."""
        lines = [f"{_NAMES[name]} was not tried: {why}" for name, why in self.why.items() if name not in self.tried]
        if self.membership is not None and not self.membership.shadows:
            lines.append("LiRA, a stronger membership attack, was not tried: it trains shadow models (--shadows 16).")
        if self.reconstruction is not None:
            lines += self.reconstruction.skipped_sentences()
        return [*lines, *_NEVER]

    def sentences(self) -> list[str]:
        """Explain all results in sentences, with what was not tried at the end."""
        lines = [] if self.membership is None else self.membership.sentences()
        lines += [] if self.attribute is None else self.attribute.sentences()
        if self.reconstruction is not None:
            lines += self.reconstruction.attacked_sentences()
        return [*lines, *self.not_tried()]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of attacks.json."""
        if self.membership is not None:
            values = self.membership.to_dict()
        else:
            p = self.promise
            bound = None if p is None else {"epsilon": p.epsilon, "delta": p.delta, "auc": p.max_auc, "tpr": p.max_tpr}
            values = {"schema": SCHEMA, "model": self.model, "shadows": 0, "fpr": FPR, "attacks": [], "sites": {}}
            values |= {"separate": self.separate, "bound": None if bound is None else {**bound, "broken": False}}
            values |= {"sentences": [], "notes": []}
        return {
            **values,
            "tried": self.tried,
            "not_tried": self.not_tried(),
            "attribute": None if self.attribute is None else self.attribute.to_dict(),
            "reconstruction": None if self.reconstruction is None else self.reconstruction.to_dict(),
        }


_NAMES = {MEMBERSHIP: "Membership inference", ATTRIBUTE: "Attribute inference", RECONSTRUCTION: "Reconstruction"}


def collect_evidence(
    run: Run,
    *,
    only: Sequence[str] = (),
    shadows: int = 0,
    jobs: int = 1,
    sensitive: Sequence[str] = (),
    data: Any = None,
    ended: Ended = lambda name: None,
    progress: Progress = lambda attack, part: None,
) -> Evidence:
    """Attack a finished run.

    Args:
        run: A finished run. Of a run at hospitals, whose rows are not here, attacks that need no row are made.
        only: Attacks to make ("membership", "attribute", "reconstruction"); none: all. Results of the others are kept from
            attacks.json if its models are the same.
        shadows: Shadow runs for LiRA.
        jobs: Shadow runs in parallel.
        sensitive: Columns to infer; none: all.
        data: The run's own rows, where they came from memory.
        ended: Called with the name of each shadow run that ended.
        progress: Called as each part of an attack begins.

    Returns:
        The evidence, with what was not tried.

    Raises:
        BadInput: The run is not finished, an attack or a column is unknown, or the rows are gone or have changed.
        RunFailed: Too few shadow runs ended.
    """
    for name in only:
        if name not in ATTACKS:
            raise BadInput(f"attack '{name}' is unknown: choose from {', '.join(ATTACKS)}", code="unknown-attack")
    if not run.finished:
        raise BadInput(
            f"{run.folder} is not finished, so there is no model to attack: `rounds resume {run.folder}`",
            code="run-not-finished",
        )
    made, why = set(only or ATTACKS), {name: "it was not asked for (--only)." for name in ATTACKS if only and name not in only}
    attacked = _read_rows(run, data)
    for name, reason in _reasons(attacked).items():
        made.discard(name)
        why[name] = reason
    membership = attribute = reconstruction = None
    if MEMBERSHIP in made:
        progress(MEMBERSHIP, "")
        membership = attack_run(run, shadows=shadows, jobs=jobs, data=data, ended=ended, run_rows=attacked.run_rows)
        membership = membership.merge_earlier(run)
    if ATTRIBUTE in made:
        assert attacked.run_rows is not None and attacked.chosen is not None
        attribute = infer_attributes(
            run,
            attacked.run_rows,
            attacked.chosen,
            sensitive=sensitive,
            progress=lambda column: progress(ATTRIBUTE, column),
        )
    if RECONSTRUCTION in made:
        reconstruction = rebuild_rows(attacked, lambda name: progress(RECONSTRUCTION, name))
    found = Evidence(
        model_hash(run),
        bool(run.summary["models"]),
        Promise.from_statement(run.summary["privacy"]),
        membership,
        attribute,
        reconstruction,
        why,
    )
    return _keep_earlier(found, run) if only else found


def _read_rows(run: Run, data: Any) -> AttackedRun:
    """Read the rows of a run and choose those to attack; of a run at hospitals there are none here."""
    from grandrounds.runs.run_rows import RunRows

    table = run.plan["data"]["table"]
    describes = "statistic" in run.summary  # its published counts are searched, with or without rows
    if data is None and (table == AT_SITES or (describes and table == DATA_FRAME)):
        return AttackedRun(run)
    if table == DATA_FRAME and data is None:
        raise BadInput(
            f"{run.folder} was made from a {DATA_FRAME} in Python: attack it there, with collect_evidence(run, data=frame)",
            code="rows-not-available",
        )
    rows = RunRows.read(run, data)
    return AttackedRun(run, rows, None if describes else select_rows(run, rows))


def _reasons(attacked: AttackedRun) -> dict[str, str]:
    """Return why attacks cannot be made on a run, by attack."""
    if not attacked.has_model:
        return dict.fromkeys((MEMBERSHIP, ATTRIBUTE), "the run describes patients and has no model.")
    out = {}
    if attacked.run_rows is None:
        gone = "the rows are at the hospitals, not on this machine. Model inversion and the search of published counts need none."
        return dict.fromkeys((MEMBERSHIP, ATTRIBUTE), gone)
    if attacked.summary.task != CLASSIFICATION:
        out[MEMBERSHIP] = f"it compares probabilities of classes, and this model predicts none ({attacked.summary.task})."
    if attacked.has_images:
        out[ATTRIBUTE] = "the model reads images and has no column to hide."
    return out


def _keep_earlier(found: Evidence, run: Run) -> Evidence:
    """Add results of earlier attacks on the same models, of those that were not made now."""
    try:
        earlier = read_attacks(run)
        if earlier is None:
            return found
        attribute, reconstruction = found.attribute, found.reconstruction
        if attribute is None and ATTRIBUTE in found.why and earlier["attribute"]:
            attribute = AttributeInference.from_dict(earlier["attribute"])
        if reconstruction is None and earlier["reconstruction"]:
            reconstruction = Reconstruction.from_dict(earlier["reconstruction"])
        membership = found.membership
        if membership is None and earlier["attacks"]:
            membership = Membership.from_dict(earlier, found.promise)
        return replace(found, membership=membership, attribute=attribute, reconstruction=reconstruction)
    except (BadInput, LookupError, TypeError, ValueError):
        return found  # damaged: there is nothing to keep
