"""SSE-AGG's aggregation: Algorithm 1 of the paper, with the form of agreement that [method.weigh] names.

Eq. 4 to 8, 20 and 21 are in `printed.py`; our form of agreement is in `outliers.py` and `harm.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import WeighSettings
from grandrounds.methods.site_state import PerSiteState
from grandrounds.methods.sse_agg.agreement import (
    Agreement,
    describe_flat,
    is_explained_round,
    limit_flat,
    resolve_sharpness,
)
from grandrounds.methods.sse_agg.harm import (
    HARM_BY_HALF,
    HARMS,
    STANDING,
    choose_halves,
    describe_demotions,
    describe_halves,
    measure_harm,
    resolve_least_share,
    retained_share,
)
from grandrounds.methods.sse_agg.outliers import measure_distances, smoothed_ratio
from grandrounds.methods.sse_agg.printed import (
    apply_floor,
    blend,
    calibration_weights,
    printed_agreement,
    worst_site_weights,
)
from grandrounds.methods.sse_agg.site import PatientHalves
from grandrounds.methods.weigh import EXPLANATIONS, WeightingResult, WeightingRule, as_shares, data_size
from grandrounds.protocol.messages import OWN_HALF, Answers, Payload

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

OUTLIER = "outlier"
"""Our form of agreement."""

FORMS = {
    OUTLIER: "the share of rows, lower for outlying explanations, by a power of the distance (ours)",
    "inverse": "1 / (eps + distance to the consensus) (eq. 5)",
    "exponential": "exp(-tau x distance to the consensus) (eq. 21)",
}
TRUST = "trust"
"""State of a site from round to round: its trust by explanations, for rounds without them."""

_REPORTS = {"agreement": "sketch", "worst_site": "val_loss", "calibration": "ece"}


class ExplanationRule(WeightingRule):
    """Weigh sites by their explanations, and have those that would be demoted for harm train on one half of their patients."""

    site = (PatientHalves,)

    def reports(self, round: int) -> tuple[str, ...]:
        return requested_reports(self.settings, round)

    def site_payloads(self, server: Server) -> dict[str, Payload]:
        return {site: {OWN_HALF: half} for site, half in choose_halves(self.settings, server).items()}

    def weigh(self, server: Server, answers: Answers, groups: Array | None = None) -> WeightingResult:
        return explanation_weights(self.settings, server, answers, groups)


def explanation_weights(
    settings: WeighSettings, server: Server, answers: Answers, groups: Array | None = None
) -> WeightingResult:
    """Weigh the sites that answered, as Algorithm 1 does in a round.

    In rounds without explanations (T_s) weights follow rows, or the last known agreement.
    """
    lambdas = {name: share for name, share in resolve_lambdas(settings).items() if share}
    state = PerSiteState(server, answers, TRUST, STANDING, HARMS, *HARM_BY_HALF)
    signals = {"data": data_size(answers["count"])}  # eq. 4
    explained = is_explained_round(settings, server.round)
    if "agreement" in lambdas and not explained and (settings.between_rounds == "data_size" or not state.has(TRUST)):
        why = f"{_interval_text(settings)} a site's weight is its share of the rows"
        return WeightingResult(signals["data"], {}, why, signals, state.updated())

    numbers: dict[str, Array] = {}
    notes: tuple[str, ...] = ()
    found: dict[str, Array] = {}
    if "agreement" in lambdas:
        agreement = _agreement(settings, server, answers, groups, state)  # eq. 5, eq. 21, or our form
        signals["agreement"], notes = agreement.shares, agreement.notes
        numbers |= agreement.numbers
        found = _to_remember(agreement, answers) if explained else {}
    if "worst_site" in lambdas:
        numbers["val_loss"] = np.asarray(answers["val_loss"], float)
        signals["worst_site"] = worst_site_weights(numbers["val_loss"], beta=settings.beta)  # eq. 6
    if "calibration" in lambdas:
        numbers["ece"] = np.asarray(answers["ece"], float)
        signals["calibration"] = calibration_weights(numbers["ece"], gamma=settings.gamma)  # eq. 7
    blended = blend(signals, lambdas)  # eq. 8
    weights = apply_floor(blended, settings.floor)
    why = _describe_blend(settings, lambdas, explained=explained)
    return WeightingResult(
        weights, numbers, why, _signal_shares(signals, lambdas, blended, weights), state.updated(**found), notes
    )


def _agreement(
    settings: WeighSettings, server: Server, answers: Answers, groups: Array | None, state: PerSiteState
) -> Agreement:
    """Compute the agreement signal of a round, or the last known one in a round without explanations."""
    if not is_explained_round(settings, server.round):
        trust = np.nan_to_num(state.get(TRUST), nan=1.0)
        by_rows = trust * data_size(answers["count"]) if settings.form == OUTLIER else trust
        return Agreement(trust, as_shares(by_rows), {_trust_name(settings): trust})
    if settings.form == OUTLIER:
        return outlier_agreement(settings, answers, groups, state, choose_halves(settings, server))
    return printed_agreement(settings, answers, groups)


def outlier_agreement(
    settings: WeighSettings, answers: Answers, cohorts: Array | None, state: PerSiteState, halves: Mapping[str, int]
) -> Agreement:
    """Compute our agreement signal: the weight of a site's rows, less where its explanations are outliers or it does harm.

    Args:
        settings: The section [method.weigh].
        answers: Answers with explanations.
        cohorts: The cohort of each answer, (K,), where explanations are compared within cohorts.
        state: Outlier ratios and harm of earlier rounds.
        halves: Sites that trained on one half of their own patients, and which.
    """
    sites, flat, least = answers.sites, np.asarray(answers["sketch.flat"], bool), resolve_least_share(settings)
    found = measure_distances(settings, answers, cohorts, lenient=least > 0)
    standing = smoothed_ratio(found.ratio, state.get(STANDING), settings.memory)
    harm = measure_harm(settings, answers, state, halves)
    trust, notes = np.ones(len(sites)), [*found.notes]
    if not flat.all():
        sharpness = resolve_sharpness(settings)
        trust = retained_share(standing, harm.remembered, least=least, sharpness=sharpness, confirmed=harm.confirmed)
        notes += describe_demotions(sites, standing, harm.remembered, least, harm.confirmed)
    trust = limit_flat(trust, flat)
    notes += [*describe_halves(sites, halves), *(describe_flat(sites, flat) if flat.any() else [])]
    numbers = {"disagreement": found.distance, "in_line": trust, STANDING: standing}
    numbers["importance"] = np.asarray(answers["sketch.total"], float)
    if least > 0:
        numbers["neighbours"] = found.neighbours
        numbers |= {"sampling": found.sampling} if "sketch.sampling" in answers else {}
    if "sketch.harm" in answers:
        numbers[HARMS] = harm.remembered
    if np.isfinite(harm.by_half).any():
        numbers |= dict(zip(HARM_BY_HALF, harm.by_half, strict=True))
    if flat.any():
        numbers["flat"] = flat.astype(float)
    return Agreement(trust, as_shares(trust * data_size(answers["count"])), numbers, tuple(notes))


def _to_remember(agreement: Agreement, answers: Answers) -> dict[str, Array]:
    """Select what the next rounds need; trust only of a round in which some model used a feature."""
    informative = not np.asarray(answers["sketch.flat"], bool).all()
    kept = {name: agreement.numbers[name] for name in (STANDING, HARMS, *HARM_BY_HALF) if name in agreement.numbers}
    return {TRUST: agreement.trust, **kept} if informative else kept


def _signal_shares(
    signals: Mapping[str, Array], lambdas: Mapping[str, float], blended: Array, weights: Array
) -> dict[str, Array]:
    """Compute the contribution of each signal to the weights, (K,) each: in the proportions of the blend.

    If only the floor gives a site weight, in the proportions of the lambdas.
    """
    parts = {name: share * signals[name] / np.where(blended > 0, blended, 1.0) for name, share in lambdas.items()}
    return {name: np.where(blended > 0, part, lambdas[name]) * weights for name, part in parts.items()}


def resolve_lambdas(settings: WeighSettings) -> dict[str, float]:
    """Return the share of each signal: as given, or (1 - e, e) of data and agreement with e the `explanation_weight`."""
    lambdas: Mapping[str, float] = settings.lambdas.plain()
    if lambdas:
        return dict(lambdas)
    e = 1.0 if settings.explanation_weight is None else float(settings.explanation_weight)
    return {"data": 1 - e, "agreement": e}


def requested_reports(settings: WeighSettings, round: int) -> tuple[str, ...]:
    """Return the reports that [method.weigh] needs in this round besides the model.

    In rounds without explanations, the paper's other signals are also skipped only if weights follow rows alone.
    """
    if settings.rule != EXPLANATIONS:
        return ()
    used, explained = resolve_lambdas(settings), is_explained_round(settings, round)
    if not explained and used.get("agreement") and settings.between_rounds == "data_size":
        return ()
    needed = {signal: report for signal, report in _REPORTS.items() if used.get(signal)}
    return tuple(report for signal, report in needed.items() if explained or signal != "agreement")


def _trust_name(settings: WeighSettings) -> str:
    """Name the trust of a form in a Decision: shares of the weight by rows, or of the nearest site's agreement."""
    return "in_line" if settings.form == OUTLIER else "agreement"


def _describe_blend(settings: WeighSettings, lambdas: Mapping[str, float], *, explained: bool) -> str:
    why = "a site's weight is " + " + ".join(_describe_signal(name, share, settings) for name, share in lambdas.items())
    if settings.floor:
        why += f", and at least {settings.floor:g} before normalisation"
    if "agreement" in lambdas and not explained:
        why = f"{_interval_text(settings)} the last known agreement is used: {why}"
    return why


def _interval_text(settings: WeighSettings) -> str:
    return f"explanations are requested every {settings.every} rounds; in this one"


def _describe_signal(signal: str, share: float, settings: WeighSettings) -> str:
    text = {
        "data": "its share of the training rows",
        "agreement": {
            OUTLIER: "its share of the rows, lower if its explanations are outliers",
            "inverse": f"the agreement of its explanations with the consensus, 1 / ({settings.eps:g} + distance)",
            "exponential": f"the agreement of its explanations with the consensus, exp(-{settings.tau:g} x distance)",
        }[settings.form],
        "worst_site": f"softmax of {settings.beta:g} x its validation loss",
        "calibration": f"softmax of {settings.gamma:g} x its calibration error",
    }[signal]
    return text if share == 1 else f"{share:.2g} x {text}"
