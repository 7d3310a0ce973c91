"""SSE-AGG's weights: a convex blend of signals, among them agreement of explanations (eq. 4-8 and 20-21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import WeighSettings
from grandrounds.methods.weigh import (
    EXPLANATIONS,
    HARM,
    HARM_ALONE,
    MATERIAL_HARM,
    MIN_ROWS_TO_HALVE,
    WeightingResult,
    apply_floor,
    blend,
    confirm_on_halves,
    count_neighbours,
    data_size,
    disagreement,
    exponential_weights,
    find_suspects,
    inverse_weights,
    is_comparable,
    outlier_distance,
    outlier_ratio_beyond_sampling,
    remember_harm,
    retained_share,
    smoothed_ratio,
    softmax_signal,
)
from grandrounds.protocol.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

MIN_COHORT_SITES = 2
"""Fewest sites of a cohort with its own consensus; a single site is compared with all sites instead."""

FORMS = {
    "outlier": "the share of rows, lower for outlying explanations, by a power of the distance (ours)",
    "inverse": "1 / (eps + distance to the consensus) (eq. 5)",
    "exponential": "exp(-tau x distance to the consensus) (eq. 21)",
}
DEFAULT_LEAST_SHARE = 0.5
"""Default share of its rows' weight that a site keeps unless it harms the model."""

DEFAULT_SHARPNESS = {"outlier": 4.0, "inverse": 1.0}
_TRUST = {"outlier": "in_line", "inverse": "agreement", "exponential": "agreement"}
_HALF = {1: "first", 2: "second"}
_REPORTS = {"agreement": "sketch", "worst_site": "val_loss", "calibration": "ece"}


def resolve_lambdas(settings: WeighSettings) -> dict[str, float]:
    """Return the share of each signal: as given, or (1 - e, e) of data and agreement with e the `explanation_weight`."""
    lambdas: Mapping[str, float] = settings.lambdas.plain()
    if lambdas:
        return dict(lambdas)
    e = 1.0 if settings.explanation_weight is None else float(settings.explanation_weight)
    return {"data": 1 - e, "agreement": e}


def resolve_sharpness(settings: WeighSettings) -> float:
    """Return the exponent of agreement: as given, or the default of the form."""
    return DEFAULT_SHARPNESS[settings.form] if settings.sharpness is None else float(settings.sharpness)


def is_explained_round(settings: WeighSettings, round: int) -> bool:
    """Check whether this round requests explanations: the first and then every T_s-th (the paper: every T_s-th)."""
    return settings.every == 1 or round % settings.every == 0 or (settings.between_rounds == "last" and round == 1)


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


def explanation_weights(
    settings: WeighSettings, server: Server, answers: Answers, groups: Array | None = None
) -> WeightingResult:
    """Blend the signals of these answers (eq. 8); without sketches, use rows or the last known agreement."""
    rows = data_size(answers["count"])
    used = {name: share for name, share in resolve_lambdas(settings).items() if share}
    state = PerSiteState(server, answers, TRUST, STANDING, HARMS, *HARM_BY_HALF)
    explained = "agreement" in used and is_explained_round(settings, server.round)
    if "agreement" in used and not explained and (settings.between_rounds == "data_size" or not state.has(TRUST)):
        why = f"{_interval_text(settings)} a site's weight is its share of the rows"
        return WeightingResult(rows, {}, why, {"data": rows}, state.updated())
    signals: dict[str, Array] = {"data": rows}
    numbers: dict[str, Array] = {}
    notes: tuple[str, ...] = ()
    if explained:
        signals["agreement"], numbers, notes = _agreement(
            settings, answers, rows, groups, state, choose_halves(settings, server)
        )
    elif "agreement" in used:
        trust = np.nan_to_num(state.get(TRUST), nan=1.0)
        numbers = {_TRUST[settings.form]: trust}
        unscaled = trust * rows if settings.form == "outlier" else trust
        signals["agreement"] = unscaled / unscaled.sum()
    if "worst_site" in used:
        numbers["val_loss"] = np.asarray(answers["val_loss"], float)
        signals["worst_site"] = softmax_signal(numbers["val_loss"], settings.beta)
    if "calibration" in used:
        numbers["ece"] = np.asarray(answers["ece"], float)
        signals["calibration"] = softmax_signal(numbers["ece"], settings.gamma)
    blended = blend(signals, used)
    weights = apply_floor(blended, settings.floor)
    why = "a site's weight is " + " + ".join(_describe_signal(name, share, settings) for name, share in used.items())
    if settings.floor:
        why += f", and at least {settings.floor:g} before normalisation"
    if "agreement" in used and not explained:
        why = f"{_interval_text(settings)} the last known agreement is used: {why}"
    informative = explained and not np.asarray(answers["sketch.flat"], bool).all()
    trust_now = {TRUST: numbers[_TRUST[settings.form]]} if informative else {}
    memory = state.updated(
        **trust_now, **{name: numbers[name] for name in (STANDING, HARMS, *HARM_BY_HALF) if name in numbers}
    )
    return WeightingResult(weights, numbers, why, _signal_shares(signals, used, blended, weights), memory, notes)


def _signal_shares(
    signals: Mapping[str, Array], used: Mapping[str, float], blended: Array, weights: Array
) -> dict[str, Array]:
    """Compute the contribution of each signal to the weights, (K,) each: in the proportions of the blend.

    If only the floor gives a site weight, in the proportions of the lambdas.
    """
    proportions = {name: share * signals[name] / np.where(blended > 0, blended, 1.0) for name, share in used.items()}
    return {name: np.where(blended > 0, part, used[name]) * weights for name, part in proportions.items()}


def _agreement(
    settings: WeighSettings,
    answers: Answers,
    rows: Array,
    groups: Array | None,
    state: PerSiteState,
    halves: Mapping[str, int],
) -> tuple[Array, dict[str, Array], tuple[str, ...]]:
    """Return the agreement signal, its inputs, and the sites without explanations.

    A model that uses no feature has a uniform sketch, which may be near the consensus by accident; as printed it would get the
    most weight. Here its weight is at most that of the site that agrees least, and it is left out of the consensus. If no model
    uses any feature there is no consensus, and weights follow rows. `halves`: sites that trained on one half of their own
    patients, and which. Without a least share (preset "defence") an outlier is penalised regardless of sampling and neighbours.
    """
    lenient = resolve_least_share(settings) > 0
    flat = np.asarray(answers["sketch.flat"], bool)
    labels = np.zeros(len(answers), np.int64) if groups is None else groups
    far, trust, standing = np.zeros(len(answers)), np.ones(len(answers)), np.full(len(answers), np.nan)
    sampling = _read_column(answers, "sketch.sampling", 0.0) if lenient else np.zeros(len(answers))
    neighbours = np.full(len(answers), 0.0 if lenient else np.inf)
    notes: list[str] = []
    for cohort in np.unique(labels):
        members = np.flatnonzero(labels == cohort)
        compared = members if len(members) >= MIN_COHORT_SITES else np.arange(len(labels))
        speaking = np.ones(len(compared), bool) if flat[compared].all() else ~flat[compared]
        apart, usual_total = _distances(settings, answers.only(compared, {}), speaking)
        in_cohort = np.isin(compared, members)
        far[members] = apart[in_cohort]
        if settings.form == "outlier" and not flat[compared].all():
            distant_sites = neighbours[compared]
            if lenient:
                distant_sites = _count_distant_sites(
                    settings, answers.only(compared, {}), sampling[compared], apart, speaking, usual_total
                )
            ratio = outlier_ratio_beyond_sampling(
                apart,
                sampling[compared],
                distant_sites,
                tolerance=settings.tolerance,
                peers=apart[speaking],
                usual_total=usual_total,
            )
            standing[members], neighbours[members] = ratio[in_cohort], distant_sites[in_cohort]
        else:
            trust[members] = _paper_weights(settings, apart, speaking)[in_cohort]
        if settings.form == "outlier" and not is_comparable(apart[speaking]):
            usual = np.median(apart[speaking])
            sentence = f"explanations usually differ by {usual:.2f} from their consensus, too much to identify outliers"
            notes.append(sentence if groups is None else f"cohort {cohort + 1}: {sentence}")
    if settings.form == "outlier":
        standing = smoothed_ratio(standing, state.get(STANDING), settings.memory)
        now = _read_column(answers, "sketch.harm", np.nan)
        harm, least = remember_harm(now, state.get(HARMS)), resolve_least_share(settings)
        tried = _harm_on_halves(answers.sites, now, halves, state)
        confirmed = confirm_harm(settings, tried, np.asarray(answers["count"], float))
        trust = np.ones(len(answers))
        if not flat.all():
            trust = retained_share(
                standing, harm, least=least, sharpness=resolve_sharpness(settings), confirmed=confirmed
            )
            notes += _explain_demotions(answers.sites, standing, harm, least, confirmed)
        notes += [
            f"{s}: in this round it trained on the {_HALF[halves[s]]} half of its own patients"
            for s in answers.sites
            if s in halves
        ]
    if flat.any() and not flat.all():
        trust[flat] = np.minimum(trust[flat], trust[~flat].min())
    weighed = trust * rows if settings.form == "outlier" else rows if flat.all() else trust
    if flat.all():
        notes.append("no site's model uses any feature, so weights follow rows alone")
    else:
        notes += [
            f"{site}: its model uses no feature, so its weight by explanations is at most the lowest of the others'"
            for site in np.array(answers.sites)[flat]
        ]
    numbers = {"disagreement": far, _TRUST[settings.form]: trust}
    if settings.form == "outlier":
        numbers[STANDING] = standing
        numbers["importance"] = np.asarray(answers["sketch.total"], float)
        numbers |= {"neighbours": neighbours} if lenient else {}
        numbers |= {"sampling": sampling} if lenient and "sketch.sampling" in answers else {}
        if "sketch.harm" in answers:
            numbers[HARMS] = harm
        if np.isfinite(tried).any():
            numbers |= dict(zip(HARM_BY_HALF, tried, strict=True))
    if flat.any():
        numbers["flat"] = flat.astype(float)
    return weighed / weighed.sum(), numbers, tuple(notes)


def resolve_least_share(settings: WeighSettings) -> float:
    """Read the share of its rows' weight that a site keeps unless it harms the model; plans of earlier versions have none."""
    least = settings.plain().get("least_share", 0.0)
    return DEFAULT_LEAST_SHARE if least is None else float(least)


def confirms_on_halves(settings: WeighSettings) -> bool:
    """Check whether harm must be confirmed on both halves of a site's own patients; plans of earlier versions lack the
    setting."""
    values = settings.plain()
    return bool(settings.rule == EXPLANATIONS and settings.form == "outlier" and values.get("own_halves"))


def choose_halves(settings: WeighSettings, server: Server) -> dict[str, int]:
    """Choose the sites that train on one half of their own patients in this round, and which half, 1 or 2.

    These sites would be demoted for harm found in earlier rounds. The halves alternate.
    """
    if (
        not confirms_on_halves(settings)
        or not is_explained_round(settings, server.round)
        or server.private
        or server.secure
    ):
        return {}
    nothing = np.full(len(server.sites), np.nan)
    standing, harm = (server.state.get(name, nothing) for name in (STANDING, HARMS))
    suspects = find_suspects(standing, harm, least=resolve_least_share(settings))
    half = 1 + server.round // settings.every % 2
    return {
        s: half
        for s, is_suspect in zip(server.sites, suspects, strict=True)
        if is_suspect and server.rows.get(s, 0) >= MIN_ROWS_TO_HALVE
    }


def confirm_harm(settings: WeighSettings, halves: Array, rows: Array) -> Array:
    """Find the sites, (K,) of bool, whose harm is confirmed by both halves (2, K); all of them if halves are not used."""
    return confirm_on_halves(halves[0], halves[1], rows) if confirms_on_halves(settings) else np.ones(len(rows), bool)


def _harm_on_halves(sites: Sequence[str], now: Array, halves: Mapping[str, int], state: PerSiteState) -> Array:
    """Read the harm (2, K) of each site when it last trained on either half of its patients; NaN: never."""
    half_of_site = np.array([halves.get(s, 0) for s in sites])
    harm = [
        np.where((half_of_site == k) & np.isfinite(now), now, state.get(name))
        for k, name in enumerate(HARM_BY_HALF, start=1)
    ]
    return np.stack(harm)


def _read_column(answers: Answers, name: str, missing: float) -> Array:
    """Read a column (K,) that the server adds if it has models and reference rows."""
    return np.asarray(answers[name], float) if name in answers else np.full(len(answers), missing)


def _count_distant_sites(
    settings: WeighSettings, answers: Answers, sampling: Array, far: Array, speaking: Array, usual_total: float
) -> Array:
    """Count, for each site, the sites with explanations from which it is too far."""
    importances = np.asarray(answers["sketch"], float) * np.asarray(answers["sketch.total"], float)[:, None]
    counted = np.zeros(len(answers))
    some = np.flatnonzero(speaking)
    counted[some] = count_neighbours(
        importances[some], sampling[some], far[some], usual_total, tolerance=settings.tolerance
    )
    return counted


def _explain_demotions(sites: Sequence[str], standing: Array, harm: Array, least: float, confirmed: Array) -> list[str]:
    """Explain for each outlier, and each site that harms the model, why it was demoted or not."""
    out = []
    for site, far, z, is_confirmed in zip(sites, standing.tolist(), harm.tolist(), confirmed.tolist(), strict=True):
        worse = f"with it the model is worse on the reference rows, by {z:.1f} standard errors more than {MATERIAL_HARM:.0%}"
        if z > HARM_ALONE and is_confirmed:
            out.append(f"{site}: {worse}: demoted")
            continue
        if not is_confirmed and z > (HARM if far > 1 and least else HARM_ALONE):
            spared = f"at least {least:.0%} of its weight" if far > 1 else "its weight"
            out.append(f"{site}: {worse}, but not with either half of its own patients: it keeps {spared}")
            continue
        if not far > 1:
            continue
        sentence = f"{site}: its explanations are outliers beyond sampling error, at {far:.2f} times the tolerated distance"
        if not least:
            out.append(f"{sentence}; method.weigh.least_share is 0, so it may lose all of its weight")
        elif z > HARM:
            out.append(f"{sentence}, and {worse}: demoted")
        else:
            why = (
                "no labelled reference rows to measure harm" if np.isnan(z) else f"no harm on the reference rows ({z:.1f})"
            )
            out.append(f"{sentence}; {why}: it keeps at least {least:.0%} of its weight")
    return out


def _distances(settings: WeighSettings, answers: Answers, speaking: Array) -> tuple[Array, float]:
    """Return each site's distance to the consensus of sites with explanations, and the total importance in it."""
    sketches = np.asarray(answers["sketch"], float)
    if settings.form == "outlier":
        importances = sketches * np.asarray(answers["sketch.total"], float)[:, None]
        return outlier_distance(importances, importances[speaking])
    return disagreement(sketches, sketches[speaking]), 1.0


def _paper_weights(settings: WeighSettings, far: Array, speaking: Array) -> Array:
    """Compute the weight of each site of a cohort by the paper's forms, at most 1, which the nearest with a sketch has."""
    far = np.maximum(far, far[speaking].min())
    if settings.form == "exponential":
        shares = exponential_weights(far, tau=settings.tau)
    else:
        shares = inverse_weights(far, eps=settings.eps, sharpness=resolve_sharpness(settings))
    most: Array = shares / shares.max()
    return most


def _interval_text(settings: WeighSettings) -> str:
    return f"explanations are requested every {settings.every} rounds; in this one"


def _describe_signal(signal: str, share: float, settings: WeighSettings) -> str:
    text = {
        "data": "its share of the training rows",
        "agreement": {
            "outlier": "its share of the rows, lower if its explanations are outliers",
            "inverse": f"the agreement of its explanations with the consensus, 1 / ({settings.eps:g} + distance)",
            "exponential": f"the agreement of its explanations with the consensus, exp(-{settings.tau:g} x distance)",
        }[settings.form],
        "worst_site": f"softmax of {settings.beta:g} x its validation loss",
        "calibration": f"softmax of {settings.gamma:g} x its calibration error",
    }[signal]
    return text if share == 1 else f"{share:.2g} x {text}"


TRUST, STANDING, HARMS = "trust", "standing", "harm"
"""State of a site from round to round: trust by explanations, outlier ratio, and harm."""

HARM_BY_HALF = ("harm_first_half", "harm_second_half")
"""The harm of a site's model when it last trained on either half of its own patients."""


class PerSiteState:
    """State of the sites that answered, read from the server's state of all sites."""

    def __init__(self, server: Server, answers: Answers, *names: str) -> None:
        """`names`: the values stored from round to round."""
        place = {s: k for k, s in enumerate(server.sites)}
        self._index = [place[s] for s in answers.sites]
        self._sites = len(server.sites)
        self._stored = {name: server.state[name] for name in names if name in server.state}

    def has(self, name: str) -> bool:
        return name in self._stored

    def get(self, name: str, width: int = 0) -> Array:
        """Return the value of each site that answered, (K,), or its values (K, width); NaN where none is known."""
        out: Array = self._all(name, (width,) if width else ())[self._index]
        return out

    def updated(self, **found: Array) -> dict[str, Array]:
        """Return the state of all sites, updated by values (K,) or (K, width) of those that answered."""
        state = dict(self._stored)
        for name, column in found.items():
            state[name] = self._all(name, column.shape[1:]).copy()
            state[name][self._index] = column
        return state

    def _all(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return the state of all sites, (K, *shape); NaN where it is stored in another shape."""
        full_shape, stored = (self._sites, *shape), self._stored.get(name)
        return np.full(full_shape, np.nan) if stored is None or stored.shape != full_shape else stored
