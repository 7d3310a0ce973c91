"""Patients counted by risk and outcome: exact at edges, no small counts, the run's threshold always an edge."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from grandrounds.metrics import choose_threshold, tally
from grandrounds.metrics.score_counts import ScoreCounts, count_scores, summarise_scores


def draw(rows, *, share=0.2, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < share).astype(int)
    z = rng.normal(size=rows) * 1.5 + 1.2 * y - 1.5
    return z[:, None], y


@pytest.mark.parametrize("rows", [40, 400, 4000])
@pytest.mark.parametrize("by_outcome", [True, False])
def test_decisions_at_every_edge_equal_those_of_scikit_learn_on_all_rows(rows, by_outcome):
    z, y = draw(rows)
    sums = tally(z, y, classes=2)
    counts = count_scores(sums, choose_threshold(sums), 5, by_outcome=by_outcome)
    risk = 1 / (1 + np.exp(-z[:, 0]))
    for k, edge in enumerate(counts.edges):
        found = counts.decide(k)
        (spared, alarms), (missed, caught) = confusion_matrix(y, risk >= edge, labels=[0, 1])
        assert (found.caught, found.missed, found.false_alarms, found.spared) == (caught, missed, alarms, spared)
    assert counts.expected == pytest.approx(risk.sum())
    assert counts.rows == rows


@pytest.mark.parametrize("seed", range(8))
def test_no_cell_of_a_hospital_has_a_small_count_unless_the_threshold_alone_sets_it(seed):
    z, y = draw(150, share=0.12, seed=seed)
    sums = tally(z, y, classes=2)
    threshold = choose_threshold(sums)
    counts = count_scores(sums, threshold, 5)
    cut = counts.find_edges(threshold)[0]
    for side in (range(cut), range(cut, len(counts.events))):
        if len(side) > 1:
            assert all(n == 0 or n >= 5 for k in side for n in (counts.events[k], counts.others[k]))


def test_cells_of_all_hospitals_have_at_least_the_least_count_of_patients():
    z, y = draw(600)
    counts = count_scores(tally(z, y, classes=2), 0.5, 10, by_outcome=False)
    assert min(e + o for e, o in zip(counts.events, counts.others, strict=True)) >= 10
    assert len(counts.edges) > 20


def test_the_threshold_of_the_run_is_an_edge_and_others_lie_between_two():
    z, y = draw(500, seed=3)
    sums = tally(z, y, classes=2)
    for threshold in (0.5, choose_threshold(sums), choose_threshold(sums, specificity=0.9)):
        counts = count_scores(sums, threshold, 5)
        below, above = counts.find_edges(threshold)
        assert below == above and counts.edges[below] == pytest.approx(threshold, abs=1e-12)
    below, above = counts.find_edges(counts.edges[1] + 1e-4)
    assert (below, above) == (1, 2)


def test_three_classes_and_no_rows_have_no_counts():
    rng = np.random.default_rng(0)
    assert count_scores(tally(rng.normal(size=(30, 3)), rng.integers(0, 3, 30), classes=3), 0.5, 5) is None
    assert count_scores(tally(np.zeros((0, 1)), np.zeros(0, int), classes=2), 0.5, 5) is None


def test_the_record_is_read_back_and_says_why_hospitals_are_absent():
    z, y = draw(300)
    sums = tally(z, y, classes=2)
    record = summarise_scores(sums, {"a": sums}, threshold=0.5, least=5)
    assert "hidden" not in record
    assert ScoreCounts.from_dict(record["sites"]["a"]) == count_scores(sums, 0.5, 5)
    assert summarise_scores(sums, {}, threshold=0.5, least=5, hidden="secure")["hidden"] == "secure"
    with pytest.raises(ValueError):
        ScoreCounts((0.0, 1.0), (3,), (2, 2))
