"""What scoring reasons needs, of sites to choose them by or of the model in use; refused in words before a round is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.references import reference_name, watched_rows
from grandrounds.methods import follows, stability_class
from grandrounds.site.stack import Part


def chooses_by_reasons(plan: Any) -> bool:
    return follows(plan.method.name, "xfed")


def scoring_rows(plan: Any) -> tuple[str, ...]:
    """The reference pictures that sites are sent to score themselves on."""
    name = reference_name(plan)
    if not chooses_by_reasons(plan) or name is None or not plan.reference.plain()[name]["sent"]:
        return ()
    return (name,)


def scored_sets(plan: Any) -> tuple[str, ...]:
    """All reference pictures that reasons are scored on."""
    watched = watched_rows(plan)
    return tuple(dict.fromkeys([*scoring_rows(plan), *([] if watched is None else [watched])]))


def refusals(plan: Any, *, sites: int, pictures: bool) -> Iterator[str]:
    """Reasons why reasons cannot be scored in this run."""
    yield from _watching(plan, pictures=pictures)
    if chooses_by_reasons(plan):
        yield from _choosing(plan, sites=sites, pictures=pictures)


def _watching(plan: Any, *, pictures: bool) -> Iterator[str]:
    """Why the model in use cannot be scored."""
    name, known = watched_rows(plan), plan.reference.plain()
    if name is None:
        return
    if not pictures:
        yield "evaluation.reasons looks where a net looks, in pictures, and these rows are a table's: leave it out"
    if name not in known:
        way = nearest(name, known) if known else "there is no [reference]: add [reference.scoring] with rows = 30"
        yield f"evaluation.reasons is '{name}'; {way}"
    elif not known[name]["labelled"]:
        yield f"evaluation.reasons needs to know what the pictures show: set reference.{name}.labelled = true"
    if plan.tasks.plain():
        yield "evaluation.reasons scores one task, and sites have several: leave it or [tasks] out"


def _choosing(plan: Any, *, sites: int, pictures: bool) -> Iterator[str]:
    """Why sites cannot be chosen by their reasons."""
    x, name = plan.method.xfed, reference_name(plan)
    if not pictures:
        yield "method 'xfed' looks where nets look, in pictures: use 'fedxchain' or 'sse-agg' for tables"
    if name is None and plan.reference.plain():
        yield "method 'xfed' needs to know which reference pictures sites are scored on: set method.reference"
    elif name is None:
        yield "method 'xfed' needs scoring pictures: add [reference.scoring] with rows = 30 and sent = true"
    elif not plan.reference.plain()[name]["sent"] or not plan.reference.plain()[name]["labelled"]:
        yield f"sites score themselves on labelled pictures that they are sent: set reference.{name}.sent = true, labelled = true"
    if x.score == "grid" and not x.grid:
        yield "method.xfed.score is 'grid', but method.xfed.grid = 0 makes no scenes: set it to 2"
    if sites < 2:
        yield f"method 'xfed' leaves one site out, and {sites} trains: use 'fedavg'"
    if plan.privacy.secure:
        yield "method 'xfed' asks the chosen sites for their models, which privacy.secure hides: leave one of them out"
    if plan.privacy.epsilon is not None or plan.privacy.mechanism != "none":
        yield "what method 'xfed' asks of sites has no noise: leave [privacy] out, or use 'fedavg'"
    if stability_class(plan.method).name not in ("none", "proximal", "moon"):
        yield f"stability '{stability_class(plan.method).name}' uploads more than a model: use none, proximal or moon with 'xfed'"
    if x.weights == "rank" and plan.method.weigh.rule != "data_size":
        yield f"method.xfed.weights 'rank' leaves no say to method.weigh '{plan.method.weigh.rule}': leave one of them out"
    if plan.tasks.plain():
        yield "sites with different tasks cannot be ranked by one score: leave [tasks] out, or use 'fedavg'"


def refuse_unscorable(plan: Any, name: str, pictures: Part, masks: Array | None) -> None:
    """Raise where the prepared pictures of a set that reasons are scored on do not do."""
    x, (height, width) = plan.method.xfed, pictures.x.shape[2:]
    if name in scoring_rows(plan) and x.score == "masks" and masks is None:
        raise BadInput(
            "method.xfed.score is 'masks', but the scoring pictures have no truth masks: set it to 'grid', name them in "
            "data.masks, or use pictures that have them (reference.NAME.source)"
        )
    if x.grid and len(set(pictures.y.tolist())) < 2:
        raise BadInput(
            f"the pictures of reference.{name} are of one class, and a scene needs others beside it: raise "
            f"reference.{name}.rows, or set method.xfed.grid = 0 for no scenes"
        )
    if x.grid == 1 or x.grid > min(height, width):
        raise BadInput(
            f"method.xfed.grid = {x.grid} makes no scenes of pictures of {height} x {width} pixels: set it to 2, or to 0 for none"
        )
