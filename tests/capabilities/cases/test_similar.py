"""Patients of a hospital that are most like one of them: the same as scikit-learn finds, and none where they are too few."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors
from statsmodels.stats.proportion import proportion_confint

from grandrounds.capabilities.cases.similar import LEAST, NEAREST, count_outcomes, nearest_rows
from grandrounds.core.rng import generator


@pytest.mark.parametrize("rows", [60, 90, 400])
def test_nearest_rows_are_those_of_scikit_learn_and_a_minority(rows):
    rng = generator(0, purpose="similar")
    inputs = rng.normal(size=(rows, 7)).astype(np.float32)
    allowed = rng.random(rows) < 0.8
    allowed[3] = False
    found = nearest_rows(inputs, inputs[3], allowed)
    count = min(NEAREST, int(allowed.sum()) // 3)
    places = np.flatnonzero(allowed)
    expected = NearestNeighbors(n_neighbors=count).fit(inputs[places]).kneighbors(inputs[3:4], return_distance=False)[0]
    assert found.tolist() == places[expected].tolist()


def test_outcomes_are_counted_with_wilsons_interval_and_hidden_below_the_least_count():
    outcomes = ["1"] * 4 + ["0"] * 16
    counted = count_outcomes(outcomes, np.arange(20), target_class="1", event="the event died = 1", site="b")
    assert counted is not None and (counted.n, counted.events) == (20, 4)
    assert (counted.low, counted.high) == pytest.approx(proportion_confint(4, 20, method="wilson"), abs=1e-6)
    assert counted.sentence == "Of the 20 patients of b most like this one, 4 had the event died = 1: 20% (95% CI 8% to 42%)."
    assert count_outcomes(outcomes, np.arange(LEAST - 1), target_class="1", event="", site="b") is None
