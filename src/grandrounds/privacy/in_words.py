"""What a promise means, in words for those who have to answer for it: no formula that is not explained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grandrounds.privacy.attacks.membership import FPR, most_hits
from grandrounds.privacy.events import Event

_MECHANISMS = {
    "dp-sgd": "DP-SGD: in every training step each {unit}'s part is cut to a fixed length and noise is added",
    "client": "client-level noise: each site's whole update is cut to a fixed length and noise is added to their mean",
}
_TRUST = {
    "local": "The noise is added at each site, before anything leaves it: the promise holds against the server too.",
    "secure aggregation": "Each site adds a share of the noise, and the server sees the sum alone (secure aggregation): the "
    "promise rests on enough sites being honest, and on the server not being able to see single answers.",
    "trusted server": "The server adds the noise, and sees what sites send without it: the promise holds against whoever gets "
    "the model, and not against the server, which the sites must trust.",
}
_POOLED = (
    "All training rows were put in one place, as a yardstick: the promise holds against whoever gets the model, and not against "
    "whoever holds the rows."
)
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

_WEAK = 0.5
"""Share of members, at 1 % false alarms, from which on a promise rules out little."""


def promised(privacy: Statement) -> bool:
    """Whether a run's summary promises anything: a finite epsilon (JSON has no infinity; it is null there)."""
    return privacy["mechanism"] != "none" and privacy["epsilon"] is not None


def rounded_up(epsilon: float, digits: int = 4) -> str:
    """An epsilon that is never said smaller than it is."""
    if math.isinf(epsilon) or epsilon <= 0:
        return "infinity" if epsilon > 0 else "0"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(epsilon)))
    return f"{math.ceil(epsilon * scale - 1e-9) / scale:.{digits}g}"


def whom(privacy: Statement) -> str:
    """Name the unit of a promise from a run's `privacy`: "row", "site", or "patient" with the column that names patients."""
    column = privacy.get("patient_column")
    return str(privacy["unit"]) if column is None else f"patient (patient column '{column}', one row of each at a time)"


def mechanism(name: str, method: str, unit: str = "patient") -> str:
    """Describe a mechanism; `unit`: whom its promise is to."""
    sentence = f"mechanisms of method '{method}' itself ({name.replace('_', ' ')})"
    return _MECHANISMS.get(name, sentence).replace("{unit}", unit)


def release(e: Event, unit: str = "") -> str:
    """Describe one kind of release: how often, what, with which noise, of whose rows; `unit`: whom the promise is to."""
    unit = unit or e.unit
    who = "which" if unit == "row" else "who"
    size = {
        "gaussian": f", {e.sigma:.3g} times what one {unit} can change",
        "sampled_gaussian": f", {e.sigma:.3g} times what one {unit} can change, {who} is in it with chance {e.rate:g}",
        "skellam": f", rho = {0.0 if e.rho is None else e.rho:.3g} each",
    }.get(e.kind, "" if e.kind == "raw" else f", epsilon = {e.epsilon:.3g} each")
    return f"{e.count} x {e.what}: {_KINDS[e.kind]}{size} ({e.of} rows)"


def odds(epsilon: float, delta: float, unit: str) -> list[str]:
    """What epsilon and delta allow whoever sees everything that left."""
    factor = math.exp(min(epsilon, 700.0))
    hits = most_hits(epsilon, delta)
    share = f"{hits:.1%}" if hits < 0.999 else "practically all"
    sentences = [
        f"Whoever sees all that was released under the promise can raise the odds of guessing whether a given {unit} took "
        f"part by at most a factor e^epsilon = {factor:.4g}, but for a chance of delta = {plain(delta)} ({one_in(delta)}).",
        f"So an attack that wrongly names {FPR:.0%} of those who did not take part finds at most {share} of those who did."
        + (" That rules out little by itself." if hits > _WEAK else ""),
    ]
    if unit == "site":
        doubled = min(1.0, (1 + factor) * delta)
        sentences.append(
            "The promise is to each site as a whole. To swap one patient's data for another's is to take a site out and put "
            f"one in: for that twice the epsilon holds, {rounded_up(2 * epsilon)}, with delta = {doubled:.2g}."
        )
    return sentences


def trust(summary: Statement) -> list[str]:
    """Who must be trusted, one sentence for each way in which noise was added."""
    if summary["method"] == "pooled":
        return [_POOLED]
    return [sentence for name, sentence in _TRUST.items() if name in (summary["privacy"].get("trust") or "")]


NOTES = "a site's notes on its rows, in words (columns without a value there, a category that nobody trained on)"


def uncovered(privacy: Statement) -> list[str]:
    """What no promise covers: as the run lists it, and what sites say when they prepare their rows, where no budget is set."""
    sentences = list(privacy["not_covered"])
    return sentences if privacy["budget"] is not None else [*sentences, NOTES]


def beside(privacy: Statement) -> list[str]:
    """That something left beside the promise which tells of the very patients it is made to."""
    if not any(sentence.startswith("how rows are prepared") for sentence in privacy["not_covered"]):
        return []
    return [
        "Beside it summaries of the same training rows left as they are, to agree on how columns are prepared: the promise is "
        "about what was trained, not about all that left (data.encoding = 'public' asks for no summaries)."
    ]


def simulated(summary: Statement) -> list[str]:
    """What a simulation's promise is worth; nothing to say of a run at hospitals, whose noise is their own."""
    if "simulated" not in summary["privacy"]["statement"]:
        return []
    return [
        f"This run is a simulation: its noise follows from the experiment's seed ({summary['seed']}), so whoever knows the seed "
        "can take it away again. The promise describes what the same run would keep where each site draws noise of its own."
    ]


def plain(delta: float) -> str:
    """1e-5, not 1e-05."""
    mantissa, _, power = f"{delta:g}".partition("e")
    return f"{mantissa}e{int(power)}" if power else mantissa


def one_in(chance: float) -> str:
    return f"1 in {round(1 / chance):,}" if chance > 0 else "never"
