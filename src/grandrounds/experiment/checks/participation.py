"""Check and apply engine.absences: sites that join late, leave, or return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.data.dataset import Dataset
from grandrounds.data.kinds import Holdings
from grandrounds.data.warnings import one_site_sentence
from grandrounds.experiment.checks.secure_aggregation import FEWEST
from grandrounds.methods import is_exact, method_class
from grandrounds.methods.baselines import POOLED, Local
from grandrounds.methods.dp import CLIENT
from grandrounds.methods.fedavg import FedAvg


def there(plan: Plan, sites: Sequence[str], round: int) -> tuple[str, ...]:
    """Return the sites that are present in a round, by engine.absences."""
    away = plan.engine.absences.plain()
    return tuple(s for s in sites if not any(first <= round <= last for first, last in away.get(s, ())))


def refuse_absences(plan: Plan, sites: Sequence[str]) -> None:
    """Check engine.absences.

    Args:
        plan: The run's plan.
        sites: The training sites.

    Raises:
        BadInput: A site is unknown, the method does not support absences, or too few sites remain.
    """
    for reason in _reasons(plan, sites):
        raise BadInput(reason, code="bad-absences")


def refuse_one_site(plan: Plan, data: Holdings, sites: Sequence[str]) -> None:
    """Refuse to federate a user's own table of one hospital; 'local' and 'pooled' federate nothing.

    A hospital may withdraw from two, and the other then goes on alone.

    Args:
        plan: The run's plan.
        data: The rows; sets of the catalog may be dealt to one site.
        sites: All sites.

    Raises:
        BadInput: There is one site.
    """
    federates = plan.method.name not in (Local.name, POOLED) and method_class(plan.method.name).has_model
    own_table = isinstance(data, Dataset) and plan.data.name is None
    if len(sites) == 1 and own_table and not plan.split.without and federates and not is_exact(plan.method.name):
        raise BadInput(one_site_sentence(plan), code="one-site")


def _reasons(plan: Plan, sites: Sequence[str]) -> Iterator[str]:
    away, m = plan.engine.absences.plain(), plan.method
    unknown = next((s for s in away if s not in sites), None)
    if unknown is not None:
        yield f"engine.absences names '{unknown}', which is not a training site; {nearest(unknown, sites)}"
    if away and method_class(m.name).round is not FedAvg.round:
        yield f"engine.absences is not supported by method '{m.name}': use fedavg, fedxchain or another averaging method"
    if away and plan.privacy.mechanism == CLIENT:
        yield "privacy.mechanism 'client' needs the same sites in every round: remove engine.absences"
    fewest = FEWEST if plan.privacy.secure else 1
    few = next((r for r in range(1, m.rounds + 1) if away and len(there(plan, sites, r)) < fewest), None)
    if few is not None and fewest == 1:
        yield f"engine.absences leaves no site in round {few}: shorten an absence"
    elif few is not None:
        remaining = len(there(plan, sites, few))
        yield (
            f"engine.absences leaves {remaining} sites in round {few}; secure aggregation needs at least {fewest}: shorten the "
            "absences or set privacy.secure = false"
        )
