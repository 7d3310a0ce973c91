"""What the other signals say of a site: each number in a sentence, with its place among the sites'."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from grandrounds.methods.sse_agg.weights import HALVES
from grandrounds.report.weights.record import Decided
from grandrounds.report.weights.trust import SIGNALS, trusting
from grandrounds.report.weights.wording import percent, sentence, whole

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
    *HALVES,
    "agreement",
    "flat",
    "importance",
    "cluster",
    "loss",
    "distance",
    "staleness",
}


def weighed(told: Decided) -> list[str]:
    """The sentences on what sites were weighed by, besides rows and reasons."""
    out = [_ranked(told, name) for name in _WEIGHED if told.asks(name)]
    value = told.own("distance")
    if value is not None and not _geometric(told):
        place = _place(told, "distance", "nearest")
        out.append(f"Its model lies {value:.3g} from the mean of all models{place}; the nearer, the more it counts.")
    return out


def judged(told: Decided) -> list[str]:
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


def chosen(told: Decided) -> list[str]:
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


def late(told: Decided) -> list[str]:
    """How old the model was that an answer began from, where answers come in when they will."""
    age = told.own("staleness")
    if age is None:
        return []
    if not age:
        return ["Its answer started from the newest model."]
    return [f"Its answer started from the model of {age:.0f} round{'s' if age > 1 else ''} before."]


def unknown(told: Decided) -> list[str]:
    """Signals that no part of the package gives: those of a method of the user's own."""
    said = {*_WEIGHED, *_JUDGED, *_ELSEWHERE} - ({"loss"} if not told.why("select") else set())
    said |= set(SIGNALS) if trusting(told) else set()
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
