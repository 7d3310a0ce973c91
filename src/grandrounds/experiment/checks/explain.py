"""Check the section [explain]: the explainer and its reference rows must fit the data, the model and the method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import ADD_ROWS, unwatched
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.rule import HIDING_EXPLAINERS
from grandrounds.methods.anchors import anchor_reference
from grandrounds.methods.fedxchain.checks import trust_references, uses_agreement
from grandrounds.methods.sse_agg import weights as reasons
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.methods.xfed.checks import scoring_references
from grandrounds.models.protocol import GRADIENT_FREE

_TABLES, _IMAGES = explainers_for(Use.TABLE_SKETCH), explainers_for(Use.IMAGE_SKETCH)


def explainer_name(plan: Plan, model: Any, encoding: Any) -> str | None:
    """Return the name of this run's explainer.

    Args:
        plan: The run's plan.
        model: The built model.
        encoding: The agreed encoding of rows.

    Returns:
        The name, or None if nothing is explained.

    Raises:
        BadInput: The explainer does not fit the data, the model or the reference rows.
    """
    name = plan.explain.sketch
    pictures = len(encoding.inputs) > 1
    weighs = plan.method.weigh.rule == EXPLANATIONS or uses_agreement(plan)
    if name == "auto":
        wanted = not pictures and model.kernel in ("numpy", "torch") and not plan.tasks.plain()
        name = ("occlusion" if pictures else "permutation") if wanted or weighs else "none"
    if weighs:
        for reason in _compared(name, plan):
            raise BadInput(reason, code="explainer-does-not-fit")
    if name == "none":
        return None
    for reason in (*_fits(name, plan, model, pictures=pictures), *_rows(name, plan)):
        raise BadInput(reason, code="explainer-does-not-fit")
    return str(name)


def explained_on(plan: Plan) -> str | None:
    """Return the reference set on which local models are compared: explain.reference, or the only set not used as anchor."""
    names, named, anchor = list(plan.reference.plain()), plan.explain.reference, anchor_reference(plan)
    if named is not None and named not in names:
        hint = nearest(named, names) if names else f"there is no [reference] section: {ADD_ROWS}"
        raise BadInput(f"explain.reference is '{named}'; {hint}", code="unknown-reference-set")
    free = unwatched(plan, [name for name in names if name != anchor])
    return named or (free[0] if len(free) == 1 else None)


def no_rows(plan: Plan) -> str:
    """Return a warning that training drift is not measured although there are reference rows, with the suggested fix."""
    if anchor_reference(plan) is not None and len(plan.reference.plain()) == 1:
        return (
            "training drift is not measured: the only reference rows are the anchor of local training; add a second "
            "[reference] set"
        )
    return "training drift is not measured: there are several reference sets; name one in explain.reference"


def no_tile(plan: Plan) -> str:
    """Return a warning that sketches do not measure reliance on the shortcut, with the suggested fix."""
    tiles = plan.explain.tiles
    return (
        f"attribution to the shortcut is not measured: its patch is larger than one of {tiles} x {tiles} tiles; lower "
        "explain.tiles"
    )


def lent_rows(plan: Plan) -> tuple[str, ...]:
    """Return the reference sets that are shared with sites, as anchor or for explanations."""
    sent = [name for name, settings in plan.reference.plain().items() if settings["sent"]]
    used = {
        anchor_reference(plan),
        explained_on(plan) if plan.explain.at == "site" else None,
        *trust_references(plan),
        *scoring_references(plan),
    }
    return tuple(name for name in sent if name in used)


def needs_reference_rows(plan: Plan) -> bool:
    """Tell whether the method compares local models by their explanations, which takes reference rows."""
    weigh, besides = plan.method.weigh, uses_agreement(plan)
    asked = {*reasons.requested_reports(weigh, 1), *reasons.requested_reports(weigh, weigh.every)}
    return besides or (weigh.rule == EXPLANATIONS and "sketch" in asked)


def _compared(name: str, plan: Plan) -> Iterator[str]:
    """Check that weighting by explanations has an explainer, and rows on which local models are compared."""
    if not needs_reference_rows(plan):
        return  # agreement has no weight
    if plan.tasks.plain():
        yield "weighting by explanations needs one task, and [tasks] gives sites different ones: use method 'fedavg'"
    if name == "none":
        setting = "method.trust.reasons is true" if uses_agreement(plan) else "method.weigh is 'explanations'"
        yield f"{setting} but explain.sketch is 'none': set explain.sketch = 'auto'"
    if explained_on(plan) is None:
        reference, anchor = plan.reference.plain(), anchor_reference(plan)
        hint = "name a set in explain.reference" if reference else ADD_ROWS
        if list(reference) == [anchor]:
            hint = f"add a second [reference] set, because the only one, '{anchor}', is the anchor of local training"
        yield f"weighting by explanations compares local models on reference rows: {hint}"


def _fits(name: str, plan: Plan, model: Any, *, pictures: bool) -> Iterator[str]:
    """Check that the explainer supports this model and these data."""
    known_names = _IMAGES if pictures else _TABLES
    if name not in known_names:
        kind = "images" if pictures else "tables"
        yield f"explain.sketch is '{name}', which does not support {kind}: use {', '.join(known_names)}"
        return
    if model.kernel in GRADIENT_FREE and known_names[name].needs_gradient:
        yield (
            f"explain.sketch is '{name}', which needs gradients, and model '{plan.model.name}' has none: use 'permutation' or "
            "'shap'"
        )
    if known_names[name].needs_linear and plan.model.name not in ("logistic", "linear"):
        yield f"explain.sketch is '{name}', which needs a linear model, and model.name is '{plan.model.name}': use 'shap'"
    if plan.tasks.plain():
        yield "explanations of sites with different tasks cannot be compared: set explain.sketch = 'none'"


def _rows(name: str, plan: Plan) -> Iterator[str]:
    """Check that the reference rows may be used for explanations."""
    rows = explained_on(plan)
    if rows is not None and rows == anchor_reference(plan):
        yield (
            f"explain.reference is '{rows}', the anchor of local training, on which drift cannot be measured: "
            "name another [reference] set, or add one"
        )
    if plan.explain.at == "site" and rows is None:
        yield "explain.at is 'site' but there are no reference rows: add [reference.rows] with rows = 200, sent = true"
    if rows is None:
        return
    settings = plan.reference.plain()[rows]
    if name == "permutation" and settings["rows"] < 2:
        yield f"reference.{rows} has one row, too few to permute: set reference.{rows}.rows = 200"
    if plan.explain.at == "site" and not settings["sent"]:
        yield f"explain.at is 'site' but reference set '{rows}' is not sent to sites: set reference.{rows}.sent = true"
    unlabelled = name in HIDING_EXPLAINERS and plan.explain.score == "self"
    if not settings["labelled"] and not (unlabelled or (name in _TABLES and not _TABLES[name].needs_labels)):
        yield (
            f"explain.sketch '{name}' needs labels and reference.{rows} has none: set explain.score = 'self' with "
            "explain.sketch = 'permutation' (images: 'occlusion')"
        )
