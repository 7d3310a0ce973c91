"""FedXChain's trust and weights again, from the numbers that Decisions record (eq. 7-8).

With the arithmetic that server and sites go by (`grandrounds.explain.trust`); what goes into it is put together anew, from this
round's signals and from the accuracies of earlier rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.audit.explanation_weights import agreement_again, column
from grandrounds.core.arrays import Array
from grandrounds.explain.trust import Said, Trusted, TrustRule, trusted
from grandrounds.methods.fedxchain.server import alarms

if TYPE_CHECKING:
    from grandrounds.analysis.audit.weights import Reweighed

GIVEN = (
    "what trust is made of (accuracies, NSDS, steadiness and signs of reasons) and contributions: they rest on rows, models and "
    "reasons that the record does not hold"
)
"""What is taken as recorded: only what follows from it is worked out again."""


def trust_again(
    method: Any, decision: Mapping[str, Any], before: Sequence[Mapping[str, Any]], out: Reweighed
) -> dict[str, float]:
    """Compare trust and all that follows from it, by the plan's [method]; the weights of all that were weighed, by site.

    Those are more than have a weight where a site refused, or left after it was weighed.
    """
    settings, signals = method.trust, decision["signals"]
    sites = list(signals["nsds"])
    again = _judged(settings, signals, sites, before)
    out.compare("'consistency'", signals["consistency"], sites, again.consistency)
    out.compare("'trust'", signals["trust"], sites, again.trust)
    if settings.reasons:
        agreement_again(method, decision, sites, before, out)
    _reward(signals, out)
    _alarms(settings, decision, sites, out)
    out.unchecked.append(GIVEN)
    return dict(zip(sites, again.weights.tolist(), strict=True))


def _judged(
    settings: Any, signals: Mapping[str, Any], sites: Sequence[str], before: Sequence[Mapping[str, Any]]
) -> Trusted:
    told = {name: column(signals[name], sites) for name in ("alignment", "in_line") if name in signals}
    said = Said(
        rows=column(signals["data_size"], sites),
        accuracies=_accuracies(signals["accuracy"], sites, before, settings.window),
        steadiness=column(signals["steadiness"], sites),
        nsds=column(signals["nsds"], sites),
        **told,
    )
    return trusted(TrustRule.of(settings), said)


def _accuracies(
    now: Mapping[str, float | None], sites: Sequence[str], before: Sequence[Mapping[str, Any]], window: int
) -> Array:
    """Each site's accuracies of this round and of the last before it in which it was weighed and went along, (K, window)."""
    out, place, held = (
        np.full((len(sites), window), np.nan),
        {s: k for k, s in enumerate(sites)},
        np.ones(len(sites), int),
    )
    out[:, -1] = column(now, sites)
    for decision in reversed(before):
        if (held == window).all():
            break
        back = [s for s in _went_along(decision) if s in place and held[place[s]] < window]
        rows = [place[s] for s in back]
        held[rows] += 1
        out[rows, -held[rows]] = column(decision["signals"]["accuracy"], back)
    return out


def _went_along(decision: Mapping[str, Any]) -> Mapping[str, float]:
    return next((s["weights"] for s in decision["stages"] if s["part"] == "weigh"), {})


def _reward(signals: Mapping[str, Any], out: Reweighed) -> None:
    """A reward is trust x contribution, of the sites whose contribution is known."""
    if "reward" not in signals and "contribution" not in signals:
        return
    known = list(signals["contribution"])
    again = column(signals["trust"], known) * column(signals["contribution"], known)
    out.compare("'reward'", signals["reward"], known, again)


def _alarms(settings: Any, decision: Mapping[str, Any], sites: Sequence[str], out: Reweighed) -> None:
    """Whoever diverges too far is named in the notes."""
    due = alarms(sites, column(decision["signals"]["nsds"], sites), most=settings.alarm)
    for site, note in due.items():
        if note not in decision["notes"]:
            out.wrong.append(f"{site} diverges by more than method.trust.alarm, and no note says so")
