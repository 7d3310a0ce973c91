"""What scoring reasons needs, of sites to choose them by or of the model in use; refused in words before a round is run."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import watched_rows
from grandrounds.methods.xfed.checks import scoring_references
from grandrounds.site.stack import Part


def scored_sets(plan: Plan) -> tuple[str, ...]:
    """All reference pictures that reasons are scored on."""
    watched = watched_rows(plan)
    return tuple(dict.fromkeys([*scoring_references(plan), *([] if watched is None else [watched])]))


def refusals(plan: Plan, *, pictures: bool) -> Iterator[str]:
    """Yield reasons why the model in use cannot be scored by its explanations."""
    name, reference = watched_rows(plan), plan.reference.plain()
    if name is None:
        return
    if not pictures:
        yield "evaluation.rationale_set looks where a net looks, in pictures, and these rows are a table's: leave it out"
    if name not in reference:
        way = (
            nearest(name, reference) if reference else "there is no [reference]: add [reference.scoring] with rows = 30"
        )
        yield f"evaluation.rationale_set is '{name}'; {way}"
    elif not reference[name]["labelled"]:
        yield f"evaluation.rationale_set needs to know what the pictures show: set reference.{name}.labelled = true"
    if plan.tasks.plain():
        yield "evaluation.rationale_set scores one task, and sites have several: leave it or [tasks] out"


def refuse_unscorable(plan: Plan, name: str, pictures: Part, masks: Array | None) -> None:
    """Raise where the prepared pictures of a set that reasons are scored on do not do."""
    x, (height, width) = plan.method.xfed, pictures.x.shape[2:]
    if name in scoring_references(plan) and x.score == "masks" and masks is None:
        raise BadInput(
            "method.xfed.score is 'masks', but the scoring pictures have no truth masks: set it to 'grid', name them in "
            "data.masks, or use pictures that have them (reference.NAME.source)",
            code="no-truth-masks",
        )
    if x.grid and len(set(pictures.y.tolist())) < 2:
        raise BadInput(
            f"the pictures of reference.{name} are of one class, and a scene needs others beside it: raise "
            f"reference.{name}.rows, or set method.xfed.grid = 0 for no scenes",
            code="one-class-only",
        )
    if x.grid == 1 or x.grid > min(height, width):
        raise BadInput(
            f"method.xfed.grid = {x.grid} makes no scenes of images of {height} x {width} pixels: set it to 2, or to 0",
            code="bad-setting",
        )
