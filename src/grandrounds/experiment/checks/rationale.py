"""Check the reference images on which heat maps are scored, for site selection (method.xfed) or evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import watched_rows
from grandrounds.data.images import usable_masks
from grandrounds.methods.xfed.checks import scoring_references
from grandrounds.site.stack import Part


def scored_sets(plan: Plan) -> tuple[str, ...]:
    """Return the reference sets on which heat maps are scored."""
    watched = watched_rows(plan)
    return tuple(dict.fromkeys([*scoring_references(plan), *([] if watched is None else [watched])]))


def refusals(plan: Plan, *, pictures: bool) -> Iterator[str]:
    """Yield the errors of evaluation.rationale_set in this plan."""
    name, reference = watched_rows(plan), plan.reference.plain()
    if name is None:
        return
    if not pictures:
        yield "evaluation.rationale_set scores heat maps of images, and the data is a table: remove it"
    if name not in reference:
        hint = (
            nearest(name, reference) if reference else "there is no [reference]: add [reference.scoring] with rows = 30"
        )
        yield f"evaluation.rationale_set is '{name}'; {hint}"
    elif not reference[name]["labelled"]:
        yield f"evaluation.rationale_set needs labelled images: set reference.{name}.labelled = true"
    if plan.tasks.plain():
        yield "evaluation.rationale_set supports one task, and [tasks] has several: remove one of them"


def refuse_unscorable(plan: Plan, name: str, pictures: Part, masks: Array | None) -> None:
    """Check the prepared images of a scoring set.

    Args:
        plan: The run's plan.
        name: Name of the reference set.
        pictures: Its prepared images.
        masks: Their ground-truth masks, if there are any.

    Raises:
        BadInput: Masks are missing, all images have one class, or the grid of scenes does not fit the images.
    """
    x, (height, width) = plan.method.xfed, pictures.x.shape[2:]
    scored = name in scoring_references(plan) and x.score == "masks" and x.xai_share > 0
    if scored and (masks is None or not usable_masks(masks).any()):
        raise BadInput(
            f"the images of reference.{name} have no truth masks, by which method 'xfed' ranks sites: give masks (data.masks, or "
            f"reference.{name}.source), or set method.xfed.score = 'grid', or xai_share = 0 to rank by {x.measure} alone",
            code="no-truth-masks",
        )
    if x.grid and len(set(pictures.y.tolist())) < 2:
        raise BadInput(
            f"the images of reference.{name} have one class, and a scene needs several: raise reference.{name}.rows, or set "
            "method.xfed.grid = 0 for no scenes",
            code="one-class-only",
        )
    if x.grid == 1 or x.grid > min(height, width):
        raise BadInput(
            f"method.xfed.grid is {x.grid}, which does not fit images of {height} x {width} pixels: set it to 2, or to 0",
            code="bad-setting",
        )
