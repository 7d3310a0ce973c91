"""What to be careful about in a patient's values: filled in, outside what was trained on, rare, at odds with each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

IMPUTED, ABSENT, OUTSIDE, UNUSUAL, RARE, UNSEEN, CONTRADICTORY = KINDS = (
    "imputed", "absent", "outside", "unusual", "rare", "unseen", "contradictory",
)  # fmt: skip
"""What can be odd about a value."""

UNREAD = "not read"
"""How a line about columns is marked that the model gives no weight."""

_DOUBT = (CONTRADICTORY, OUTSIDE, UNSEEN, RARE, UNUSUAL)
_MADE_UP = {
    IMPUTED: "have no value, so that what the consortium agreed on stands in",
    ABSENT: "are absent, so that what the consortium agreed on stands in",
}
_FEW = 3

_ORDER = {"min": 0, "minimum": 0, "lowest": 0, "mean": 1, "avg": 1, "average": 1, "median": 1,
          "max": 2, "maximum": 2, "highest": 2}  # fmt: skip
_SPREADS = ("std", "sd", "stdev")
_ABOVE = (("systolic", "diastolic"), ("sbp", "dbp"))
"""Words of two measurements of which the first is never the lower."""


@dataclass(frozen=True)
class Note:
    """One remark about one column; `kind` is one of KINDS."""

    column: str
    kind: str
    text: str


def quality_lines(notes: Sequence[Note], unread: Collection[str] = ()) -> list[tuple[str, str]]:
    """Notes as lines and their kinds, what is most in doubt first; many missing values are one line.

    Columns that the model does not read (`unread`) come last, in one line: what is odd about them cannot mislead it.
    """
    idle = dict.fromkeys(n.column for n in notes if n.column in unread)
    notes = [n for n in notes if n.column not in idle]
    shown = sorted((n for n in notes if n.kind not in _MADE_UP), key=lambda n: _DOUBT.index(n.kind))
    lines = [(n.text, n.kind) for n in shown]
    for kind, words in _MADE_UP.items():
        held = [n for n in notes if n.kind == kind]
        if len(held) > _FEW:
            lines.append((f"{len(held)} columns {words}: {', '.join(n.column for n in held)}", kind))
        else:
            lines += [(n.text, kind) for n in held]
    if idle:
        few = "column has" if len(idle) == 1 else "columns have"
        lines.append(
            (f"{len(idle)} {few} no value or an odd one and no weight in the model: {', '.join(idle)}", UNREAD)
        )
    return lines


def contradictions(values: Mapping[str, float]) -> tuple[Note, ...]:
    """Numbers of one patient that cannot both be right; columns belong together by their names, so few are caught."""
    return tuple(
        Note(name, CONTRADICTORY, f"{name} = {values[name]:g} cannot be {why}") for name, why in _impossible(values)
    )


def _impossible(values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in values:
        stem, statistic = _parts(name)
        if statistic in _SPREADS and values[name] < 0:
            yield name, "a deviation: it is below zero"
        if statistic in _ORDER:
            groups.setdefault(stem, []).append((_ORDER[statistic], name))
    for held in groups.values():
        for (low, a), (high, b) in combinations(sorted(held), 2):
            if low < high and _exceeds(values[a], values[b]):
                yield a, f"right beside {b} = {values[b]:g}, which is lower"
    for upper, lower in _ABOVE:
        for name in values:
            other = name.lower().replace(upper, lower)
            twin = next((n for n in values if n != name and n.lower() == other), None)
            if upper in name.lower() and twin is not None and _exceeds(values[twin], values[name]):
                yield name, f"right beside {twin} = {values[twin]:g}, which is higher"


def _parts(name: str) -> tuple[str, str]:
    """A measurement and which of its numbers this is: heart_rate_min -> (heart rate, min)."""
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w]
    for at in (-1, 0):
        if len(words) > 1 and words[at] in (*_ORDER, *_SPREADS):
            statistic = words.pop(at)
            return " ".join(words), statistic
    return name, ""


def _exceeds(a: float, b: float) -> bool:
    """Whether a is above b by more than rounding to whole numbers can make it."""
    slack = 0.5 if float(a).is_integer() or float(b).is_integer() else 1e-6 * abs(b)
    return a > b + slack
