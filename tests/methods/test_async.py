"""FedAsync and FedBuff: the order of arrivals, staleness and mixed models by hand, drops, virtual time, resume."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.faults import DROPPED, LATE, NOT_FINITE, Faults
from grandrounds.engine.resources import MACHINE
from grandrounds.methods import build_method
from grandrounds.methods.asynchronous import staleness_weight
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import AskId, Receive, Send
from tests.support import patients, ready, refused, rounds, sections, stack, thinned

SIZES = [12, 32, 52]  # 10, 30 and 50 training rows
SPEED = Faults(slow={"a": 3.0, "b": 1.0, "c": 2.0})
RULES = {
    "constant": {"rule": "constant"},
    "polynomial": {"rule": "polynomial", "a": 0.7},
    "hinge": {"rule": "hinge", "a": 2.0, "b": 1},
}


def by_hand(staleness: int, rule: str) -> float:
    """s(staleness) for the settings in RULES."""
    if rule == "polynomial":
        return (staleness + 1.0) ** -0.7
    if rule == "hinge" and staleness > 1:
        return 1 / (2.0 * (staleness - 1) + 1)
    return 1.0


def trained(theta, *, site: str, round: int, sizes=SIZES) -> np.ndarray:
    """What a site makes of a model that it was sent in a round, in double precision."""
    host = ready(stack(sizes))[0].hosts[0]
    made = build_method(*sections())
    server = Server(round, theta.astype(np.float32), host.stack.names, 0)
    ask = made.ask_to_train(server, (site,)).numbered(AskId("by hand", round, 0), (site,))
    return host.answer(ask, host.stack.number((site,)))["model"][0].astype(float)


# --- how much a late answer counts ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rule": "constant", "a": 0.5, "b": 4}, [1, 1, 1, 1, 1, 1]),
        ({"rule": "polynomial", "a": 0.5, "b": 4}, [1, 2**-0.5, 3**-0.5, 0.5, 5**-0.5, 6**-0.5]),
        ({"rule": "polynomial", "a": 1.0, "b": 4}, [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]),
        ({"rule": "polynomial", "a": 0.0, "b": 4}, [1, 1, 1, 1, 1, 1]),
        ({"rule": "hinge", "a": 10.0, "b": 2}, [1, 1, 1, 1 / 11, 1 / 21, 1 / 31]),
        ({"rule": "hinge", "a": 0.5, "b": 0}, [1, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 3, 1 / 3.5]),
    ],
)
def test_trust_in_late_answers_by_hand(settings, expected):
    assert [staleness_weight(s, Settings(settings)) for s in range(6)] == pytest.approx(expected, rel=1e-12)


# --- FedAsync ---------------------------------------------------------------------------------------

ASYNC = [("b", 1, 1.0), ("c", 1, 2.0), ("b", 2, 2.0), ("a", 1, 3.0), ("b", 4, 3.0), ("c", 3, 4.0), ("b", 6, 4.0)]
"""Who arrives in rounds 1, 2, ..., when it was sent its model, and the time: 3, 1 and 2 seconds each, ties as sent.

A site is sent the new model in the round after its own arrival: b's of round 2 is due at 1 + 1 and c's of round 1 at 2.
"""


@pytest.mark.thinned(2)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wire", [False, True])
def test_fedasync_mixes_each_arrival_in_as_worked_out_by_hand(rule, wire):
    engine, _ = ready(stack(SIZES), faults=SPEED, wire=wire)
    x = [engine.hosts[0].model.init(0).astype(float)]
    method = {"name": "fedasync", "mixing": 0.6, "staleness": RULES[rule]}
    theta, decisions = rounds(engine, count=len(ASYNC), method=method)
    for r, (site, sent, _) in enumerate(ASYNC, start=1):
        alpha = 0.6 * by_hand(r - sent, rule)
        x.append((1 - alpha) * x[-1] + alpha * trained(x[sent - 1], site=site, round=sent))
        decision = decisions[r - 1]
        assert decision.weights == pytest.approx({site: alpha})
        assert decision.signals["staleness"] == {site: r - sent}
        assert decision.signals["data_size"] == {site: {"a": 10, "b": 30, "c": 50}[site]}
        assert decision.missing == {}
    np.testing.assert_allclose(theta, x[-1], atol=1e-6)
    assert all(np.abs(b - a).max() > 1e-3 for a, b in pairwise(x)), "every round must move the model"
    assert engine.clock == 4.0


def test_fedasync_asks_all_first_and_then_who_is_free():
    engine, _ = ready(stack(SIZES), faults=SPEED)
    _, decisions = rounds(engine, count=len(ASYNC), method={"name": "fedasync"})
    before = [("a", "b", "c"), *((site,) for site, _, _ in ASYNC[:-1])]
    assert [tuple(d.asked) for d in decisions] == before


def test_mixing_of_one_takes_a_fresh_answer_whole():
    engine, _ = ready(stack(SIZES), faults=SPEED)
    start = engine.hosts[0].model.init(0)
    theta, _ = rounds(engine, count=1, method={"name": "fedasync", "mixing": 1.0})
    np.testing.assert_allclose(theta, trained(start, site="b", round=1), atol=1e-7)


# --- FedBuff ----------------------------------------------------------------------------------------

BUFFERS = [
    ([("b", 1), ("c", 1)], 2.0),
    ([("a", 1), ("b", 2)], 3.0),
    ([("c", 2), ("b", 3)], 4.0),
    ([("b", 4), ("a", 3)], 6.0),
    ([("c", 4), ("b", 5)], 7.0),
]
"""Who fills a buffer of two in each round, with the round it was sent its model, and when the round is over."""


@pytest.mark.parametrize("weigh", ["data_size", "uniform"])
@pytest.mark.parametrize(("rule", "lr"), [("polynomial", None), ("constant", 0.5), ("hinge", 1.5)])
def test_fedbuff_steps_as_worked_out_by_hand(weigh, rule, lr):
    engine, _ = ready(stack(SIZES), faults=SPEED)
    method = {"name": "fedbuff", "buffer": 2, "weigh": weigh, "staleness": RULES[rule], "server": {"lr": lr}}
    x, state, theta = [engine.hosts[0].model.init(0).astype(float)], {}, None
    for r, (arrivals, time) in enumerate(BUFFERS, start=1):
        theta, (decision,) = rounds(engine, count=1, start=r - 1, theta=theta, state=state, method=method)
        rows = {site: {"a": 10, "b": 30, "c": 50}[site] if weigh == "data_size" else 1 for site, _ in arrivals}
        step = np.zeros_like(x[0])
        for site, sent in arrivals:
            update = trained(x[sent - 1], site=site, round=sent) - x[sent - 1]
            step += rows[site] / sum(rows.values()) * by_hand(r - sent, rule) * update
        x.append(x[-1] + (1.0 if lr is None else lr) * step)
        assert decision.signals["staleness"] == {site: r - sent for site, sent in arrivals}
        assert decision.weights == pytest.approx({site: n / sum(rows.values()) for site, n in rows.items()})
        assert engine.clock == time
        np.testing.assert_allclose(theta, x[-1], atol=1e-6)
        assert np.abs(x[-1] - x[-2]).max() > 1e-3, "every round must move the model"


def test_a_full_buffer_of_sites_alike_in_speed_is_fedavg():
    """Everybody fresh, every round: the asynchronous detour ends where the synchronous road does."""
    one, _ = rounds(ready(stack(SIZES))[0], count=3)
    other, decisions = rounds(ready(stack(SIZES))[0], count=3, method={"name": "fedbuff", "buffer": 3})
    np.testing.assert_allclose(other, one, atol=1e-6)
    assert all(set(d.signals["staleness"].values()) == {0.0} for d in decisions)


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("method", [{"name": "fedasync", "mixing": 1.0}, {"name": "fedbuff", "buffer": 1}])
def test_sites_keep_their_momentum_between_answers(method, wire):
    """One site alone: whole answers taken one by one are FedAvg, and so is what the optimiser remembers."""
    kept = {"optimizer": "momentum", "keep_optimizer": True}
    one, _ = rounds(ready(stack([40]))[0], count=4, **kept)
    other, _ = rounds(ready(stack([40]), wire=wire)[0], count=4, method=method, **kept)
    forgets, _ = rounds(ready(stack([40]))[0], count=4, optimizer="momentum")
    np.testing.assert_allclose(other, one, atol=1e-6)
    assert np.abs(forgets - one).max() > 1e-3, "what is remembered matters"


def test_foolsgold_remembers_the_updates_of_every_site_that_was_in_a_buffer():
    engine, _ = ready(stack(SIZES), faults=SPEED)
    method = {"name": "fedbuff", "buffer": 2, "robust": "foolsgold", "staleness": RULES["constant"]}
    models, state, theta = [engine.hosts[0].model.init(0)], {}, None
    total = np.zeros((3, len(models[0])))
    for r, (arrivals, _) in enumerate(BUFFERS, start=1):
        theta, _ = rounds(engine, count=1, start=r - 1, theta=theta, state=state, method=method)
        for site, sent in arrivals:
            total["abc".index(site)] += trained(models[sent - 1], site=site, round=sent) - models[sent - 1]
        np.testing.assert_allclose(state["state"]["history"], total, atol=1e-5)
        models.append(theta)


# --- who is at work ---------------------------------------------------------------------------------


def watched(work, seen: list, at_work: set):
    """Drive a round unchanged, and note who is sent an Ask and who answers."""
    reply = None
    while True:
        try:
            effect = work.send(reply)
        except StopIteration as end:
            return end.value
        reply = yield effect
        if isinstance(effect, Send):
            assert not at_work & set(effect.ask.to), "a site that is at work is not asked again"
            at_work |= set(effect.ask.to)
            seen.append(("sent", effect.ask.to, len(at_work)))
        elif isinstance(effect, Receive):
            at_work.remove(reply.answer.site)
            seen.append(("lost" if reply.answer.error else "came", reply.answer.site, len(at_work)))


def played(method: dict, *, count: int, sizes=(20,) * 7, **settings):
    """What happened in each of some rounds: [(what, who, how many are at work then)], and the decisions."""
    engine, _ = ready(stack(list(sizes)), **settings)
    made = build_method(*sections(method))
    server = Server(0, engine.hosts[0].model.init(0), engine.sites, 0)
    log, decisions, at_work = [], [], set()
    for r in range(1, count + 1):
        seen = []
        server = replace(server, round=r)
        outcome = engine.drive(watched(made.round(server), seen, at_work), round=r)
        engine.commit()
        server = replace(server, model=outcome.model, state=outcome.state)
        decisions.append(outcome.decision.recorded(asked=tuple(engine.asked), missing=dict(engine.missing)))
        log.append(seen)
    return log, decisions


UNEVEN = Faults(slow={"a": 1.0, "b": 1.3, "c": 2.9, "d": 0.7, "e": 5.0, "f": 1.1})


@pytest.mark.parametrize("drop", [0.0, 0.25])
@pytest.mark.parametrize(
    "method", [{"name": "fedasync"}, {"name": "fedbuff", "buffer": 2}, {"name": "fedbuff", "buffer": 5}]
)
def test_no_more_are_at_work_than_the_share_and_nobody_is_twice_in_a_buffer(method, drop):
    select = {"rule": "random", "fraction": 0.4}  # three of seven
    log, decisions = played({**method, "select": select}, count=12, faults=replace(UNEVEN, drop=drop))
    most = [at_work for seen in log for what, _, at_work in seen if what == "sent"]
    assert max(most) == 3, "three are kept at work, never more"
    assert drop or set(most) == {3}
    for seen, decision in zip(log, decisions, strict=True):
        came = [who for what, who, _ in seen if what == "came"]
        assert len(set(came)) == len(came), "nobody is in a buffer twice"
        assert len(came) == method.get("buffer", 1) or drop
        assert set(came) == set(decision.weights)
    everyone = {who for seen in log for what, who, _ in seen if what == "came"}
    assert len(everyone) >= 6, "places go to all sites in turn"


def test_in_a_round_of_fedbuff_a_free_place_goes_to_a_site_that_is_not_in_the_buffer():
    select = {"rule": "random", "fraction": 0.3}  # three of seven
    log, _ = played({"name": "fedbuff", "buffer": 5, "select": select}, count=4, faults=UNEVEN)
    for seen in log:
        came = set()
        for what, who, _ in seen:
            came |= {who} if what == "came" else set()
            assert what != "sent" or not came & set(who)


def test_the_draw_repeats_and_differs_between_rounds():
    method = {"name": "fedasync", "select": {"rule": "random", "fraction": 0.5}}
    first, second = (played(method, count=8, faults=UNEVEN)[0] for _ in range(2))
    assert first == second
    assert len({who for seen in first for what, who, _ in seen if what == "sent"}) > 3


# --- who drops out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [{"name": "fedasync"}, {"name": "fedbuff", "buffer": 2}])
@pytest.mark.parametrize("wire", [False, True])
def test_a_site_that_drops_out_is_named_and_comes_back(method, wire):
    engine, _ = ready(stack([20] * 6), faults=Faults(drop=0.2, slow={"a": 2.0}), wire=wire)
    theta, decisions = rounds(engine, count=24, method=method)
    gone = [(r, site) for r, d in enumerate(decisions) for site in d.missing]
    assert len({site for _, site in gone}) >= 3
    for r, site in gone:
        assert decisions[r].missing[site] == DROPPED
        assert site not in decisions[r].weights
    assert all(site in decisions[r].asked or site in decisions[r + 1].asked for r, site in gone if r < 23)
    assert all(any(site in d.weights for d in decisions[r + 1 :]) for r, site in gone if r < 12)
    assert np.isfinite(theta).all()


@pytest.mark.parametrize("method", [{"name": "fedasync"}, {"name": "fedbuff", "buffer": 2}])
def test_where_everybody_drops_out_the_run_stops_in_one_sentence(method):
    engine, _ = ready(stack([20] * 3), faults=Faults(drop=1.0))
    with refused("too-few-sites", kind=RunFailed) as said:
        rounds(engine, count=1, method=method)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("method", [{"name": "fedasync"}, {"name": "fedbuff", "buffer": 2}])
def test_one_site_at_work_that_drops_out_leaves_its_place_to_another(method):
    """Three of four sites are idle and well: the run must not end because the one at work is gone."""
    select = {"rule": "random", "fraction": 0.25}
    log, decisions = played({**method, "select": select}, count=6, sizes=[20] * 4, faults=Faults(drop=0.3))
    assert any(what == "lost" for seen in log for what, _, _ in seen)
    assert all(d.weights for d in decisions)


class Gone(Faults):
    """Sites b and c never answer."""

    def absent(self, ask, site, *, seed):
        return DROPPED if ask.task == "train" and site in ("b", "c") else ""


def test_fedbuff_makes_do_with_what_it_has_where_all_others_have_failed():
    engine, _ = ready(stack([20] * 3), faults=Gone())
    start = engine.hosts[0].model.init(0)
    theta, (decision,) = rounds(engine, count=1, method={"name": "fedbuff", "buffer": 2})
    assert decision.weights == {"a": 1.0}
    assert decision.missing == {"b": DROPPED, "c": DROPPED}
    np.testing.assert_allclose(theta, trained(start, site="a", round=1, sizes=[20] * 3), atol=1e-6)


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("method", [{"name": "fedasync"}, {"name": "fedbuff", "buffer": 2}])
def test_a_site_that_sends_no_numbers_is_named_and_left_out(method, wire):
    engine, _ = ready(stack([20] * 4), faults=Faults(nan=("b",)), wire=wire)
    theta, decisions = rounds(engine, count=8, method=method)
    named = [d.missing for d in decisions if d.missing]
    assert named and all(m == {"b": NOT_FINITE} for m in named)
    assert all("b" not in d.weights for d in decisions)
    assert np.isfinite(theta).all()


def test_a_site_that_is_always_too_late_is_given_up_when_its_answer_was_due():
    engine, _ = ready(stack([20] * 3), faults=Faults(slow={"a": 50.0}), deadline=4.0)
    _, decisions = rounds(engine, count=12, method={"name": "fedasync"})
    named = [(r, d.missing) for r, d in enumerate(decisions, start=1) if d.missing]
    assert named == [(7, {"a": LATE})], "b and c answer every second, a is given up in the fourth"
    assert engine.clock == 6.0


# --- virtual time -----------------------------------------------------------------------------------


def run(out, table=None, progress=lambda event: None, **changes) -> gr.Run:
    experiment = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, **changes})
    return gr.run(experiment, table=patients([40, 22, 61]) if table is None else table, out=out, progress=progress)


def test_one_slow_site_holds_up_rounds_but_not_arrivals(tmp_path):
    """Twelve answers: four rounds of three sites that wait ten seconds each, or six seconds of the two quick ones."""
    engine = {"faults": {"slow": {"a": 10.0}}}
    spent = {}
    for name, method in (
        ("fedavg", {"rounds": 4}),
        ("fedasync", {"rounds": 12}),
        ("fedbuff", {"rounds": 6, "buffer": 2}),
    ):
        done = run(tmp_path / name, method={"name": name, **method}, engine=engine)
        clock = [r["virtual_seconds"] for r in done.rounds]
        each = [r["decision"]["cost"]["virtual_seconds"] for r in done.rounds]
        assert np.cumsum(each) == pytest.approx(clock)
        assert clock == sorted(clock) and clock[-1] > clock[0] > 0
        assert done.summary["cost"]["virtual_seconds"] == clock[-1]
        spent[name] = clock
    assert spent["fedavg"] == [10.0, 20.0, 30.0, 40.0]
    assert spent["fedasync"] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    assert spent["fedbuff"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_sites_are_as_unequally_fast_as_the_spread_says(tmp_path):
    """Seconds are log-normal, drawn from the seed and the site's name; a site whose seconds are named has those."""
    drawn = {s: np.exp(0.8 * generator(3, purpose="speed", site=s).standard_normal()) for s in "abc"}
    plain = run(tmp_path / "plain", seed=3, method={"rounds": 2}, engine={"speed_spread": 0.8})
    assert plain.summary["cost"]["virtual_seconds"] == pytest.approx(2 * max(drawn.values()))
    assert min(drawn.values()) < 0.9 * max(drawn.values())
    named = run(
        tmp_path / "named", seed=3, method={"rounds": 2}, engine={"speed_spread": 0.8, "faults": {"slow": {"b": 50.0}}}
    )
    assert named.summary["cost"]["virtual_seconds"] == 100.0


# --- resume -----------------------------------------------------------------------------------------

FOUR = [40, 22, 61, 30]
SLOW = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 1.5}
KEPT = {"optimizer": "momentum", "keep_optimizer": True, "lr": 0.05}
CASES = {
    "fedasync": {"method": {"name": "fedasync"}},
    "fedasync, wire": {"method": {"name": "fedasync"}, "wire": True},
    "fedasync, momentum": {"method": {"name": "fedasync"}, "train": KEPT},
    "fedasync, drops": {"method": {"name": "fedasync"}, "drop": 0.2, "train": KEPT},
    "fedasync, proximal, two at work": {
        "method": {"name": "fedasync", "stability": "proximal", "mu": 0.5, "select": {"rule": "random"}}
    },
    "fedbuff": {"method": {"name": "fedbuff", "buffer": 2}},
    "fedbuff, wire and momentum": {"method": {"name": "fedbuff", "buffer": 2}, "wire": True, "train": KEPT},
    "fedbuff, drops": {"method": {"name": "fedbuff", "buffer": 2}, "drop": 0.2, "train": KEPT},
    "fedbuff, foolsgold, two at work": {
        "method": {"name": "fedbuff", "buffer": 3, "robust": "foolsgold", "select": {"rule": "random"}}
    },
}


class Killed(Exception):
    """What stands in for a kill: raised once a round is on disk."""


def killed_after(stop: int):
    def progress(event) -> None:
        if event["event"] == "round" and event["round"] == stop:
            raise Killed

    return progress


def without_seconds(folder) -> list:
    log = json.loads((folder / "round_logs.json").read_text())["rounds"]
    for r in log:
        r["decision"]["cost"].pop("seconds")
    return log


@pytest.mark.parametrize("case", thinned(CASES, 3))
def test_a_killed_run_goes_on_to_the_same_bits(case, tmp_path):
    c, table = CASES[case], patients(FOUR)
    plan = {
        "method": {"rounds": 9, **c["method"]},
        "train": {"batch": 8, **c.get("train", {})},
        "engine": {"wire": c.get("wire", False), "faults": {"drop": c.get("drop", 0.0), "slow": SLOW}},
        "model": {"name": "mlp", "hidden": [4]},
    }
    whole = run(tmp_path / "whole", table, **plan)
    assert any(r["decision"]["missing"] for r in whole.rounds) == bool(c.get("drop"))
    with pytest.raises(Killed):
        run(tmp_path / "broken", table, killed_after(3), **plan)
    with pytest.raises(Killed):
        gr.resume(tmp_path / "broken", table=table, progress=killed_after(5))
    held = Checkpoint(tmp_path / "broken" / "checkpoint").read()
    assert held.facts["round"] == 5 and held.facts["engine"]["flights"], "some answers are on their way"
    assert np.abs(held.part("served")["model"] - whole.model.theta).max() > 1e-3, "the rounds to come move the model"
    assert any(a > 0 for r in whole.rounds[5:] for a in r["decision"]["signals"]["staleness"].values())
    resumed = gr.resume(tmp_path / "broken", table=table)
    for file in ("model.safetensors", "experiment.toml"):
        assert (resumed.folder / file).read_bytes() == (whole.folder / file).read_bytes()
    assert without_seconds(resumed.folder) == without_seconds(whole.folder)
    one, other = resumed.summary, whole.summary
    for summary in (one, other):
        summary["cost"] = {k: v for k, v in summary["cost"].items() if k not in MACHINE}
    assert one == other


def test_more_rounds_later_are_the_rounds_of_a_longer_run(tmp_path):
    table, method = patients(FOUR), {"name": "fedbuff", "buffer": 2}
    more = {"engine": {"faults": {"slow": SLOW}}, "explain": {"every": 1}}
    short = run(tmp_path / "short", table, method={**method, "rounds": 3}, **more)
    gone_on = gr.resume(short.folder, settings=["method.rounds=7"], table=table)
    straight = run(tmp_path / "straight", table, method={**method, "rounds": 7}, **more)
    assert (gone_on.folder / "model.safetensors").read_bytes() == (straight.folder / "model.safetensors").read_bytes()
    assert without_seconds(gone_on.folder) == without_seconds(straight.folder)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["fedavg", "fedbuff"])
@pytest.mark.parametrize("wire", [False, True])
def test_a_resumed_run_may_take_to_the_wire_or_leave_it(name, wire, tmp_path):
    """What sites remember goes with them; a run that could not do that would have to say so."""
    table, plan = patients(FOUR), {"train": KEPT}
    method = {"name": name, "buffer": 2}
    straight = run(tmp_path / "straight", table, method={**method, "rounds": 6}, **plan)
    short = run(tmp_path / "short", table, method={**method, "rounds": 3}, engine={"wire": wire}, **plan)
    other = f"engine.wire={'false' if wire else 'true'}"
    try:
        gone_on = gr.resume(short.folder, settings=["method.rounds=6", other], table=table)
    except BadInput as e:
        assert "wire" in str(e) and "\n" not in str(e)
    else:
        np.testing.assert_allclose(gone_on.model.theta, straight.model.theta, atol=1e-4)
