"""Sentences about the signals behind a weight: selection, lateness, scores, and trust (FedXChain).

Trust has three parts, each a share times a number in [0, 1]. The sentences give every part, so that a reader can add them up.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from grandrounds.explain.trust import DOUBTS, agreement, left
from grandrounds.methods.fedxchain.summary import rejection_code
from grandrounds.methods.sse_agg.weights import HARM_BY_HALF
from grandrounds.report.weights.record import Decided, listed, percent, sentence, whole

TRUST_SIGNALS = ("accuracy", "nsds", "steadiness", "consistency", "trust", "alignment", "contribution", "reward")
"""What is said of here."""

_LEAST = 5e-5


def uses_trust(told: Decided) -> bool:
    """Whether trust was kept of this site in this round."""
    return told.own("nsds") is not None and told.own("trust") is not None


def trust_sentences(told: Decided) -> list[str]:
    """The sentences on trust: what it is, its three parts, what NSDS took off, what the site's part was worth."""
    if not uses_trust(told):
        return []
    return [_whole(told), *_accuracy(told), *_agreement(told), *_consistency(told), *_weight(told), *_worth(told)]


def refusal_sentences(told: Decided) -> list[str]:
    """Who did not go along with the weights, and why; that all did, where they were asked."""
    found = {s: code for s, why in told.decision["missing"].items() if (code := rejection_code(why))}
    if not found and uses_trust(told) and told.setting("weigh", "rule") == "trust":
        return ["Every site that answered was shown all numbers, worked the weights out again and went along."]
    return [f"{listed([s for s in found if found[s] == code])} refused: {DOUBTS[code]}." for code in _codes(found)]


def refused(why: str) -> str:
    """Why a site is missing, with the code of a refusal said in words."""
    code = rejection_code(why)
    return f"refused the round's weights: {DOUBTS[code]}" if code else why


def _codes(found: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(found.values()))


def _share(told: Decided, name: str) -> float | None:
    held = told.setting("trust", name)
    return None if held is None else float(held)


def _whole(told: Decided) -> str:
    own = told.known("trust")[told.site]
    parts = _trust_parts(told)
    made = (
        f": {parts['accuracy']:.3f} for accuracy, {parts['agreement']:.3f} for agreement of its reasons, "
        if parts
        else ""
    )
    made += f"{parts['consistency']:.3f} for consistency" if parts else ""
    return f"It is trusted {own:.3f} of at most 1{_trust_place(told, 'trust', 'most')}{made}."


def _trust_parts(told: Decided) -> dict[str, float]:
    """What accuracy, agreement and consistency add to trust; empty where the plan is not known."""
    shares = [_share(told, name) for name in ("alpha", "beta", "gamma")]
    steady, own = told.own("consistency"), told.own("trust")
    if None in shares or steady is None or own is None:
        return {}
    alpha, beta, gamma = (s for s in shares if s is not None)
    agreed, even, right = beta * _agrees(told), gamma * steady, told.own("accuracy")
    first = own - agreed - even if right is None else alpha * right
    return {"accuracy": first, "agreement": agreed, "consistency": even}


def _agrees(told: Decided) -> float:
    points = told.own("alignment") if told.setting("trust", "signed") else None
    return float(agreement(told.known("nsds")[told.site], points))


def _times(told: Decided, name: str, value: float) -> str:
    share = _share(told, name)
    return "" if share is None else f"; times {name} = {share:g} that is {share * value:.3f}"


def _accuracy(told: Decided) -> list[str]:
    own, at = told.own("accuracy"), told.setting("trust", "accuracy_at")
    if own is None:
        where = "validation rows" if at == "site" else "accuracy"
        return [f"Accuracy: it has no {where} of its own, so it counts as the mean of the others'."]
    rows = {"site": "its own validation rows", "reference": "the reference rows"}.get(
        str(at), "the rows it was judged on"
    )
    by = "as it says itself" if at == "site" or _hidden(told) else "as the server measured"
    return [f"Accuracy: its model is right on {percent(own)} of {rows}, {by}{_times(told, 'alpha', own)}."]


def _agreement(told: Decided) -> list[str]:
    nsds, points = told.known("nsds")[told.site], told.own("alignment")
    by = ", as it says itself" if _hidden(told) else ""
    said = (
        f"Agreement: its SHAP values diverge from the consortium's by an NSDS of {nsds:.3f}{by} (0 the same)"
        f"{_trust_place(told, 'nsds', 'farthest')}; exp(-NSDS) = {float(agreement(nsds, None)):.3f}"
    )
    if told.setting("trust", "signed") and points is not None:
        said += f", and their signs follow the consortium's by a cosine of {points:.2f}, "
        said += "so that they do not agree at all" if points <= 0 else f"which leaves {_agrees(told):.3f}"
    return [f"{said}{_times(told, 'beta', _agrees(told))}."]


def _consistency(told: Decided) -> list[str]:
    own, steady, window = told.own("consistency"), told.own("steadiness"), told.setting("trust", "window")
    if own is None:
        return []
    over = f"up to {window} rounds" if window else "the last rounds"
    kept = (
        "no earlier reasons to compare with" if steady is None else f"reasons that are {percent(steady)} as they were"
    )
    return [f"Consistency: {own:.3f}, by even accuracies over {over}, and {kept}{_times(told, 'gamma', own)}."]


def _weight(told: Decided) -> list[str]:
    """How trust became a weight: what NSDS took off, and signs, rows and sketches where they count besides."""
    tau, form, kappa = _share(told, "tau"), told.setting("trust", "form"), _share(told, "kappa")
    if tau is None or told.setting("weigh", "rule") != "trust":
        return []
    kept = {s: float(left(n, tau=tau, form=str(form))) for s, n in told.known("nsds").items()}
    if not any(kept.values()):
        return ["For NSDS no site would have any weight left, so trust alone decides."]
    points = told.known("alignment") if told.setting("trust", "signed") else {}
    if points and not any(n * max(points.get(s, 1.0), 0.0) for s, n in kept.items()):
        return ["For NSDS and the signs of their reasons no site would have any weight left, so trust alone decides."]
    own, nsds = kept[told.site], told.known("nsds")[told.site]
    how = f"exp(-{tau:g} x {nsds:.3f})" if form == "exponential" else f"1 - {tau:g} x {nsds:.3f}, at least 0"
    took = 1 - own
    out = [
        f"For its NSDS, {percent(took)} is taken off what it would weigh by trust alone ({how} = {own:.3f}), before weights "
        "are made to sum to 1."
        if took >= _LEAST
        else f"Its NSDS takes nothing off its weight ({how} = {own:.3f})."
    ]
    if told.site in points:
        agree = points[told.site]
        rest = "so that nothing is left of it" if agree <= 0 else f"which leaves {percent(agree)} of it"
        out.append(f"Signs count in the weight too: theirs agree by {agree:.2f}, {rest}.")
    if kappa:
        out.append(f"Its rows count to the power of {kappa:g} besides.")
    in_line = told.own("in_line")
    if in_line is not None and told.setting("trust", "reasons"):
        out.append(f"Of that it keeps {whole(in_line)}, as far as its sketch is in line with the others' (SSE-AGG).")
    return out


def _worth(told: Decided) -> list[str]:
    """Its contribution and its reward, where they were worked out."""
    value, reward = told.own("contribution"), told.own("reward")
    if value is None or reward is None:
        return []
    by = ", as it says itself" if _hidden(told) else ""
    change = f"{abs(value):.2g} {'lower' if value >= 0 else 'higher'}"
    meaning = "its contribution" if value >= 0 else "its contribution, which is negative"
    return [
        f"With it at the share of its rows, the log loss on the reference rows is {change} than without it{by}: that is "
        f"{meaning}. Its reward, contribution times trust, is {reward:.2g}{_trust_place(told, 'reward', 'highest')}."
    ]


def _hidden(told: Decided) -> bool:
    """Whether models are hidden from the server, so that sites judge themselves."""
    return bool((told.decision.get("privacy") or {}).get("secure"))


def _trust_place(told: Decided, signal: str, end: str) -> str:
    held = told.known(signal)
    if len(held) < 2:
        return ""
    ahead = sum(v > held[told.site] for v in held.values())
    return f", number {ahead + 1} of {len(held)} (1 the {end})"


_LOW = ("lowest", "nearest")
_SAID = {
    "val_loss": ("Its validation loss is {:.3f}", "highest", "sites that do badly count more"),
    "ece": ("Its calibration error is {:.3f}", "highest", "sites that are ill calibrated count more"),
    "reference_accuracy": ("Its model is right on {} of the server's reference rows", "most", ""),
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


def score_sentences(told: Decided) -> list[str]:
    """The sentences on what sites were weighed by, besides rows and reasons."""
    out = [_ranked(told, name) for name in _WEIGHED if told.asks(name)]
    value = told.own("distance")
    if value is not None and not _geometric(told):
        place = _place(told, "distance", "nearest")
        out.append(f"Its model lies {value:.3g} from the mean of all models{place}; the nearer, the more it counts.")
    return out


def robust_sentences(told: Decided) -> list[str]:
    """The sentences on what a robust rule went by."""
    if told.own("left_out"):
        return ["Its update had no finite length and was left out."]
    together = _judged_with(told)
    lengths = [v for s, v in told.known("norm").items() if s in together]
    length = told.own("norm")
    if length is None or not any(lengths):
        return []  # there is no rule, or the cohort was too small for it
    usual = float(np.median(lengths))
    place = _place(told, "norm", "longest", together)
    out = [f"Its update is {length:.3g} long{place}; the usual length was {usual:.3g}."]
    if told.asks("krum_score"):
        out.append(_ranked(told, "krum_score", together))
    value = told.own("distance")
    if value is not None and _geometric(told):
        place = _place(told, "distance", "nearest", together)
        out.append(
            f"Its update lies {value:.3g} from the geometric median{place}; the further off, the less it counts."
        )
    return [*out, *_trusted(told), *_clipped(told)]


def selection_sentences(told: Decided) -> list[str]:
    """How it came to take part, or not to."""
    why = told.why("select")
    if not why:
        return []
    there = "it was one of them" if told.site in told.weights else "it was not one of them"
    out = [sentence(why if told.site in told.decision["missing"] else f"{why}; {there}")]
    value = told.own("loss")
    if value is not None:
        out.append(f"Before training, the model's loss on its rows was {value:.3f}{_place(told, 'loss', 'highest')}.")
    return out


def lateness_sentences(told: Decided) -> list[str]:
    """How old the model was that an answer began from, where answers come in when they will."""
    age = told.own("staleness")
    if age is None:
        return []
    if not age:
        return ["Its answer started from the newest model."]
    return [f"Its answer started from the model of {age:.0f} round{'s' if age > 1 else ''} before."]


def other_signals(told: Decided) -> list[str]:
    """Signals that no part of the package gives: those of a method of the user's own."""
    said = {*_WEIGHED, *_JUDGED, *_ELSEWHERE} - ({"loss"} if not told.why("select") else set())
    said |= set(TRUST_SIGNALS) if uses_trust(told) else set()
    names = [name for name in told.decision["signals"] if name not in said and told.own(name) is not None]
    return [f"Its {n.replace('_', ' ')} is {told.own(n):.4g}{_place(told, n, 'highest')}." for n in names]


def _ranked(told: Decided, name: str, among: Collection[str] | None = None) -> str:
    value = told.own(name)
    if value is None and name in _MISSING and not told.known(name):
        return f"No site has validation rows, so {_NOUNS[name]} argues for nobody."
    if value is None:
        return _MISSING.get(name, f"There is no {name.replace('_', ' ')} of it.")
    words, end, meaning = _SAID[name]
    number = words.format(percent(value) if name == "reference_accuracy" else value)
    return f"{number}{_place(told, name, end, among)}{f'; {meaning}' if meaning else ''}."


def _place(told: Decided, name: str, end: str, among: Collection[str] | None = None) -> str:
    """', number 2 of 5 (1 the highest)' among these sites, or all that have the signal; nothing for one alone."""
    held = {s: v for s, v in told.known(name).items() if among is None or s in among}
    if len(held) < 2:
        return ""
    own = held[told.site]
    ahead = sum(v < own if end in _LOW else v > own for v in held.values())
    return f", number {ahead + 1} of {len(held)} (1 the {end})"


def _judged_with(told: Decided) -> list[str]:
    """A robust rule judges each cohort by itself."""
    everyone = list(told.known("norm") or told.weights)
    return everyone if told.cohort is None else [s for s in everyone if s == told.site or s in told.companions]


def _geometric(told: Decided) -> bool:
    rule = told.setting("robust", "rule")
    return rule == "geometric-median" or (rule is None and told.own("norm") is not None)


def _trusted(told: Decided) -> list[str]:
    """FLTrust and FoolsGold: a cosine, and the trust that it leaves."""
    cosine, trust = told.own("similarity"), told.own("trust")
    if cosine is None or trust is None:
        return []
    rule = told.setting("robust", "rule")
    if rule == "fltrust":
        way = "It points the way of the server's own update on its reference rows"
        return [f"{way} by a cosine of {cosine:.2f}, which gives it a trust of {trust:.2f}."]
    if rule == "foolsgold":
        way = "Its updates so far point the way of those of the site most like it"
        return [f"{way} by a cosine of {cosine:.2f}, which leaves it a trust of {trust:.2f}."]
    return [f"Its similarity is {cosine:.2f}, its trust {trust:.2f}."]


def _clipped(told: Decided) -> list[str]:
    cut = told.own("clipped")
    if cut is None:
        return []
    return [f"{whole(cut)} of its length was cut off." if cut else "It was short enough to be left as it was."]
