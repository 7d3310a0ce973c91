"""Why a site had its weight in a round, in plain words: what an auditor reads before any formula.

Every number is in the round's record (and, of features, in the explanations); nothing is worked out anew that a method
decided. What a record does not hold is left unsaid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.report.weights.explanations import cohort, reasons
from grandrounds.report.weights.record import Decided
from grandrounds.report.weights.signals import chosen, judged, late, unknown, weighed
from grandrounds.report.weights.trust import refusals, refused, trust, trusting
from grandrounds.report.weights.wording import listed, parts, percent, sentence

STAGES = {
    "select": "Who took part",
    "weigh": "Weighing",
    "cohorts": "Cohorts",
    "robust": "Against outliers",
    "secure": "Adding up",
    "stability": "While training",
}
"""The parts of a method as a reader knows them."""

_AFTER = {"weigh": "weighing", "cohorts": "joining cohorts", "robust": "the robust rule", "secure": "the secure sum"}
_SAME = 1e-12


def weight_in_words(
    record: Mapping[str, Any],
    site: str,
    *,
    explanations: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> list[str]:
    """The sentences, the first with the weight itself.

    `explanations` (explanations.json) adds the features a site goes by differently, `plan` what the rules were set to.
    """
    told = Decided(record["decision"], site, (plan or {}).get("method", {}))
    where = f"round {told.decision['round']}, {site}"
    if site not in told.weights:
        return [f"{where}: no weight, because it {_absent(told)}.", *chosen(told)]
    return [
        f"{where}: {_head(told)}.",
        *chosen(told),
        *_rows(told),
        *cohort(told),
        *([] if trusting(told) else reasons(told, explanations)),
        *trust(told),
        *weighed(told),
        *_parts(told),
        *_raised(told),
        *judged(told),
        *late(told),
        *unknown(told),
        *_course(told),
        *_rules(told),
        *refusals(told),
        *_notes(told),
    ]


def _absent(told: Decided) -> str:
    decision, site = told.decision, told.site
    if site in decision["missing"]:
        return refused(str(decision["missing"][site]))
    if told.own("loss") is not None:
        return "was asked for its loss only"
    if (place := told.own("place")) is not None:
        return f"trained and was ranked number {place:.0f}, and was not asked for its model"
    if "staleness" in decision["signals"]:
        return "had sent no answer by then"
    return "was not asked to take part"


def _head(told: Decided) -> str:
    """Its weight, and its place among those it is a share among."""
    weight, among = f"weight {percent(told.weight)}", told.sharing or list(told.weights)
    own, rest = told.weight, [told.weights[s] for s in among if s != told.site]
    cluster = told.own("cluster")
    weight += f" in cluster {cluster:.0f}" if cluster is not None else ""
    if not rest:
        return f"{weight}, the only answer" + (" there" if cluster is not None else "")
    level = sum(abs(w - own) <= _SAME for w in rest)
    if level == len(rest):
        return f"{weight}, as every site that answered" + (" there" if cluster is not None else "")
    rank = 1 + sum(w > own + _SAME for w in rest)
    ties = f", level with {level} other{'s' if level > 1 else ''}" if level else ""
    return f"{weight}, number {rank} of {len(among)}{ties}"


def _rows(told: Decided) -> list[str]:
    """What its rows alone would have given it (FedAvg)."""
    rows = {s: n for s, n in told.known("data_size").items() if s in told.sharing}
    if told.site not in rows or len(rows) < 2:
        return []
    share = rows[told.site] / sum(rows.values())
    of = f"{rows[told.site]:,.0f} of {sum(rows.values()):,.0f}"
    if percent(share) == percent(told.weight):
        return [f"That is its share of the training rows: {of}."]
    return [f"By its rows alone ({of}) it would have had {percent(share)}."]


def _parts(told: Decided) -> list[str]:
    """What each signal contributed to its weight."""
    if not told.shares:
        return []
    words = {
        "data": "data size",
        "agreement": "agreement" if told.own("in_line") is None else "its rows as far as its reasons are in line",
        "worst_site": "its validation loss",
        "calibration": "its calibration error",
    }
    said = parts(told.shares)
    if len(said) == 1:
        only = next(iter(said))
        return [f"All of its weight comes from {words.get(only, only.replace('_', ' '))}."]
    names = [(words.get(name, name.replace("_", " ")), value) for name, value in said.items()]
    (first, most), *others = names
    rest = listed([f"{value} % from {name}" for name, value in others])
    return [f"Of its weight, {most} % comes from {first}{', ' if len(others) > 1 else ' and '}{rest}."]


def _raised(told: Decided) -> list[str]:
    """That the floor held it: who was raised has the least weight of all, below the floor since all then sum to 1."""
    floor = told.setting("weigh", "floor")
    blended: Mapping[str, float] = next((s["weights"] for s in told.stages if s["part"] == "weigh"), {})
    if not floor or not set(told.decision.get("shares") or ()) - {"data"} or told.site not in blended:
        return []
    least = min(blended.values())
    if blended[told.site] > least + _SAME or least >= floor:
        return []
    return [f"It was raised to the least weight there is, {floor:g}, before all were made to sum to 1."]


def _course(told: Decided) -> list[str]:
    """Its weight after each part of the method, where a later part changed it."""
    held = [(_AFTER.get(s["part"], s["part"]), s["weights"].get(told.site)) for s in told.stages if s.get("weights")]
    known = [(part, percent(weight)) for part, weight in held if weight is not None]
    if len({weight for _, weight in known}) < 2:
        return []
    return [f"Its weight was {listed([f'{weight} after {part}' for part, weight in known])}."]


def rules(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(part, what it says of the round), part by part; what no part says, or the whole before there were parts, last."""
    stages = [s for s in decision.get("stages") or () if s["why"]]
    rest = decision["why"]
    for stage in stages:
        rest = rest.replace(stage["why"], "")
    rest = "; ".join(words for words in rest.split("; ") if words.strip())
    return [*((STAGES.get(s["part"], s["part"]), s["why"]) for s in stages), *([("Why", rest)] if rest else [])]


def _rules(told: Decided) -> list[str]:
    return [sentence(f"{part}: {why}") for part, why in rules(told.decision) if part != STAGES["select"]]


def _notes(told: Decided) -> list[str]:
    """What there is to note of the round; what is noted of other sites is theirs, and that it is flat has been said."""
    theirs = tuple(f"{s}: " for s in told.decision["asked"] if s != told.site or told.own("flat"))
    return [sentence(f"Note: {note}") for note in told.decision.get("notes", ()) if not note.startswith(theirs)]
