"""Data disclosed by the sites of a run without protection: where nothing is promised, and what a promise does not cover."""

from __future__ import annotations

from grandrounds.core.plan_types import Plan
from grandrounds.core.plugins import is_path
from grandrounds.core.records import RunSummary
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.methods import is_variant_of, method_class, regularizer_class
from grandrounds.methods.base import Method
from grandrounds.methods.fedxchain.checks import keeps_trust, trust_references
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.weights import confirms_on_halves, resolve_lambdas
from grandrounds.methods.weigh import EXPLANATIONS


def list_disclosures(plan: Plan, summary: RunSummary) -> list[str]:
    """List the data that left the sites of a run without a mechanism; `docs/threat-model.md` goes through the same messages."""
    if not is_path(plan.method.name) and is_variant_of(plan.method.name, "pooled"):
        return ["all training rows: this method pools them, as a yardstick that no hospital may use"]
    secure, images = plan.privacy.secure, len(summary["inputs"]) > 1
    lines = [] if plan.data.encoding == "public" else [_summary(images=images)]
    lines.append("how many training, validation and test rows it has")
    lines += [*_training(plan, secure=secure), *_signals(plan), *_tallies(plan, secure=secure)]
    if secure and "training" in summary["explanation"]:  # without masks it follows from the model
        lines.append("how its own model reasons on reference rows that it was sent, as a share for each column or tile")
    if "deployed" in summary["explanation"]:
        lines.append("how the model in use reasons on its own patients, as a share for each column or tile")
    if maps_asked(plan):
        lines.append(
            "numbers of heat maps of its own and of the common model on its own pictures (how sharp, how faithful)"
        )
    if plan.evaluation.calibrate != "none":
        lines.append("sums over its validation rows, for calibration" + (" (added up under masks)" if secure else ""))
    if summary.get("local"):
        lines.append("how right its own model is on its training rows and on its test rows, round by round")
    if summary["privacy"].get("crossed_rounds"):
        lines.append("to every other site: its model as it is; and how right each other site's model is on its rows")
    if summary["models"]:
        lines.append("a model of its own, which is in the run folder")
    lent = summary["privacy"].get("lent", {})
    return [*lines, *(f"and to every site went {n} rows of reference set '{name}'" for name, n in lent.items())]


def _summary(*, images: bool) -> str:
    if images:
        return "counts of its training pictures' pixel values, and how many pictures each class has"
    return (
        "its training rows column by column: every number to 0.1 %, every category with its count (not whose they are)"
    )


def _training(plan: Plan, *, secure: bool) -> list[str]:
    if is_path(plan.method.name):  # code of the user's own is not run to look at what it left
        return [f"whatever {plan.method.name} asks for: usually its whole model after every round it took part in"]
    if method_class(plan.method.name).spends is not Method.spends:
        return []  # its releases are events
    stability = regularizer_class(plan.method)
    more = [f"with it '{name}' ({stability.title})" for name in stability.report]
    if secure:
        return ["its model, after every round it took part in, into a sum: the server saw no single one", *more]
    return [
        "its whole model after every round it took part in, from which patients' rows can in part be worked out",
        *more,
    ]


def _signals(plan: Plan) -> list[str]:
    m = plan.method
    lines = []
    if m.select.rule in ASKS_FIRST:
        lines.append(f"its loss on training rows before each round (method.select '{m.select.rule}')")
    names = [
        n for n in ("worst_site", "calibration") if m.weigh.rule == EXPLANATIONS and resolve_lambdas(m.weigh).get(n)
    ]
    if names:
        lines.append(f"figures of its model on validation rows, to be weighed by ({', '.join(names)})")
    if (
        confirms_on_halves(m.weigh)
        and not plan.privacy.secure
        and any(s["labelled"] for s in plan.reference.plain().values())
    ):
        lines.append(
            "if the model was worse with it: its model as trained on one half of its patients, and on the other"
        )
    return [*lines, *(_trust(plan) if keeps_trust(plan) else [])]


def _trust(plan: Plan) -> list[str]:
    """List the inputs of FedXChain's trust."""
    t, secure = plan.method.trust, plan.privacy.secure
    lines = []
    if t.explained == "own":
        how = "into a sum, and how far they lie from its mean" if secure else "as they are"
        lines.append(f"its model's SHAP values on its own training rows, as a share for each column or tile, {how}")
    elif secure:
        lines.append("its model's SHAP values on the reference rows into a sum, and how far they lie from its mean")
    if t.accuracy_at == "site":
        lines.append("its model's accuracy on its own validation rows, to every site")
    elif secure:
        lines.append("its model's accuracy on the reference rows, to every site")
    if secure and t.rewards and trust_references(plan):
        lines.append("by how much worse the model is on the reference rows without its own")
    return lines


def _tallies(plan: Plan, *, secure: bool) -> list[str]:
    if secure:
        return ["histograms of its patients' scores into sums, and its own accuracy and the like as they are"]
    return [
        "histograms of its patients' scores by outcome, so fine that at a small site they are the list of scores; and its "
        "own accuracy and the like"
    ]
