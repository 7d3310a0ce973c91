"""Bars R1 and R2 of the specification: AUROC of cards on five folds of the eICU demo, as `bench/card.py` measures it."""

from __future__ import annotations

import numpy as np
import pytest

from card import BARS, arithmetic_differs, fit
from folds import FOLDS, auroc, make_fold
from grandrounds.capabilities.statistics.question import Record


def mean_auroc(route: str, terms: int) -> float:
    scores = []
    for number in range(FOLDS):
        fold = make_fold("eicu-demo", number)
        model, result = fit(fold, route, terms, Record())
        assert not arithmetic_differs(model, result, fold)
        scores.append(auroc(fold.test.y, model.logits(model.pack(result.arrays), fold.test.x)[:, 0]))
    return float(np.mean(scores))


@pytest.mark.slow
@pytest.mark.data("eicu_demo")
@pytest.mark.parametrize(("route", "terms"), list(BARS))
def test_cards_reach_the_bars_on_the_eicu_demo(route: str, terms: int):
    assert mean_auroc(route, terms) >= BARS[route, terms]
