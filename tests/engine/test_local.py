"""The local engine: parity through bytes, faults, state that survives, and the virtual clock."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.errors import RunFailed
from grandrounds.engine.faults import DROPPED, LATE, NOT_FINITE, Faults
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import evaluate
from grandrounds.protocol.messages import Ask, AskId, Receive, Send
from grandrounds.protocol.tasks import SUM_STEPS
from tests.support import ready, refused, rounds, sections, stack

SIZES = [40, 22, 61, 9, 33]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_bytes_and_memory_give_the_same_model(model, classes, optimizer):
    held = stack(SIZES, classes=classes)
    got = {}
    for wire in (False, True):
        engine, _ = ready(held, model=model, wire=wire)
        theta, _ = rounds(engine, optimizer=optimizer, keep_optimizer=True)
        scored = engine.drive(evaluate(ModelAssignment(theta), ("train", "test")), round=4)
        got[wire] = theta, scored.totals["train"].arrays(), engine.meter.read()
    np.testing.assert_allclose(got[True][0], got[False][0], atol=1e-5)
    for name, array in got[False][1].items():
        np.testing.assert_allclose(got[True][1][name], array, atol=1e-4)
    assert got[True][2] == got[False][2], "the cost without a wire is what a wire would really carry"


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_any_chunk_of_sites_gives_the_same_bits(chunk):
    held = stack(SIZES)
    whole, _ = rounds(ready(held, model="mlp")[0])
    parts, _ = rounds(ready(held, model="mlp", chunk=chunk)[0])
    np.testing.assert_array_equal(whole, parts)


def test_fedavg_weighs_by_training_rows():
    engine, _ = ready(stack([12, 22, 42]))
    _, (decision,) = rounds(engine, count=1)
    assert decision.weights == pytest.approx({"a": 10 / 70, "b": 20 / 70, "c": 40 / 70})
    assert decision.signals["data_size"] == {"a": 10.0, "b": 20.0, "c": 40.0}


def test_fedprox_without_pull_is_fedavg_to_the_bit_and_with_it_stays_nearer():
    held = stack(SIZES)
    start = ready(held)[0].hosts[0].model.init(0)
    average, _ = rounds(ready(held)[0], count=1)
    none, _ = rounds(ready(held)[0], count=1, method={"name": "fedprox", "mu": 0.0})
    strong, _ = rounds(ready(held)[0], count=1, method={"name": "fedprox", "mu": 5.0})
    np.testing.assert_array_equal(average, none)
    assert np.linalg.norm(strong - start) < np.linalg.norm(average - start)


def test_random_selection_asks_the_share_and_repeats():
    held = stack(SIZES)
    chosen = [rounds(ready(held)[0], method={"select": {"rule": "random", "fraction": 0.5}})[1] for _ in range(2)]
    asked = [[d.asked for d in run] for run in chosen]
    assert asked[0] == asked[1]
    assert all(len(a) == 3 for a in asked[0])
    assert len(set(asked[0])) > 1


def test_a_site_that_sends_nan_is_left_out_and_named():
    held = stack(SIZES)
    with_fault, decisions = rounds(ready(held, faults=Faults(nan=("c",)))[0], count=2)
    assert all(d.missing == {"c": NOT_FINITE} and "c" in d.asked and "c" not in d.weights for d in decisions)
    assert np.isfinite(with_fault).all()
    engine, _ = ready(held)
    without = tuple(s for s in engine.sites if s != "c")
    made = build_method(*sections())
    theta = engine.hosts[0].model.init(0)
    for r in (1, 2):
        theta = engine.drive(made.round(Server(r, theta, without, 0)), round=r).model
    np.testing.assert_array_equal(theta, with_fault)


def test_a_slow_site_misses_the_deadline():
    engine, _ = ready(stack(SIZES), faults=Faults(slow={"b": 9.0}), deadline=5.0)
    _, decisions = rounds(engine, count=1)
    assert decisions[0].missing == {"b": LATE}


def test_dropouts_are_recorded_and_too_few_stop_the_run():
    engine, _ = ready(stack(SIZES), faults=Faults(drop=0.3))
    _, decisions = rounds(engine, count=4)
    missing = [d.missing for d in decisions]
    assert any(missing)
    assert all(why == DROPPED for m in missing for why in m.values())
    strict, _ = ready(stack(SIZES), faults=Faults(drop=0.9), min_sites=4)
    with refused("too-few-sites", match="of 5 sites.*min_sites is 4", kind=RunFailed):
        rounds(strict, count=6)


def test_a_secure_rounds_dropouts_are_drawn_when_asked_to_train_and_at_each_step_of_the_models_sum():
    """Six draws of their own, so 0.8**6 of all sites stay to the end; the sums of an evaluation are spared."""
    faults, sites = Faults(drop=0.2), [f"s{k}" for k in range(4000)]

    def stays(task, step, tag=""):
        ask = Ask(task, shared={"tag": tag}).numbered(AskId("test", 1, step), ("a",))
        return np.array([not faults.absent(ask, s, seed=0) for s in sites])

    drawn = np.array([stays("train", 0), *(stays(task, k + 1, "models 0") for k, task in enumerate(SUM_STEPS))])
    assert drawn.shape[0] == 6
    np.testing.assert_allclose(drawn.mean(axis=1), 0.8, atol=0.025)
    assert drawn.all(axis=0).mean() == pytest.approx(0.8**6, abs=0.028)
    assert all(stays(task, 9, "tallies 7").all() for task in (*SUM_STEPS, "evaluate"))


def test_the_same_ask_gets_the_same_answer_without_a_second_training():
    engine, _ = ready(stack(SIZES), wire=True)
    host = engine.hosts[0]
    made = build_method(*sections(optimizer="momentum", keep_optimizer=True))
    ask = next(made.round(Server(1, host.model.init(0), engine.sites, 0))).numbered(AskId("test", 1, 0), ("a",))
    first = host.answer(ask, np.zeros(1, int))
    staged = {n: a.copy() for n, a in host.states.arrays().items()}
    again = host.answer(ask, np.zeros(1, int))
    assert again is first
    for name, array in host.states.arrays().items():
        np.testing.assert_array_equal(array, staged[name])


def test_only_the_reports_that_were_asked_for_leave_a_site():
    engine, _ = ready(stack(SIZES))
    ask = next(build_method(*sections()).round(Server(1, engine.hosts[0].model.init(0), ("a",), 0)))
    small = Ask(ask.task, ask.shared, to=("a",), report=("count",), id=AskId("test", 1, 0))
    assert set(engine.hosts[0].answer(small, np.zeros(1, int))) == {"count"}


def test_unknown_tasks_and_protocols_are_refused():
    host = ready(stack(SIZES))[0].hosts[0]
    with refused("unknown-task", match="'trian'"):
        host.answer(Ask("trian", id=AskId("test", 1, 0)), np.zeros(1, int))
    with refused("protocol-mismatch"):
        host.answer(Ask("train", id=AskId("test", 1, 0), protocol=99), np.zeros(1, int))


def test_state_of_a_site_left_out_does_not_move_on():
    """Site c sends NaN in every round: its kept momentum must stay at the beginning."""
    engine, _ = ready(stack(SIZES), faults=Faults(nan=("c",)))
    rounds(engine, count=3, optimizer="momentum", keep_optimizer=True)
    states = engine.hosts[0].states
    every = np.arange(5)
    states.settle(every, np.array([3, 3, 0, 3, 3]))
    slot = states.read("slot0", every)
    assert not slot[2].any()
    assert all(slot[k].any() for k in (0, 1, 3, 4))


def test_resuming_the_engine_from_its_own_state_changes_nothing():
    held, kept = stack(SIZES), {"optimizer": "adam", "keep_optimizer": True}
    straight, _ = rounds(ready(held)[0], count=4, **kept)
    before, _ = ready(held)
    halfway, _ = rounds(before, count=2, **kept)
    arrays, facts = {n: a.copy() for n, a in before.arrays().items()}, before.state()
    after, _ = ready(held)
    after.restore(arrays, facts)
    resumed, _ = rounds(after, count=2, start=2, theta=halfway, **kept)
    np.testing.assert_array_equal(resumed, straight)


def test_send_and_receive_follow_the_virtual_clock():
    """Sites take 3, 1 and 2 virtual seconds: they arrive in the order b, c, a, and b's second answer ties with c."""
    engine, _ = ready(stack([12, 12, 12]), faults=Faults(slow={"a": 3.0, "b": 1.0, "c": 2.0}))
    made = build_method(*sections())
    ask = next(made.round(Server(1, engine.hosts[0].model.init(0), engine.sites, 0)))
    before = engine.clock

    def asynchronous():
        yield Send(ask)
        seen = []
        first = yield Receive()
        seen.append((first.answer.site, first.time - before))
        yield Send(Ask(ask.task, ask.shared, to=("b",), report=ask.report))
        for _ in range(3):
            arrival = yield Receive()
            seen.append((arrival.answer.site, arrival.time - before))
            assert np.isfinite(arrival.answer.values["model"]).all()
        return seen

    assert engine.drive(asynchronous(), round=1) == [("b", 1.0), ("c", 2.0), ("b", 2.0), ("a", 3.0)]


def test_waiting_for_nobody_is_an_error_not_a_hang():
    engine, _ = ready(stack([12, 12]))

    def waits():
        yield Receive()

    with refused("too-few-sites", kind=RunFailed):
        engine.drive(waits(), round=1)
