"""Which sites are there in a round: some join a consortium late, some leave, some come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.secure_aggregation import FEWEST
from grandrounds.methods import method_class
from grandrounds.methods.dp import CLIENT
from grandrounds.methods.fedavg import FedAvg


def there(plan: Plan, sites: Sequence[str], round: int) -> tuple[str, ...]:
    """Those of the sites that take part in this round, by engine.absences."""
    away = plan.engine.absences.plain()
    return tuple(s for s in sites if not any(first <= round <= last for first, last in away.get(s, ())))


def refuse_absences(plan: Plan, sites: Sequence[str]) -> None:
    """Raise the first reason why sites cannot come and go in this run; `sites`: those that train."""
    for reason in _reasons(plan, sites):
        raise BadInput(reason, code="bad-absences")


def _reasons(plan: Plan, sites: Sequence[str]) -> Iterator[str]:
    away, m = plan.engine.absences.plain(), plan.method
    unknown = next((s for s in away if s not in sites), None)
    if unknown is not None:
        yield f"engine.absences names '{unknown}', which is no site that trains; {nearest(unknown, sites)}"
    if away and method_class(m.name).round is not FedAvg.round:
        yield f"sites cannot come and go with method '{m.name}': use fedavg, fedxchain or another averaging one"
    if away and plan.privacy.mechanism == CLIENT:
        yield "privacy.mechanism 'client' sizes its noise for sites that stay: leave engine.absences out"
    fewest = FEWEST if plan.privacy.secure else 1
    few = next((r for r in range(1, m.rounds + 1) if away and len(there(plan, sites, r)) < fewest), None)
    if few is not None and fewest == 1:
        yield f"engine.absences leaves no site in round {few}: let one stay"
    elif few is not None:
        remaining = len(there(plan, sites, few))
        yield f"engine.absences leaves {remaining} sites in round {few}, and privacy.secure needs {fewest}: let more stay"
