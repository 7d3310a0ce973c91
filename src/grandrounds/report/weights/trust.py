"""How far a site was trusted in a round and what that made of its weight (FedXChain), in words.

Trust has three parts, each a share times a number in [0, 1]; the sentences give every one of them, so that a reader can add
them up.
"""

from __future__ import annotations

from grandrounds.explain.trust import DOUBTS, agreement, left
from grandrounds.methods.fedxchain.summary import doubt
from grandrounds.report.weights.record import Decided
from grandrounds.report.weights.wording import listed, percent, whole

SIGNALS = ("accuracy", "nsds", "steadiness", "consistency", "trust", "alignment", "contribution", "reward")
"""What is said of here."""

_LEAST = 5e-5


def trusting(told: Decided) -> bool:
    """Whether trust was kept of this site in this round."""
    return told.own("nsds") is not None and told.own("trust") is not None


def trust(told: Decided) -> list[str]:
    """The sentences on trust: what it is, its three parts, what NSDS took off, what the site's part was worth."""
    if not trusting(told):
        return []
    return [_whole(told), *_accuracy(told), *_agreement(told), *_consistency(told), *_weight(told), *_worth(told)]


def refusals(told: Decided) -> list[str]:
    """Who did not go along with the weights, and why; that all did, where they were asked."""
    found = {s: code for s, why in told.decision["missing"].items() if (code := doubt(why))}
    if not found and trusting(told) and told.setting("weigh", "rule") == "trust":
        return ["Every site that answered was shown all numbers, worked the weights out again and went along."]
    return [f"{listed([s for s in found if found[s] == code])} refused: {DOUBTS[code]}." for code in _codes(found)]


def refused(why: str) -> str:
    """Why a site is missing, with the code of a refusal said in words."""
    code = doubt(why)
    return f"refused the round's weights: {DOUBTS[code]}" if code else why


def _codes(found: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(found.values()))


def _share(told: Decided, name: str) -> float | None:
    held = told.setting("trust", name)
    return None if held is None else float(held)


def _whole(told: Decided) -> str:
    own = told.known("trust")[told.site]
    parts = _parts(told)
    made = (
        f": {parts['accuracy']:.3f} for accuracy, {parts['agreement']:.3f} for agreement of its reasons, "
        if parts
        else ""
    )
    made += f"{parts['consistency']:.3f} for consistency" if parts else ""
    return f"It is trusted {own:.3f} of at most 1{_place(told, 'trust', 'most')}{made}."


def _parts(told: Decided) -> dict[str, float]:
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
        f"{_place(told, 'nsds', 'farthest')}; exp(-NSDS) = {float(agreement(nsds, None)):.3f}"
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
        f"{meaning}. Its reward, contribution times trust, is {reward:.2g}{_place(told, 'reward', 'highest')}."
    ]


def _hidden(told: Decided) -> bool:
    """Whether models are hidden from the server, so that sites judge themselves."""
    return bool((told.decision.get("privacy") or {}).get("secure"))


def _place(told: Decided, signal: str, end: str) -> str:
    held = told.known(signal)
    if len(held) < 2:
        return ""
    ahead = sum(v > held[told.site] for v in held.values())
    return f", number {ahead + 1} of {len(held)} (1 the {end})"
