"""SSE-AGG: sites with outlying explanations lose weight, and local regularisation keeps explanations consistent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grandrounds.core.arrays import Array
from grandrounds.core.method_facts import MethodFact
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.methods.dp import DP_SGD
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.select import count_sites
from grandrounds.methods.sse_agg.agreement import is_explained_round
from grandrounds.methods.sse_agg.site import PatientHalves
from grandrounds.methods.sse_agg.summary import describe_run, weight_numbers
from grandrounds.methods.sse_agg.weights import resolve_lambdas

_FEWEST = 3  # sites or answers: with two, neither is an outlier


class SSEAgg(FedAvg):
    """FedAvg weighted by explanations, with optional cohorts, over any local regularizer.

    The paper weighs by agreement to lower drift. That does not work, because local models differ before they are weighed. Here
    agreement is a defence against sites with outlying explanations (weigh.form "outlier"), and local regularisation lowers
    drift. The paper's form is weigh.form "inverse" with stability "none".
    """

    name = "sse-agg"
    title = "SSE-AGG: weighs sites by the agreement of their explanations"
    site = (PatientHalves,)

    @classmethod
    def own_numbers(cls, plan: Plan, records: Sequence[RoundRecord], state: Mapping[str, Array]) -> dict[str, object]:
        weights = weight_numbers(records)
        return {"weights": weights} if weights else {}

    @classmethod
    def describe(cls, summary: RunSummary) -> tuple[MethodFact, ...]:
        return describe_run(summary)


def choose_regularizer(train: Any, *, sent: bool, trees: bool, apart: bool, private: bool = False, preset: str) -> str:
    """Choose the default local regularizer of SSE-AGG; `sent`: reference rows may be shared with sites.

    An anchor if rows may be sent, else none, so that a bad local model can be detected. Preset 'drift' with plain SGD uses
    SCAFFOLD's control variates, which carry every site's influence, also a bad one's, into all steps and hide it. Other
    optimisers do not support variates, and cohorts with separate models (`apart`) have no common one. Trees have no gradient.
    Under DP-SGD (`private`) variates are mostly noise of the previous round, so drift rises. The anchor's rows are not protected
    patients, so it is added after the noise.
    """
    if trees:
        return "none"
    if preset == "drift" and train.optimizer == "sgd" and not apart and not private:
        return "anchored_scaffold" if sent else "scaffold"
    return "permuted_anchor" if sent else "none"


def weighting_refusals(plan: Plan, *, sites: int) -> Iterator[str]:
    """Yield reasons why the signals of SSE-AGG cannot be computed in this run; `sites` is the number of training sites."""
    m = plan.method
    used = {name for name, part in resolve_lambdas(m.weigh).items() if part}
    answers = sites if m.select.rule == "all" else count_sites(m.select.fraction, sites)
    if "agreement" in used and sites < _FEWEST:
        small = f", since DP-SGD leaves out those with fewer than privacy.min_rows = {plan.privacy.min_rows} rows"
        yield (
            f"weighing by explanations needs three sites to find outliers, but {sites} train"
            f"{small if plan.privacy.mechanism == DP_SGD else ''}: use method 'fedavg'"
        )
    if "agreement" in used and answers < _FEWEST:
        yield (
            f"weighing by explanations needs three answers per round to find outliers, not {answers}: "
            "raise method.select.fraction"
        )
    if not plan.split.val and used & {"worst_site", "calibration"}:
        named = " and ".join(name for name in ("worst_site", "calibration") if name in used)
        yield f"method.weigh.lambdas names {named}, which needs validation rows, but split.val is 0: set it to 0.15"
    if "agreement" in used and not any(is_explained_round(m.weigh, r) for r in range(1, m.rounds + 1)):
        yield (
            f"method.weigh.every is {m.weigh.every}, but there are {m.rounds} rounds, so explanations would never be "
            "requested: lower it"
        )
