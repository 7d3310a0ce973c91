"""Settings that weighing by explanations needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grandrounds.methods.private import DP_SGD
from grandrounds.methods.select import share
from grandrounds.methods.sse_agg.weights import lambdas, looks

_FEWEST = 3  # sites or answers: of two, either stands out from the other


def refusals(plan: Any, *, sites: int) -> Iterator[str]:
    """Yield reasons why the signals of SSE-AGG cannot be told in this run; `sites` is how many train."""
    m = plan.method
    used = {name for name, part in lambdas(m.weigh).items() if part}
    answers = sites if m.select.rule == "all" else share(m.select.fraction, sites)
    if "agreement" in used and sites < _FEWEST:
        small = f", since DP-SGD leaves out those with fewer than privacy.fewest_rows = {plan.privacy.fewest_rows} rows"
        yield (
            f"weighing by explanations needs three sites to tell who stands out, and {sites} train"
            f"{small if plan.privacy.mechanism == DP_SGD else ''}: use method 'fedavg'"
        )
    if "agreement" in used and answers < _FEWEST:
        yield (
            f"weighing by explanations needs three answers a round to tell who stands out, not {answers}: "
            "raise method.select.fraction"
        )
    if not plan.split.val and used & {"worst_site", "calibration"}:
        named = " and ".join(name for name in ("worst_site", "calibration") if name in used)
        yield f"method.weigh.lambdas names {named}, which goes by validation rows, but split.val is 0: set it to 0.15"
    if "agreement" in used and not any(looks(m.weigh, r) for r in range(1, m.rounds + 1)):
        yield (
            f"method.weigh.every is {m.weigh.every}, but there are {m.rounds} rounds, so reasons would never be asked "
            "for: lower it"
        )
