"""Statistics that add: sums over hospitals whose result equals that of the pooled rows. One file and one line for each."""

from __future__ import annotations

from grandrounds.statistics.question import Answer

ANSWERS: dict[str, Answer] = {}
"""The sites' halves by kind of question."""
