"""The server's search for steps and whole-number points against brute force, and the printed risks against hand computation."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from grandrounds.capabilities.statistics import card_search
from grandrounds.capabilities.statistics.card_search import RIDGE, drop_repeats, find_risks, round_points, search_steps
from grandrounds.metrics.statistics import share_interval


def problem(seed: int, *, rows: int = 300, steps: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return A and u of random overlapping steps and a noisy target."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(rows, 3))
    z = (hidden @ rng.normal(size=(3, steps)) + 0.5 * rng.normal(size=(rows, steps)) > rng.normal(size=steps)).astype(
        float
    )
    target = z @ rng.normal(size=steps) + rng.normal(size=rows)
    weight = rng.uniform(0.05, 0.25, rows)
    centred = z - weight @ z / weight.sum()
    return centred.T @ (centred * weight[:, None]) + RIDGE * np.eye(steps), centred.T @ (weight * target)


def gain(a: np.ndarray, u: np.ndarray, p: np.ndarray) -> float:
    return float(u @ p) ** 2 / float(p @ a @ p) if u @ p > 0 else 0.0


@pytest.mark.parametrize("seed", range(12))
def test_points_are_as_good_as_the_best_of_all_whole_numbers(seed: int, monkeypatch: pytest.MonkeyPatch):
    a, u = problem(seed, steps=4)
    most = 3
    values = [v for v in range(-most, most + 1) if v]
    best = max(gain(a, u, np.array(p, float)) for p in product(values, repeat=4))
    simple = round_points(a, u, range(4), most=most)
    assert gain(a, u, np.array(simple.points, float)) >= 0.999 * (1 - card_search.SIMPLER) * best
    monkeypatch.setattr(card_search, "SIMPLER", 0.0)
    found = round_points(a, u, range(4), most=most)
    assert sum(map(abs, simple.points)) <= sum(map(abs, found.points))
    assert all(1 <= abs(p) <= most for p in found.points)
    assert gain(a, u, np.array(found.points, float)) >= 0.999 * best
    p = np.array(found.points, float)
    scales = np.linspace(0.5, 1.5, 201) / found.scale  # the factor is the best one
    losses = [s * s * p @ a @ p - 2 * s * u @ p for s in scales]
    assert int(np.argmin(losses)) == 100


@pytest.mark.parametrize("seed", range(6))
def test_the_beam_finds_the_best_set_of_steps(seed: int):
    a, u = problem(seed)

    def explained(chosen: tuple[int, ...]) -> float:
        c = list(chosen)
        return float(u[c] @ np.linalg.solve(a[np.ix_(c, c)], u[c]))

    best = max(explained(c) for c in combinations(range(10), 4))
    sets = search_steps(a, u, terms=4)
    assert explained(sets[0]) == pytest.approx(best, rel=1e-3)
    assert [explained(s) for s in sets] == sorted((explained(s) for s in sets), reverse=True)


def test_steps_that_divide_the_rows_alike_or_oppositely_are_kept_once():
    z = np.array([[1, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 1, 1.0]])
    w = np.array([0.1, 0.2, 0.25, 0.05])
    kept = drop_repeats(z.T @ (z * w[:, None]), z.T @ w, w.sum())
    assert kept.tolist() == [0, 3]


def test_risks_rise_with_the_total_and_small_totals_are_printed_together():
    rows = np.array([40, 3, 60, 0, 50, 30, 2], float)
    events = np.array([1, 0, 9, 0, 6, 18, 2], float)  # the share falls from 0.15 to 0.12
    ranges, notes = find_risks(rows, events, first=-2, least=5)
    assert (ranges[0].first, ranges[-1].last) == (-2, 4)
    assert all(a.last + 1 == b.first for a, b in pairwise(ranges))
    assert all(a.risk < b.risk for a, b in pairwise(ranges))
    assert all(r.rows >= 5 and r.low <= r.risk <= r.high for r in ranges)
    assert sum(r.rows for r in ranges) == 185 and sum(r.events for r in ranges) == 36
    low, high = share_interval(ranges[0].risk, ranges[0].rows)
    assert ranges[0].low == pytest.approx(low, abs=1e-3) and ranges[0].high == pytest.approx(high, abs=1e-3)
    assert any("fewer than 5 patients" in n for n in notes)


def test_counts_that_contradict_the_line_are_printed_as_observed():
    """Thousands of patients at each total, far from a logistic line: the printed risks are the observed shares."""
    rows = np.full(4, 20_000.0)
    events = np.array([200, 9_000, 9_400, 9_800], float)
    ranges, _ = find_risks(rows, events, first=0, least=5)
    assert [r.risk for r in ranges] == pytest.approx([0.01, 0.45, 0.47, 0.49], abs=0.004)


def test_separated_totals_have_risks_between_0_and_1():
    ranges, _ = find_risks(np.array([50.0, 50.0]), np.array([0.0, 50.0]), first=0, least=5)
    assert 0 < ranges[0].risk < 0.05 and 0.95 < ranges[1].risk < 1
