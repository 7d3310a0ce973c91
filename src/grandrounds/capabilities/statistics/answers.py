"""Statistics that add: sums over hospitals whose result equals that of the pooled rows. One file and one line for each."""

from __future__ import annotations

from grandrounds.capabilities.statistics.boosting_answers import TREES_ANSWERS, TREES_GROUP_ANSWERS
from grandrounds.capabilities.statistics.brier import answer_brier, answer_calibration, answer_hazard
from grandrounds.capabilities.statistics.card_answers import CARD_ANSWERS
from grandrounds.capabilities.statistics.concordance import answer_concordance, answer_score_counts
from grandrounds.capabilities.statistics.cox import COX_ANSWERS
from grandrounds.capabilities.statistics.gam import GAM_ANSWERS
from grandrounds.capabilities.statistics.glm_answers import GLM_ANSWERS
from grandrounds.capabilities.statistics.log_rank import answer_log_rank
from grandrounds.capabilities.statistics.meta import answer_meta
from grandrounds.capabilities.statistics.question import Answer, GroupAnswer
from grandrounds.capabilities.statistics.table_one import answer_table_one
from grandrounds.capabilities.statistics.time_counts import answer_time_counts, answer_time_range

ANSWERS: dict[str, Answer] = {
    **COX_ANSWERS,
    "brier": answer_brier,
    "calibration.time": answer_calibration,
    "concordance.sites": answer_concordance,
    "counts.scores": answer_score_counts,
    "hazard.time": answer_hazard,
    "counts.time": answer_time_counts,
    "meta": answer_meta,
    "logrank.sites": answer_log_rank,
    "range.time": answer_time_range,
    "table1": answer_table_one,
    **GAM_ANSWERS,
    **CARD_ANSWERS,
    **GLM_ANSWERS,
    **TREES_ANSWERS,
}
"""The sites' halves by kind of question."""

GROUP_ANSWERS: dict[str, GroupAnswer] = {**TREES_GROUP_ANSWERS}
"""Kinds of question that one pass answers for several sites, with the same numbers as one answer for each."""
