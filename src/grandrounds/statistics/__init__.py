"""Statistics that add: sums over hospitals whose result equals that of the pooled rows. One file and one line for each."""

from __future__ import annotations

from grandrounds.statistics.cox import COX_ANSWERS
from grandrounds.statistics.question import Answer

ANSWERS: dict[str, Answer] = {**COX_ANSWERS}
"""The sites' halves by kind of question."""
