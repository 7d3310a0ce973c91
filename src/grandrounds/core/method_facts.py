"""Numbers of a method's own paper, worded once for the terminal, the report, the console and Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodFact:
    """A number of a method's paper about one run.

    Attributes:
        label: Its name, as the paper has it: "training drift", "XAI accuracy".
        value: The number as text, with its unit.
        note: The scale, the chance level or the baseline that it is compared with; "": none.
    """

    label: str
    value: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.value}" + (f" ({self.note})" if self.note else "")
