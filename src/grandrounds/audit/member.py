"""One member's part in a round, from the round's entry: its weight, its signals, and the weighting rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from grandrounds.audit.entry import Content
from grandrounds.core.errors import BadInput

_FIRST = ("data_size", "accuracy", "nsds", "steadiness", "consistency", "trust", "contribution", "reward")
_NAMES = {"data_size": "rows", "nsds": "NSDS"}


@dataclass(frozen=True)
class Part:
    """A member's part in a round: its weight or the cause of its absence, its signals, and the weighting rule.

    `notes` are remarks on it, such as attributions that diverge too far.
    """

    round: int
    weight: float | None
    absent: str
    numbers: Mapping[str, float | None]
    why: str
    notes: Sequence[str]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def line(self) -> str:
        """The part as one line of text, without the weighting rule."""
        had = f"no weight, because it {self.absent}" if self.weight is None else f"weight {self.weight:.6g}"
        names = [n for n in _FIRST if n in self.numbers] + sorted(set(self.numbers) - set(_FIRST))
        figures = ", ".join(f"{_NAMES.get(n, n.replace('_', ' '))} {_number(self.numbers[n])}" for n in names)
        return f"round {self.round}: {had}" + (f"; {figures}" if figures else "")


def read_part(entry: Content, site: str) -> Part:
    """Read a member's part in the round of an entry.

    Raises:
        BadInput: It is not the entry of a round.
    """
    try:
        decision = entry["decision"]
        weight = decision["weights"].get(site)
        numbers = {name: values[site] for name, values in decision["signals"].items() if site in values}
        stages = [stage["why"] for stage in decision["stages"] if stage["weights"]]
        absent = "" if weight is not None else _absence_reason(decision, site)
        notes = [note for note in decision.get("notes", ()) if note.startswith(f"{site}: ")]
        return Part(entry["round"], weight, absent, numbers, "; ".join(stages) or decision["why"], notes)
    except (AttributeError, KeyError, TypeError):
        raise BadInput("contains an entry that is not of a round", code="bad-ledger-entry") from None


def describe_parts(parts: Sequence[Part]) -> list[str]:
    """Describe parts, one line for each round; the weighting rule is repeated only if it changed."""
    out: list[str] = []
    last_reason = ""
    for part in parts:
        out += [part.line, *(f"  note: {note}" for note in part.notes)]
        if part.why != last_reason:
            out.append(f"  {part.why}")
            last_reason = part.why
    return out


def _absence_reason(decision: Content, site: str) -> str:
    """Return the cause of a missing weight, to follow 'because it'."""
    missing = decision.get("missing", {})
    if site in missing:
        return str(missing[site])
    return "gave no usable answer" if site in decision["asked"] else "was not asked"


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"
