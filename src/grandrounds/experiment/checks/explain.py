"""What an experiment may ask of its explanations: which explainer, on which rows; what cannot be is refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import unwatched
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.rule import HIDING_EXPLAINERS
from grandrounds.methods.anchors import anchor_reference
from grandrounds.methods.fedxchain.checks import trust_references, uses_agreement
from grandrounds.methods.sse_agg import weights as reasons
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.methods.xfed.checks import scoring_references

_TABLES, _IMAGES = explainers_for(Use.TABLE_SKETCH), explainers_for(Use.IMAGE_SKETCH)


def explainer_name(plan: Plan, model: Any, encoding: Any) -> str | None:
    """The explainer of this run, None for none; one that does not fit the data, the model or the rows is refused."""
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
    """The reference set that local models are compared on: the one named, or the only one that anchors nobody."""
    names, named, anchor = list(plan.reference.plain()), plan.explain.reference, anchor_reference(plan)
    if named is not None and named not in names:
        way = nearest(named, names) if names else "there is no [reference]"
        raise BadInput(f"explain.reference is '{named}'; {way}", code="unknown-reference-set")
    free = unwatched(plan, [name for name in names if name != anchor])
    return named or (free[0] if len(free) == 1 else None)


def no_rows(plan: Plan) -> str:
    """Why training drift is not measured although there are reference rows, and the way out."""
    if anchor_reference(plan) is not None and len(plan.reference.plain()) == 1:
        return "training drift is not measured: the only reference rows are those that sites are anchored to; add a second set"
    return "training drift is not measured: say which reference rows local models are compared on (explain.reference)"


def no_tile(plan: Plan) -> str:
    """Why nothing is read off the sketches about a shortcut, and the way out."""
    tiles = plan.explain.tiles
    return (
        f"spurious mass is not measured: the patch is larger than one of {tiles} x {tiles} tiles; lower explain.tiles"
    )


def lent_rows(plan: Plan) -> tuple[str, ...]:
    """The reference sets whose rows sites are sent: those they are anchored to, or explain themselves on."""
    sent = [name for name, settings in plan.reference.plain().items() if settings["sent"]]
    used = {
        anchor_reference(plan),
        explained_on(plan) if plan.explain.at == "site" else None,
        *trust_references(plan),
        *scoring_references(plan),
    }
    return tuple(name for name in sent if name in used)


def _compared(name: str, plan: Plan) -> Iterator[str]:
    """What weighing by explanations needs: an explainer, and rows that local models are compared on."""
    weigh, besides = plan.method.weigh, uses_agreement(plan)
    if not besides and "sketch" not in {*reasons.requested_reports(weigh, 1), *reasons.requested_reports(weigh, weigh.every)}:
        return  # no weight is on agreement
    if plan.tasks.plain():
        yield "sites with different tasks have no reasons in common to be weighed by: use method 'fedavg'"
    if name == "none":
        setting = "method.trust.reasons is true" if besides else "method.weigh is 'explanations'"
        yield f"{setting} but explain.sketch is 'none': set it to 'auto'"
    if explained_on(plan) is None:
        reference, anchor = plan.reference.plain(), anchor_reference(plan)
        way = "say which in explain.reference" if reference else "add [reference.rows] with rows = 200"
        if list(reference) == [anchor]:
            way = f"add a second [reference] set, since sites are anchored to the only one, '{anchor}'"
        yield f"weighing by explanations compares local models on reference rows: {way}"


def _fits(name: str, plan: Plan, model: Any, *, pictures: bool) -> Iterator[str]:
    """Explainers that this model or these data have no use for."""
    known_names = _IMAGES if pictures else _TABLES
    if name not in known_names:
        kind = "pictures" if pictures else "a table"
        yield f"explain.sketch is '{name}', which does not explain {kind}: use {', '.join(known_names)}"
        return
    if model.kernel in ("forest", "boosted") and known_names[name].needs_gradient:
        yield f"explain.sketch is '{name}' and a {plan.model.name} has no gradient: use 'permutation' or 'shap'"
    if known_names[name].needs_linear and plan.model.name != "logistic":
        yield f"explain.sketch is '{name}' and model.name '{plan.model.name}' is not linear: use 'shap'"
    if plan.tasks.plain():
        yield "sites with different tasks are not explained side by side: set explain.sketch = 'none'"


def _rows(name: str, plan: Plan) -> Iterator[str]:
    """Reference rows that may not be used so."""
    rows = explained_on(plan)
    if rows is not None and rows == anchor_reference(plan):
        yield (
            f"drift would be measured on '{rows}', the rows that sites are anchored to: "
            "name another set in explain.reference, or add one"
        )
    if plan.explain.at == "site" and rows is None:
        yield "explain.at is 'site' and there are no rows to explain on: add [reference.rows] with rows = 200, sent = true"
    if rows is None:
        return
    settings = plan.reference.plain()[rows]
    if name == "permutation" and settings["rows"] < 2:
        yield f"reference.{rows} has one row, and there is nothing to permute: set reference.{rows}.rows = 200"
    if plan.explain.at == "site" and not settings["sent"]:
        yield f"explain.at is 'site' but the rows of '{rows}' are not sent to sites: set reference.{rows}.sent = true"
    unlabelled = name in HIDING_EXPLAINERS and plan.explain.score == "self"
    if not settings["labelled"] and not (unlabelled or (name in _TABLES and not _TABLES[name].needs_labels)):
        yield (
            f"reference.{rows} has no labels: set explain.score = 'self' with explain.sketch = "
            "'permutation' (pictures: 'occlusion')"
        )
