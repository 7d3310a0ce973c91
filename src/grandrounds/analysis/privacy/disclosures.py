"""What left the sites of a run as it is, in words: for runs that promise nothing, and for what a promise does not cover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.core.plugins import is_path
from grandrounds.experiment.checks.heat_maps import maps_asked
from grandrounds.methods import is_variant_of, method_class, regularizer_class
from grandrounds.methods.base import Method
from grandrounds.methods.fedxchain.checks import keeps_trust, trust_references
from grandrounds.methods.select import ASKS_FIRST
from grandrounds.methods.sse_agg.weights import confirms_on_halves, resolve_lambdas
from grandrounds.methods.weigh import EXPLANATIONS


def list_disclosures(plan: Plan, summary: Mapping[str, Any]) -> list[str]:
    """Of a run without a mechanism; `docs/privacy-today.md` goes through the same messages one by one."""
    if not is_path(plan.method.name) and is_variant_of(plan.method.name, "pooled"):
        return ["all training rows: this method pools them, as a yardstick that no hospital may use"]
    secure, pictures = plan.privacy.secure, len(summary["inputs"]) > 1
    said = [] if plan.data.encoding == "public" else [_summary(pictures=pictures)]
    said.append("how many training, validation and test rows it has")
    said += [*_training(plan, secure=secure), *_signals(plan), *_tallies(plan, secure=secure)]
    if secure and "training" in summary["explanation"]:  # without masks it follows from the model
        said.append("how its own model reasons on reference rows that it was sent, as a share for each column or tile")
    if "deployed" in summary["explanation"]:
        said.append("how the model in use reasons on its own patients, as a share for each column or tile")
    if maps_asked(plan):
        said.append(
            "numbers of heat maps of its own and of the common model on its own pictures (how sharp, how faithful)"
        )
    if plan.evaluation.calibrate != "none":
        said.append("sums over its validation rows, for calibration" + (" (added up under masks)" if secure else ""))
    if summary.get("local"):
        said.append("how right its own model is on its training rows and on its test rows, round by round")
    if summary["privacy"].get("crossed_rounds"):
        said.append("to every other site: its model as it is; and how right each other site's model is on its rows")
    if summary["models"]:
        said.append("a model of its own, which is in the run folder")
    lent = summary["privacy"].get("lent", {})
    return [*said, *(f"and to every site went {n} rows of reference set '{name}'" for name, n in lent.items())]


def _summary(*, pictures: bool) -> str:
    if pictures:
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
    said = []
    if m.select.rule in ASKS_FIRST:
        said.append(f"its loss on training rows before each round (method.select '{m.select.rule}')")
    told = [n for n in ("worst_site", "calibration") if m.weigh.rule == EXPLANATIONS and resolve_lambdas(m.weigh).get(n)]
    if told:
        said.append(f"figures of its model on validation rows, to be weighed by ({', '.join(told)})")
    if (
        confirms_on_halves(m.weigh)
        and not plan.privacy.secure
        and any(s["labelled"] for s in plan.reference.plain().values())
    ):
        said.append(
            "if the model was worse with it: its model as trained on one half of its patients, and on the other"
        )
    return [*said, *(_trust(plan) if keeps_trust(plan) else [])]


def _trust(plan: Plan) -> list[str]:
    """What FedXChain's trust is told from."""
    t, secure = plan.method.trust, plan.privacy.secure
    said = []
    if t.explained == "own":
        how = "into a sum, and how far they lie from its mean" if secure else "as they are"
        said.append(f"its model's SHAP values on its own training rows, as a share for each column or tile, {how}")
    elif secure:
        said.append("its model's SHAP values on the reference rows into a sum, and how far they lie from its mean")
    if t.accuracy_at == "site":
        said.append("its model's accuracy on its own validation rows, to every site")
    elif secure:
        said.append("its model's accuracy on the reference rows, to every site")
    if secure and t.rewards and trust_references(plan):
        said.append("by how much worse the model is on the reference rows without its own")
    return said


def _tallies(plan: Plan, *, secure: bool) -> list[str]:
    if secure:
        return ["histograms of its patients' scores into sums, and its own accuracy and the like as they are"]
    return [
        "histograms of its patients' scores by outcome, so fine that at a small site they are the list of scores; and its "
        "own accuracy and the like"
    ]
