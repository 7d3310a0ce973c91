"""Sentences about the signals behind a weight: selection, lateness, scores, and trust (FedXChain).

Trust has three parts, each a share times a number in [0, 1]. The sentences give every part and its value.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from grandrounds.explain.trust import DOUBTS, agreement, divergence_penalty
from grandrounds.methods.fedxchain.summary import rejection_code
from grandrounds.methods.sse_agg.harm import HARM_BY_HALF
from grandrounds.report.weights.record import SiteView, as_sentence, join_names, percent, whole_percent

TRUST_SIGNALS = ("accuracy", "nsds", "steadiness", "consistency", "trust", "alignment", "contribution", "reward")
"""Signals that this module explains."""

_LEAST = 5e-5


def uses_trust(view: SiteView) -> bool:
    """Tell whether trust was kept of this site in this round."""
    return view.value("nsds") is not None and view.value("trust") is not None


def trust_sentences(view: SiteView) -> list[str]:
    """Explain trust: its value, its three parts, the penalty for NSDS, and the site's reward."""
    if not uses_trust(view):
        return []
    return [
        _trust_total(view),
        *_accuracy_sentences(view),
        *_agreement_sentences(view),
        *_consistency_sentences(view),
        *_weight_sentences(view),
        *_reward_sentences(view),
    ]


def refusal_sentences(view: SiteView) -> list[str]:
    """Name the sites that rejected the weights and why, or state that every site accepted them."""
    codes = {s: code for s, why in view.decision.missing.items() if (code := rejection_code(why))}
    if not codes and uses_trust(view) and view.setting("weigh", "rule") == "trust":
        return ["Every site that answered was shown all numbers, recomputed the weights and accepted them."]
    return [
        f"{join_names([s for s in codes if codes[s] == code])} refused: {DOUBTS[code]}."
        for code in _distinct_codes(codes)
    ]


def missing_reason(why: str) -> str:
    """Return why a site is missing, with the code of a refusal spelled out."""
    code = rejection_code(why)
    return f"refused the round's weights: {DOUBTS[code]}" if code else why


def _distinct_codes(codes: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(codes.values()))


def _trust_setting(view: SiteView, name: str) -> float | None:
    share = view.setting("trust", name)
    return None if share is None else float(share)


def _trust_total(view: SiteView) -> str:
    trust = view.values("trust")[view.site]
    parts = _trust_parts(view)
    sum_of_parts = (
        f": {parts['accuracy']:.3f} for accuracy, {parts['agreement']:.3f} for agreement of its explanations, "
        if parts
        else ""
    )
    sum_of_parts += f"{parts['consistency']:.3f} for consistency" if parts else ""
    return f"Its trust is {trust:.3f} (scale 0 to 1){_trust_rank_clause(view, 'trust', 'most')}{sum_of_parts}."


def _trust_parts(view: SiteView) -> dict[str, float]:
    """Compute what accuracy, agreement and consistency add to trust; empty where the plan is not known."""
    shares = [_trust_setting(view, name) for name in ("alpha", "beta", "gamma")]
    steady, trust = view.value("consistency"), view.value("trust")
    if None in shares or steady is None or trust is None:
        return {}
    alpha, beta, gamma = (s for s in shares if s is not None)
    agreed, even, right = beta * _agreement_score(view), gamma * steady, view.value("accuracy")
    first = trust - agreed - even if right is None else alpha * right
    return {"accuracy": first, "agreement": agreed, "consistency": even}


def _agreement_score(view: SiteView) -> float:
    points = view.value("alignment") if view.setting("trust", "signed") else None
    return float(agreement(view.values("nsds")[view.site], points))


def _share_clause(view: SiteView, name: str, value: float) -> str:
    share = _trust_setting(view, name)
    return "" if share is None else f"; times {name} = {share:g} that is {share * value:.3f}"


def _accuracy_sentences(view: SiteView) -> list[str]:
    accuracy, measured_at = view.value("accuracy"), view.setting("trust", "accuracy_at")
    if accuracy is None:
        where = "validation rows" if measured_at == "site" else "accuracy"
        return [f"Accuracy: it has no {where} of its own, so it counts as the mean of the others'."]
    rows = {"site": "its own validation rows", "reference": "the reference rows"}.get(
        str(measured_at), "the rows it was evaluated on"
    )
    source = "as it reported" if measured_at == "site" or _is_secure(view) else "as the server measured"
    return [
        f"Accuracy: its model is correct on {percent(accuracy)} of {rows}, {source}{_share_clause(view, 'alpha', accuracy)}."
    ]


def _agreement_sentences(view: SiteView) -> list[str]:
    nsds, points = view.values("nsds")[view.site], view.value("alignment")
    source = ", as it reported" if _is_secure(view) else ""
    text = (
        f"Agreement: its SHAP values diverge from the consortium's by an NSDS of {nsds:.3f}{source} (0 = identical)"
        f"{_trust_rank_clause(view, 'nsds', 'farthest')}; exp(-NSDS) = {float(agreement(nsds, None)):.3f}"
    )
    if view.setting("trust", "signed") and points is not None:
        text += f", and their signs follow the consortium's by a cosine of {points:.2f}, "
        text += "so they do not agree at all" if points <= 0 else f"which leaves {_agreement_score(view):.3f}"
    return [f"{text}{_share_clause(view, 'beta', _agreement_score(view))}."]


def _consistency_sentences(view: SiteView) -> list[str]:
    consistency, steady, window = view.value("consistency"), view.value("steadiness"), view.setting("trust", "window")
    if consistency is None:
        return []
    over = f"up to {window} rounds" if window else "the last rounds"
    steady_text = (
        "no earlier explanations to compare with"
        if steady is None
        else f"explanations that are {percent(steady)} as they were"
    )
    share = _share_clause(view, "gamma", consistency)
    return [f"Consistency: {consistency:.3f}, by even accuracies over {over}, and {steady_text}{share}."]


def _weight_sentences(view: SiteView) -> list[str]:
    """Explain how trust became a weight: what NSDS took off, and signs, rows and sketches where they count too."""
    tau, form, kappa = _trust_setting(view, "tau"), view.setting("trust", "form"), _trust_setting(view, "kappa")
    if tau is None or view.setting("weigh", "rule") != "trust":
        return []
    remaining = {s: float(divergence_penalty(n, tau=tau, form=str(form))) for s, n in view.values("nsds").items()}
    if not any(remaining.values()):
        return ["NSDS would leave no site any weight, so trust alone decides."]
    points = view.values("alignment") if view.setting("trust", "signed") else {}
    if points and not any(n * max(points.get(s, 1.0), 0.0) for s, n in remaining.items()):
        return [
            "NSDS and the signs of attributions would leave no site any weight, so trust alone decides."
        ]
    factor, nsds = remaining[view.site], view.values("nsds")[view.site]
    how = f"exp(-{tau:g} x {nsds:.3f})" if form == "exponential" else f"1 - {tau:g} x {nsds:.3f}, at least 0"
    took = 1 - factor
    out = [
        f"For its NSDS, {percent(took)} is subtracted from its weight by trust alone ({how} = {factor:.3f}), before "
        "normalisation."
        if took >= _LEAST
        else f"Its NSDS does not reduce its weight ({how} = {factor:.3f})."
    ]
    if view.site in points:
        agree = points[view.site]
        rest = "so nothing is left of it" if agree <= 0 else f"which leaves {percent(agree)} of it"
        out.append(f"Signs count in the weight too: theirs agree by {agree:.2f}, {rest}.")
    if kappa:
        out.append(f"The weight is also multiplied by its rows to the power of {kappa:g}.")
    in_line = view.value("in_line")
    if in_line is not None and view.setting("trust", "reasons"):
        out.append(
            f"Of that it keeps {whole_percent(in_line)}, as far as its sketch is in line with the others' (SSE-AGG)."
        )
    return out


def _reward_sentences(view: SiteView) -> list[str]:
    """Give its contribution and its reward, where they were computed."""
    value, reward = view.value("contribution"), view.value("reward")
    if value is None or reward is None:
        return []
    source = ", as it reported" if _is_secure(view) else ""
    change = f"{abs(value):.2g} {'lower' if value >= 0 else 'higher'}"
    meaning = "its contribution" if value >= 0 else "its contribution, which is negative"
    return [
        f"With it at the share of its rows, the log loss on the reference rows is {change} than without it{source}: that is "
        f"{meaning}. Its reward, contribution times trust, is {reward:.2g}{_trust_rank_clause(view, 'reward', 'highest')}."
    ]


def _is_secure(view: SiteView) -> bool:
    """Tell whether models are hidden from the server, so that sites evaluate themselves."""
    return bool((view.decision.privacy or {}).get("secure"))


def _trust_rank_clause(view: SiteView, signal: str, end: str) -> str:
    values = view.values(signal)
    if len(values) < 2:
        return ""
    ahead = sum(v > values[view.site] for v in values.values())
    return f", number {ahead + 1} of {len(values)} (1 the {end})"


_LOW_FIRST = ("lowest", "nearest")
_WORDING = {
    "val_loss": ("Its validation loss is {:.3f}", "highest", "sites with a high loss count more"),
    "ece": ("Its calibration error is {:.3f}", "highest", "poorly calibrated sites count more"),
    "reference_accuracy": ("Its model is correct on {} of the server's reference rows", "most", ""),
    "krum_score": ("Its Krum score, how far its update lies from its neighbours', is {:.3g}", "lowest", ""),
}
_MISSING = {
    "val_loss": "It has no validation rows, so its validation loss counts as the mean of the others'.",
    "ece": "It has no validation rows, so its calibration error counts as the mean of the others'.",
}
_NOUNS = {"val_loss": "validation loss", "ece": "calibration error"}
_WEIGHED = ("val_loss", "ece", "reference_accuracy")
_JUDGED = ("norm", "krum_score", "similarity", "trust", "clipped", "left_out")
_ELSEWHERE = {
    "data_size",
    "disagreement",
    "in_line",
    "standing",
    "sampling",
    "neighbours",
    "harm",
    *HARM_BY_HALF,
    "agreement",
    "flat",
    "importance",
    "cluster",
    "loss",
    "distance",
    "staleness",
}


def score_sentences(view: SiteView) -> list[str]:
    """Explain the scores that sites were weighed by, besides rows and explanations."""
    out = [_rank_sentence(view, name) for name in _WEIGHED if view.has_signal(name)]
    value = view.value("distance")
    if value is not None and not _uses_geometric_median(view):
        place = _rank_clause(view, "distance", "nearest")
        out.append(f"Its model lies {value:.3g} from the mean of all models{place}; the nearer, the more it counts.")
    return out


def robust_sentences(view: SiteView) -> list[str]:
    """Explain the numbers behind a robust rule."""
    if view.value("left_out"):
        return ["Its update had no finite length and was left out."]
    together = _robust_peers(view)
    lengths = [v for s, v in view.values("norm").items() if s in together]
    length = view.value("norm")
    if length is None or not any(lengths):
        return []  # there is no rule, or the cohort was too small for it
    usual = float(np.median(lengths))
    place = _rank_clause(view, "norm", "longest", together)
    out = [f"Its update is {length:.3g} long{place}; the usual length was {usual:.3g}."]
    if view.has_signal("krum_score"):
        out.append(_rank_sentence(view, "krum_score", together))
    value = view.value("distance")
    if value is not None and _uses_geometric_median(view):
        place = _rank_clause(view, "distance", "nearest", together)
        out.append(
            f"Its update lies {value:.3g} from the geometric median{place}; the further off, the less it counts."
        )
    return [*out, *_similarity_sentences(view), *_clipping_sentences(view)]


def selection_sentences(view: SiteView) -> list[str]:
    """Explain its selection."""
    why = view.stage_reason("select")
    if not why:
        return []
    selected = "it was one of them" if view.site in view.weights else "it was not one of them"
    out = [as_sentence(why if view.site in view.decision.missing else f"{why}; {selected}")]
    value = view.value("loss")
    if value is not None:
        out.append(
            f"Before training, the model's loss on its rows was {value:.3f}{_rank_clause(view, 'loss', 'highest')}."
        )
    return out


def lateness_sentences(view: SiteView) -> list[str]:
    """Give the age of the model that its answer started from, in asynchronous methods."""
    age = view.value("staleness")
    if age is None:
        return []
    if not age:
        return ["Its answer started from the newest model."]
    return [f"Its answer started from the model of {age:.0f} round{'s' if age > 1 else ''} before."]


def custom_signal_sentences(view: SiteView) -> list[str]:
    """List signals of a plug-in method."""
    described = {*_WEIGHED, *_JUDGED, *_ELSEWHERE} - ({"loss"} if not view.stage_reason("select") else set())
    described |= set(TRUST_SIGNALS) if uses_trust(view) else set()
    names = [name for name in view.decision.signals if name not in described and view.value(name) is not None]
    return [f"Its {n.replace('_', ' ')} is {view.value(n):.4g}{_rank_clause(view, n, 'highest')}." for n in names]


def _rank_sentence(view: SiteView, name: str, peers: Collection[str] | None = None) -> str:
    value = view.value(name)
    if value is None and name in _MISSING and not view.values(name):
        return f"No site has validation rows, so {_NOUNS[name]} does not affect the weights."
    if value is None:
        return _MISSING.get(name, f"There is no {name.replace('_', ' ')} of it.")
    words, end, meaning = _WORDING[name]
    number = words.format(percent(value) if name == "reference_accuracy" else value)
    return f"{number}{_rank_clause(view, name, end, peers)}{f'; {meaning}' if meaning else ''}."


def _rank_clause(view: SiteView, name: str, end: str, peers: Collection[str] | None = None) -> str:
    """Write ', number 2 of 5 (1 the highest)' among these sites, or all that have the signal; nothing for one alone."""
    values = {s: v for s, v in view.values(name).items() if peers is None or s in peers}
    if len(values) < 2:
        return ""
    value = values[view.site]
    ahead = sum(v < value if end in _LOW_FIRST else v > value for v in values.values())
    return f", number {ahead + 1} of {len(values)} (1 the {end})"


def _robust_peers(view: SiteView) -> list[str]:
    """Return the sites that a robust rule compared it with: each cohort by itself."""
    everyone = list(view.values("norm") or view.weights)
    return everyone if view.cohort is None else [s for s in everyone if s == view.site or s in view.cohort_peers]


def _uses_geometric_median(view: SiteView) -> bool:
    rule = view.setting("robust", "rule")
    return rule == "geometric-median" or (rule is None and view.value("norm") is not None)


def _similarity_sentences(view: SiteView) -> list[str]:
    """Explain FLTrust and FoolsGold: a cosine, and the trust that it leaves."""
    cosine, trust = view.value("similarity"), view.value("trust")
    if cosine is None or trust is None:
        return []
    rule = view.setting("robust", "rule")
    if rule == "fltrust":
        way = "It points in the direction of the server's update on its reference rows"
        return [f"{way} by a cosine of {cosine:.2f}, which gives it a trust of {trust:.2f}."]
    if rule == "foolsgold":
        way = "Its updates so far point in the direction of the most similar site's"
        return [f"{way} by a cosine of {cosine:.2f}, which gives it a trust of {trust:.2f}."]
    return [f"Its similarity is {cosine:.2f}, its trust {trust:.2f}."]


def _clipping_sentences(view: SiteView) -> list[str]:
    cut = view.value("clipped")
    if cut is None:
        return []
    return [f"{whole_percent(cut)} of its length was clipped." if cut else "It was within the limit and not clipped."]
