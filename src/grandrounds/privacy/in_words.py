"""Plain-language sentences about a run's privacy guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grandrounds.privacy.attacks.membership import FPR, most_hits
from grandrounds.privacy.events import Event

_MECHANISMS = {
    "dp-sgd": "DP-SGD: in every training step each {unit}'s gradient is clipped to a fixed norm and noise is added",
    "client": "client-level noise: each site's update is clipped to a fixed norm and noise is added to the mean",
}
_METHODS = {
    "private-gam": "noisy counts: each {unit} is counted once, by bin and outcome of every column, and Gaussian noise is added "
                   "to the counts (method 'private-gam')",
    "watch": "noisy counts: each {unit} is counted once in the agreed bins of columns, scores, explanations and outcomes, "
             "as a new and as a reference patient; Gaussian noise is added to the counts at each site; all else follows "
             "from them (method 'watch')",
    "quality": "noisy counts: each {unit} is counted once in the agreed bins of every column, of the outcome and of years; "
               "Gaussian noise is added to the counts at each site (method 'quality')",
}
_TRUST = {
    "local": "The noise is added at each site, before anything leaves it: the guarantee also holds against the server.",
    "secure aggregation": "Each site adds a share of the noise, and the server sees only the sum (secure aggregation). "
                          "The guarantee requires that enough sites are honest and that the server cannot see single "
                          "answers.",
    "trusted server": "The server adds the noise and sees the sites' answers without it. The guarantee holds against "
                      "anyone who receives the model, but not against the server, which the sites must trust.",
}
_POOLED = (
    "All training rows were pooled in one place, as a baseline. The guarantee holds against anyone who receives the "
    "model, but not against the holder of the rows."
)
_QUOTED = {"dp-sgd": "DP-SGD", "client": "client-level noise"}
_QUOTED_TRUST = {
    "local": "with noise added at each site, so that the guarantee also holds against the server",
    "secure aggregation": "with noise added in shares under secure aggregation, so that the guarantee also holds against the "
                          "server if enough sites are honest",
    "trusted server": "with noise added by the server, which sees answers without it and must be trusted",
}
_QUOTED_POOL = "which does not protect from the holder of the pooled rows"
_KINDS = {
    "gaussian": "Gaussian noise",
    "sampled_gaussian": "Gaussian noise",
    "skellam": "discrete noise in shares",
    "laplace": "Laplace noise",
    "exponential": "random draws",
    "randomised_response": "randomised answers",
    "raw": "no noise",
}
Statement = Mapping[str, Any]
"""The part `privacy` of a run's summary, or the summary, as read from JSON."""

_SCALE = ((1.0, "strong"), (10.0, "reasonable"), (math.inf, "weak"))
"""Largest epsilon of each degree, in machine learning: Ponomareva et al., How to DP-fy ML, JAIR 77 (2023)."""

_NOTHING = 1e-6
"""A remainder of a budget below this is rounding."""

_WEAK = 0.5
"""Share of members found at 1% false positives from which on a guarantee rules out little."""


def promised(privacy: Statement) -> bool:
    """Tell whether a run's summary has a guarantee, that is, a finite epsilon (infinity is null in JSON)."""
    return privacy["mechanism"] != "none" and privacy["epsilon"] is not None


def rounded_up(epsilon: float, digits: int = 4) -> str:
    """Format an epsilon, rounded up."""
    if math.isinf(epsilon) or epsilon <= 0:
        return "infinity" if epsilon > 0 else "0"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(epsilon)))
    return f"{math.ceil(epsilon * scale - 1e-9) / scale:.{digits}g}"


def rounded_down(value: float) -> str:
    """Format the rest of a budget, rounded down."""
    if value < _NOTHING:
        return "nothing"
    scale = 10.0 ** (1 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale + 1e-9) / scale:.2g}"


def whom(privacy: Statement) -> str:
    """Name the protected unit of a run's `privacy`: "row", "site", or "patient" with the patient column."""
    column = privacy.get("patient_column")
    return str(privacy["unit"]) if column is None else f"patient (patient column '{column}', one row of each at a time)"


def mechanism(name: str, method: str, unit: str = "patient") -> str:
    """Describe a mechanism; `unit` is the protected unit."""
    sentence = _METHODS.get(method, f"mechanisms of method '{method}' itself ({name.replace('_', ' ')})")
    return _MECHANISMS.get(name, sentence).replace("{unit}", unit)


def release(e: Event, unit: str = "") -> str:
    """Describe one kind of release: count, data, noise and split; `unit` is the protected unit."""
    unit = unit or e.unit
    who = "which" if unit == "row" else "who"
    size = {
        "gaussian": f", {e.sigma:.3g} times the largest change by one {unit}",
        "sampled_gaussian": f", {e.sigma:.3g} times the largest change by one {unit}, {who} is sampled with probability "
                            f"{e.rate:g}",
        "skellam": f", rho = {0.0 if e.rho is None else e.rho:.3g} each",
    }.get(e.kind, "" if e.kind == "raw" else f", epsilon = {e.epsilon:.3g} each")
    return f"{e.count} x {e.what}: {_KINDS[e.kind]}{size} ({e.of} rows)"


def odds(epsilon: float, delta: float, unit: str) -> list[str]:
    """Explain the meaning of epsilon and delta for an attacker who sees all releases."""
    factor = math.exp(min(epsilon, 700.0))
    hits = most_hits(epsilon, delta)
    share = f"{hits:.1%}" if hits < 0.999 else "practically all"
    sentences = [
        f"Anyone who sees all releases can raise the odds of guessing whether a given {unit} took part by at most a "
        f"factor e^epsilon = {factor:.4g}, except with probability delta = {plain(delta)} ({one_in(delta)}).",
        f"An attack that wrongly names {FPR:.0%} of those who did not take part finds at most {share} of those who did."
        + (" This alone rules out little." if hits > _WEAK else ""),
        "On the scale of Ponomareva et al. (2023) for machine learning, an epsilon up to 1 is strong, up to 10 reasonable and "
        f"above 10 weak: {rounded_up(epsilon)} is {next(name for limit, name in _SCALE if epsilon <= limit)}.",
    ]
    if unit == "site":
        doubled = min(1.0, (1 + factor) * delta)
        sentences.append(
            "The guarantee is to each site as a whole. Replacing one patient's data means removing a site and adding "
            f"one, so twice the epsilon applies: {rounded_up(2 * epsilon)}, with delta = {doubled:.2g}."
        )
    return sentences


def trust(summary: Statement) -> list[str]:
    """State the parties that must be trusted, one sentence for each way in which noise was added."""
    if summary["method"] == "pooled":
        return [_POOLED]
    return [sentence for name, sentence in _TRUST.items() if name in (summary["privacy"].get("trust") or "")]


NOTES = "a site's notes on its rows (columns without a value, a category that no site trained on)"


def uncovered(privacy: Statement) -> list[str]:
    """List the data that no guarantee covers: as the run lists them, and notes on rows if no budget is set."""
    sentences = list(privacy["not_covered"])
    return sentences if privacy["budget"] is not None else [*sentences, NOTES]


def beside(privacy: Statement) -> list[str]:
    """State that summaries of the protected patients were sent without noise, if so."""
    if not privacy.get("summaries"):
        return []
    return [
        "In addition, summaries of the same training rows were sent without noise, to prepare columns: the guarantee "
        "covers training, not these summaries (data.encoding = 'public' avoids them)."
    ]


def is_simulation(privacy: Statement) -> bool:
    """Tell whether the run records that noise and keys follow from its seed."""
    return privacy.get("simulated") is True


def simulated(summary: Statement) -> list[str]:
    """Explain the guarantee of a simulation; empty for a run at hospitals, which draw their own noise."""
    if not is_simulation(summary["privacy"]):
        return []
    return [
        f"This run is a simulation: its noise follows from the experiment's seed ({summary['seed']}), so anyone who "
        "knows the seed can subtract it. The guarantee describes the same run with noise drawn at each site."
    ]


def secure_aggregation(summary: Statement) -> list[str]:
    """State what secure aggregation hid, with or without differential privacy; nothing where all rows were pooled."""
    if summary["method"] == "pooled":
        return []
    if not summary["privacy"].get("secure"):
        return ["Secure aggregation was not used: the server saw the answers of each site."]
    sentences = [
        "Secure aggregation hid models, sums and score counts of single sites from the server.",
        "A sum has no guarantee by itself.",
    ]
    return [*sentences, *(["In this simulation, keys follow from the seed."] if is_simulation(summary["privacy"]) else [])]


def quote(summary: Statement) -> str:
    """Write a line with a sentence for a paper: unit, epsilon, delta, mechanism, trust and secure aggregation.

    Args:
        summary: The summary of a finished run.
    """
    privacy, subject = summary["privacy"], "The model was trained" if summary.get("parameters") else "The results were computed"
    if summary["method"] == "pooled":
        secure = "the training rows of all sites were pooled"
    elif privacy.get("secure"):
        secure = "secure aggregation hid models, sums and score counts of single sites from the server"
    else:
        secure = "secure aggregation was not used, so the server saw the answers of each site"
    sentences = [f"{subject} without differential privacy, that is, with no formal privacy guarantee; {secure}."]
    if promised(privacy):
        both = summary.get("withdrawal", {}).get("both")
        spent, unit = both or privacy, str(privacy["unit"])
        amounts = f"epsilon = {rounded_up(float(spent['epsilon']))}, delta = {plain(float(spent['delta']))}"
        earlier = ", together with the earlier run that this one repeats" if both else ""
        how = _QUOTED.get(str(privacy["mechanism"]), f"noisy releases of method '{summary['method']}'")
        trusted = " and ".join(text for name, text in _QUOTED_TRUST.items() if name in (privacy.get("trust") or ""))
        trusted = _QUOTED_POOL if summary["method"] == "pooled" else trusted
        sentences = [
            f"{subject} with differential privacy for each {unit} ({amounts}, one {unit} more or less{earlier}), by {how}, "
            f"{trusted}; {secure}.",
            "Row counts and the other data that the run lists as not covered are outside this guarantee"
            + (", among them summaries of training rows that prepare columns." if privacy.get("summaries") else "."),
        ]
    if is_simulation(privacy) and (promised(privacy) or privacy.get("secure")):
        sentences.append("This was a simulation, in which noise and keys follow from the seed.")
    return f"You may quote: {' '.join(sentences)}"


def plain(delta: float) -> str:
    """Format a delta as 1e-5, not 1e-05."""
    mantissa, _, power = f"{delta:g}".partition("e")
    return f"{mantissa}e{int(power)}" if power else mantissa


def one_in(chance: float) -> str:
    return f"1 in {round(1 / chance):,}" if chance > 0 else "never"
