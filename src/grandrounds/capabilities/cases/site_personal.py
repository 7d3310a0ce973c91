"""The model that one hospital deploys, the comparison behind it, and the features that differ there.

From the hospital's own files where they are on this machine, else from the summary of the run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.capabilities.personal.differences import FILE
from grandrounds.core.errors import BadInput
from grandrounds.methods.guard.candidates import COMMON, IN_WORDS, INTERCEPT, describe_choice
from grandrounds.methods.guard.choice import STANDARD_ERRORS
from grandrounds.methods.guard.site import READABLE
from grandrounds.report.differences import SiteDifferences, make_site, read_differences, site_sentences
from grandrounds.runs.personal_models import RECALIBRATED, PersonalFile

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


@dataclass(frozen=True)
class SitePersonal:
    """The personal model of one hospital.

    Attributes:
        site: The hospital.
        choice: Name of the model that it deploys; "" if this stays at the hospital.
        reasons: Sentences: the model, and the comparison behind it.
        differences: Differences from the common model; None where they are not known.
        untested: Sentence on why there is no comparison of features; "" if there is one.
    """

    site: str
    choice: str
    reasons: tuple[str, ...]
    differences: SiteDifferences | None
    untested: str = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences, for a screen or a page."""
        found = [self.untested] if self.differences is None else site_sentences(self.differences)
        return (*self.reasons, *(f for f in found if f))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts and the sentences as plain JSON."""
        found = () if self.differences is None else self.differences.features
        return {"choice": self.choice, "sentences": list(self.sentences), "differences": [d.to_dict() for d in found]}


def personal_at(run: Run, site: str) -> SitePersonal | None:
    """Describe the personal model of a hospital.

    Args:
        run: A finished run.
        site: The hospital's name.

    Returns:
        The description; None for a run without personal parts, unless the hospital recalibrated its model.

    Raises:
        BadInput: A file of the hospital is damaged.
    """
    personal, own = run.summary.personal, run.personal_file(site)
    later = () if own is None else describe_recalibration(own)
    if not personal:
        return SitePersonal(site, RECALIBRATED, later, None) if later else None
    facts = {} if own is None else _read(own.path.parent / READABLE)
    choice = str((personal.get("choices") or {}).get(site) or ("" if own is None else own.choice))
    if not choice:
        where = "The model that this hospital deploys, and its differences, stay there (--personal FOLDER reads them)."
        return SitePersonal(site, "", (where,), None)
    stored = {} if own is None else _read(own.path.parent / FILE)
    differences = read_differences(run.summary).get(site)
    if "features" in stored:
        differences = make_site(site, stored["features"], run.summary)
    reasons = (*_reasons(choice, facts), *later)
    return SitePersonal(site, choice, reasons, differences, _untested(personal, choice, differences))


def describe_recalibration(own: PersonalFile) -> tuple[str, ...]:
    """Describe the last recalibration of a hospital's model; no sentence where it has none."""
    if own.choice != RECALIBRATED:
        return ()
    f = own.facts
    intercepts = ", ".join(f"{v:+.3f}" for v in f["intercept"])
    return (
        f"Recalibrated on {str(f['time'])[:10]} by {f['by']} with {f['patients']} patients: log-odds become {f['slope']:.3f} "
        f"times those of {f['file_before']}, plus {intercepts}.",
    )


def _untested(personal: Any, choice: str, differences: SiteDifferences | None) -> str:
    if differences is not None:
        return ""
    if personal.get("untested"):
        return f"Features were not compared: {personal['untested']}."
    if choice == COMMON:
        return "Features were not compared: the hospital keeps the common model."
    return "Features were not compared (personal.differences)."


def _reasons(choice: str, facts: dict[str, Any]) -> list[str]:
    """Describe the deployed model and the guard's comparison."""
    out = [f"Deployed: {describe_choice(choice)}."]
    losses = facts.get("losses") or {}
    if not losses:
        return out
    default = INTERCEPT if INTERCEPT in losses else COMMON
    order = sorted(losses, key=lambda name: (name != choice, losses[name]))
    shown = ", ".join(f"{IN_WORDS.get(n, n)} {losses[n]:.3f}" for n in order)
    rows = "5 folds of its training rows" if facts.get("compared_on") == "train" else "its validation rows"
    out.append(f"Loss on {facts.get('patients', facts.get('rows'))} patients ({rows}): {shown}.")
    rule = f"{IN_WORDS[default]} unless another is better by {STANDARD_ERRORS:g} standard errors"
    gain = (facts.get("gains") or {}).get(choice)
    if choice == default or not gain:
        out.append(f"The guard keeps {rule}; none is.")
    else:
        out.append(f"The guard keeps {rule}; this one is better by {gain[0]:.3f} (standard error {gain[1]:.3f}).")
    return out


def _read(path: Path) -> dict[str, Any]:
    """Read a hospital's JSON file; empty where there is none."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadInput(f"{path} is damaged: it is not the record of a hospital; run the experiment again", code="damaged-file")
    return value
