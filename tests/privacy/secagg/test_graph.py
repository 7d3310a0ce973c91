"""Who masks with whom: symmetric, regular, connected, and decided by the roster alone."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.privacy.secagg.terms import build_graph

seeds = st.binary(min_size=32, max_size=32)


def reached(near: list[set[int]], gone: set[int] = frozenset()) -> int:
    start = next(k for k in range(len(near)) if k not in gone)
    seen, edge = {start}, [start]
    while edge:
        fresh = near[edge.pop()] - seen - gone
        seen |= fresh
        edge += fresh
    return len(seen)


@given(st.integers(2, 160), st.integers(2, 40), seeds)
@settings(max_examples=120, deadline=None)
def test_symmetric_regular_connected_without_loops(n, degree, seed):
    graph = build_graph(n, seed, degree)
    near = [set(graph.neighbours(k)) for k in range(n)]
    assert all(k not in near[k] for k in range(n))
    assert all(k in near[j] for k in range(n) for j in near[k])
    assert {len(s) for s in near} == {graph.around - 1} == {min(n - 1, degree + degree % 2)}
    assert graph.complete == (graph.around == n)
    assert reached(near) == n
    for k in range(0, n, 7):
        assert set(graph.within(k, 2)) == near[k].union(*(near[j] for j in near[k])) - {k}


def test_complete_up_to_a_hundred_sites():
    assert build_graph(100, bytes(32)).complete
    assert build_graph(101, bytes(32)).complete
    assert not build_graph(102, bytes(32)).complete
    assert build_graph(1000, bytes(32)).around == 101


def test_a_third_of_the_sites_gone_leaves_it_connected():
    for trial in range(20):
        seed = hashlib.sha256(bytes([trial])).digest()
        graph = build_graph(300, seed)
        near = [set(graph.neighbours(k)) for k in range(300)]
        gone = set(range(trial, 300, 3))
        assert reached(near, gone) == 300 - len(gone)


@given(seeds, seeds.filter(any))
@settings(max_examples=20, deadline=None)
def test_another_roster_gives_another_graph(seed, other):
    if seed != other:
        assert build_graph(200, seed, 10) != build_graph(200, other, 10)


def test_everybody_is_a_neighbour_about_as_often():
    """Over seeds, site 0 meets each other site with chance degree / (n - 1): no place on the roster is special."""
    met = [0] * 60
    for trial in range(600):
        for k in build_graph(60, trial.to_bytes(32, "big"), 10).neighbours(0):
            met[k] += 1
    expected = 600 * 10 / 59
    chi2 = sum((m - expected) ** 2 / (expected * (1 - 10 / 59)) for m in met[1:])
    assert 25 < chi2 < 105  # 58 degrees of freedom: beyond 1 in 10,000 either way
