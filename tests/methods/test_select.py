"""Who takes part: shares, draws that repeat, the highest loss, candidates by rows, and messages that are not sent."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.methods.base import Server
from grandrounds.methods.select import ASKS_FIRST, RULES, Selection, choose, count_sites
from grandrounds.protocol.messages import Answers
from tests.support import patients, ready, rounds, stack

SIZES = [40, 22, 61, 12, 33]
NAMES = ("a", "b", "c", "d", "e")


def select(rule: str, fraction: float = 0.5, candidates: float = 0.8) -> Settings:
    return Settings({"rule": rule, "fraction": fraction, "candidates": candidates})


def server(round: int = 1, *, sites=NAMES, seed: int = 0, rows=None) -> Server:
    return Server(round, np.zeros(3), sites, seed, rows=rows or dict.fromkeys(sites, 10))


def chosen(settings, at: Server, losses=None) -> tuple[Selection, tuple[str, ...]]:
    """What `choose` gives where sites report these losses, and whom it asked for them."""
    work, asked = choose(at, settings), ()
    try:
        ask = next(work)
        asked = ask.to
        assert ask.task == "score" and ask.report == ("loss",)
        work.send(Answers(asked, {"loss": np.array([losses[s] for s in asked])}))
    except StopIteration as end:
        return end.value, asked
    raise AssertionError("one exchange is enough")


# --- how many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "sites", "many"),
    [(1.0, 5, 5), (0.5, 5, 3), (0.5, 4, 2), (0.4, 5, 2), (0.41, 5, 3), (0.2, 5, 1), (0.01, 5, 1), (0.01, 1, 1)],
)
def test_a_share_is_rounded_up_and_never_none(fraction, sites, many):
    names = NAMES[:sites]
    assert count_sites(fraction, sites) == many
    for rule in ("random", "loss", "power-of-choice"):
        got, _ = chosen(select(rule, fraction), server(sites=names), dict.fromkeys(names, 0.5))
        assert len(got.sites) == many


@given(fraction=st.floats(1e-6, 1), sites=st.integers(1, 200))
@examples(max_examples=100, deadline=None)
def test_any_share_is_of_one_site_at_least_and_no_more_than_there_are(fraction, sites):
    assert 1 <= count_sites(fraction, sites) <= sites
    assert count_sites(fraction, sites) >= fraction * sites


# --- all and random ---------------------------------------------------------------------------------


def test_all_is_everybody_without_a_question():
    got, asked = chosen(select("all", 0.2), server())
    assert got == Selection(NAMES) and asked == ()


def test_a_random_draw_repeats_with_its_seed_and_changes_with_round_and_seed():
    rule = select("random", 0.5)
    draws = [chosen(rule, server(r))[0].sites for r in range(1, 30)]
    assert draws == [chosen(rule, server(r))[0].sites for r in range(1, 30)]
    assert draws != [chosen(rule, server(r, seed=1))[0].sites for r in range(1, 30)]
    assert len(set(draws)) > 5
    for sites in draws:
        assert len(set(sites)) == 3 and tuple(sorted(sites)) == sites


def test_a_random_draw_is_fair():
    """Each of five sites is in a draw of two with a chance of 2/5: 600 draws, four standard deviations."""
    draws = [chosen(select("random", 0.4), server(r))[0].sites for r in range(600)]
    times = np.array([sum(s in d for d in draws) for s in NAMES])
    assert np.abs(times - 240).max() < 4 * np.sqrt(600 * 0.4 * 0.6)


def test_only_those_drawn_are_asked_to_train_and_weighed():
    engine, _ = ready(stack(SIZES))
    _, decisions = rounds(engine, count=6, method={"select": {"rule": "random", "fraction": 0.5}})
    for d in decisions:
        assert len(d.asked) == 3 and set(d.weights) == set(d.asked)
        assert "3 of 5 sites were drawn at random" in d.why
    assert len({d.asked for d in decisions}) > 1


# --- loss -------------------------------------------------------------------------------------------


def losses_of(engine, theta) -> dict[str, float]:
    """The mean log loss of a logistic model on each site's training rows, by the textbook."""
    part = engine.hosts[0].stack.parts["train"]
    params = engine.hosts[0].model.layout.views(theta)
    p = 1 / (1 + np.exp(-(part.x @ params["layer0.weight"].ravel() + params["layer0.bias"][0]).astype(float)))
    each = -np.where(part.y == 1, np.log(p), np.log(1 - p))
    return {site: each[part.owner() == k].mean() for k, site in enumerate(engine.sites)}


def test_the_sites_with_the_highest_training_loss_take_part():
    engine, _ = ready(stack(SIZES))
    rng = np.random.default_rng(0)
    picked = set()
    for trial in range(6):
        theta = rng.normal(size=len(engine.hosts[0].model.init(0))).astype(np.float32)
        after, (decision,) = rounds(
            engine, count=1, start=trial, theta=theta, method={"select": {"rule": "loss", "fraction": 0.4}}
        )
        losses = losses_of(engine, theta)
        worst = sorted(losses, key=losses.get)[-2:]
        assert decision.signals["loss"] == pytest.approx(losses, rel=1e-5)
        assert set(decision.asked) == set(decision.weights) == set(worst)
        assert not np.array_equal(after, theta)
        picked.add(tuple(sorted(worst)))
    assert len(picked) > 1, "other models must choose other sites, or the test shows nothing"


@given(losses=st.lists(st.sampled_from([0.1, 0.5, 0.5, 2.0]), min_size=5, max_size=5), fraction=st.floats(0.01, 1))
@examples(max_examples=60, deadline=None)
def test_nobody_left_out_has_a_higher_loss_than_one_that_takes_part(losses, fraction):
    said = dict(zip(NAMES, losses, strict=True))
    got, asked = chosen(select("loss", fraction), server(), said)
    out = [said[s] for s in NAMES if s not in got.sites]
    assert asked == NAMES and got.signals == {"loss": said}
    assert max(out, default=0) <= min(said[s] for s in got.sites)
    assert got.sites == tuple(s for s in NAMES if s in got.sites), "in their own order"


# --- power of choice --------------------------------------------------------------------------------


def test_one_candidate_is_drawn_as_often_as_it_has_rows():
    rows = {"a": 10, "b": 20, "c": 30, "d": 140, "e": 300}
    rule = select("power-of-choice", 0.2, 0.2)
    drawn = [chosen(rule, server(r, rows=rows), dict.fromkeys(NAMES, 1.0))[1] for r in range(2000)]
    assert {len(d) for d in drawn} == {1}
    times = np.array([sum(d == (s,) for d in drawn) for s in NAMES])
    expected = 2000 * np.array(list(rows.values())) / 500
    chi_square = float(((times - expected) ** 2 / expected).sum())
    assert chi_square < 18.5, "p < 0.001 with four degrees of freedom"


def test_several_candidates_are_drawn_without_replacement_by_rows():
    """Drawn one after another, each time by the rows of those that are left: the chance of every order is a product."""
    rows = {"a": 10, "b": 20, "c": 30, "d": 140, "e": 300}
    chance = dict.fromkeys(NAMES, 0.0)
    for first, second in permutations(NAMES, 2):
        p = rows[first] / 500 * rows[second] / (500 - rows[first])
        chance[first] += p
        chance[second] += p
    rule = select("power-of-choice", 0.2, 0.4)
    drawn = [chosen(rule, server(r, rows=rows), dict.fromkeys(NAMES, 1.0))[1] for r in range(2000)]
    for site in NAMES:
        times, p = sum(site in d for d in drawn), chance[site]
        assert abs(times - 2000 * p) < 4 * np.sqrt(2000 * p * (1 - p)), site


def test_the_worst_of_the_candidates_take_part():
    losses = {"a": 0.9, "b": 0.1, "c": 0.8, "d": 0.3, "e": 0.5}
    seen = set()
    for r in range(30):
        got, candidates = chosen(select("power-of-choice", 0.4, 0.6), server(r), losses)
        assert len(candidates) == 3
        assert set(got.sites) == set(sorted(candidates, key=losses.get)[-2:])
        assert got.signals == {"loss": {s: losses[s] for s in candidates}}
        seen.add(candidates)
    assert len(seen) > 3


def test_there_are_never_fewer_candidates_than_places():
    got, candidates = chosen(select("power-of-choice", 0.8, 0.2), server(), dict.fromkeys(NAMES, 1.0))
    assert len(candidates) == len(got.sites) == 4


def test_candidates_through_the_engine():
    engine, _ = ready(stack(SIZES))
    method = {"select": {"rule": "power-of-choice", "fraction": 0.2, "candidates": 0.6}}
    start = engine.hosts[0].model.init(0)
    _, decisions = rounds(engine, count=8, method=method)
    first = losses_of(engine, start)
    assert decisions[0].signals["loss"] == pytest.approx({s: first[s] for s in decisions[0].signals["loss"]}, rel=1e-5)
    for d in decisions:
        losses = d.signals["loss"]
        assert len(losses) == 3 and set(d.asked) == {max(losses, key=losses.get)}
    assert len({tuple(d.signals["loss"]) for d in decisions}) > 1


# --- what it costs ----------------------------------------------------------------------------------


def traffic(rule: str, **more) -> tuple[dict[str, int], dict[str, int], int]:
    """Bytes down and up by kind of work in the first round, and messages."""
    engine, _ = ready(stack(SIZES))
    engine.meter.read()
    rounds(engine, count=1, method={"select": {"rule": rule, **more}})
    return dict(engine.meter.down), dict(engine.meter.up), engine.meter.messages


def test_only_those_chosen_get_the_model_to_train():
    down, up, messages = traffic("all")
    each, back = down["train"] // 5, up["train"] // 5
    assert set(down) == set(up) == {"train"} and messages == 10
    down, up, messages = traffic("random", fraction=0.4)
    assert (down, up, messages) == ({"train": 2 * each}, {"train": 2 * back}, 4)
    down, up, messages = traffic("loss", fraction=0.4)
    assert (down["train"], up["train"], messages) == (2 * each, 2 * back, 2 * 5 + 2 * 2)
    asked = down["score"] // 5
    down, up, messages = traffic("power-of-choice", fraction=0.4, candidates=0.6)
    assert (down["train"], up["train"], messages) == (2 * each, 2 * back, 2 * 3 + 2 * 2)
    assert down["score"] == 3 * asked and asked < each


@pytest.mark.thinned(2)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_runs_over_the_wire_and_goes_on_after_a_stop(rule, tmp_path):
    table, method = patients([40, 30, 50, 35]), {"select": {"rule": rule, "fraction": 0.5, "candidates": 0.6}}
    data = {"label": "died", "site": "hospital"}

    def run(name: str, rounds: int, **engine) -> gr.Run:
        plan = {"data": data, "method": {**method, "rounds": rounds}, "engine": engine, "train": {"batch": 8}}
        return gr.run(gr.Experiment.parse(plan), table=table, out=tmp_path / name)

    whole, wired = run("whole", 4), run("wired", 4, wire=True)
    np.testing.assert_allclose(wired.model.theta, whole.model.theta, atol=1e-5)
    gone_on = gr.resume(run("short", 2).folder, settings=["method.rounds=4"], table=table)
    assert (gone_on.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    for a, b, c in zip(whole.rounds, wired.rounds, gone_on.rounds, strict=True):
        assert a["decision"]["asked"] == b["decision"]["asked"] == c["decision"]["asked"]
        assert ("loss" in a["decision"]["signals"]) == (rule in ASKS_FIRST)
        assert len(a["decision"]["asked"]) == (4 if rule == "all" else 2)
