"""XFed's own numbers from records made by hand: who was left out and why, uploads saved, and the part of explanations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from grandrounds.core.records import Decision
from grandrounds.methods.xfed.summary import describe_selection, left_out_sites, rounds_text, selection_summary

X = SimpleNamespace(score="masks", measure="accuracy", keep=0.75, xai_share=0.2)
SITES = ("a", "b", "c", "d")


def decision(number: int, accuracy, xai, **more) -> Decision:
    """A round of four sites, with the fused score and the places that follow from these scores."""
    score = [0.2 * x + 0.8 * a for a, x in zip(accuracy, xai, strict=True)]
    order = sorted(range(4), key=lambda k: (-score[k], -accuracy[k], SITES[k]))
    signals = {"accuracy": accuracy, "xai": xai, "score": score, "place": [order.index(k) + 1.0 for k in range(4)]}
    return Decision(round=number, signals={n: dict(zip(SITES, v, strict=True)) for n, v in signals.items()}, **more)


ROUNDS = [
    decision(1, [0.5, 0.5, 0.5, 0.5], [0.9, 0.8, 0.1, 0.7]),  # by accuracy alone d would be left out
    decision(2, [0.9, 0.8, 0.7, 0.2], [0.5, 0.5, 0.5, 0.9]),
    decision(3, [0.9, 0.8, 0.1, 0.2], [0.5, 0.5, 0.5, 0.5], missing={"b": "dropped out"}),
    Decision(round=4),  # after method.xfed.until
]


def test_numbers_by_hand():
    found = selection_summary(X, ROUNDS)
    assert (found["rounds"], found["uploads"], found["saved"], found["changed"]) == ([1, 2, 3], 12, 3, [1])
    assert list(found["left_out"]) == ["c", "d"], "the most often left out first"
    assert found["left_out"]["c"] == {"rounds": [1, 3], "score": pytest.approx((0.42 + 0.18) / 2)}
    assert found["left_out"]["d"] == {"rounds": [2], "score": pytest.approx(0.34)}
    kept = [0.58, 0.56, 0.54, 0.82, 0.74, 0.66, 0.82, 0.74, 0.26]
    assert found["selected_score"] == pytest.approx(sum(kept) / 9)


def test_a_site_that_drops_out_after_it_was_selected_is_not_left_out():
    assert left_out_sites(ROUNDS[2], X.keep) == ("c",)


def test_a_run_without_a_selection_has_no_numbers():
    alone = Decision(round=1, signals={"place": {"a": 1.0}, "score": {"a": 0.5}})
    assert selection_summary(X, [Decision(round=1), alone]) == {}
    assert describe_selection({}, parameters=10) == ()


def test_facts_name_sites_scores_and_bytes():
    saved, sites, changed = describe_selection(selection_summary(X, ROUNDS), parameters=250_000)
    assert saved.value == "3 of 12 (25.0%), 3.00 MB"
    assert sites.value == "c in rounds 1, 3 (score 0.300); d in round 2 (score 0.340)"
    assert "0.2 x XAI accuracy + 0.8 x accuracy" in sites.note
    assert (changed.value, changed.note) == ("1 of 3", "compared with selecting by accuracy alone")
    assert rounds_text(range(1, 9)) == "rounds 1 to 8 (8 of them)"
