"""Local training over a stack: what K sites get together is what each gets alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.models.dense import Dense, targets
from grandrounds.site.batches import BatchPlan, batch_rows
from grandrounds.site.numpy_train import train as train_planned
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob


def part(sizes: list[int], *, features: int = 4, outputs: int = 1, seed: int = 0, dtype=np.float64) -> Part:
    rng = generator(seed, purpose="part")
    n = sum(sizes)
    y = rng.integers(0, max(2, outputs), n)
    x = (rng.normal(size=(n, features)) + y[:, None]).astype(dtype)
    offsets = np.cumsum([0, *sizes])
    return Part(x=x, y=y, target=targets(y, outputs, dtype), group=np.zeros(n, int), offsets=offsets)


def train(model, held, members, start, *, names, work, **kept):
    plan = BatchPlan.draw(held, members, names=names, config=work)
    return train_planned(TrainJob(model, held, members, start, work, **kept), plan)


def alone(held: Part, k: int) -> Part:
    a, b = held.offsets[k], held.offsets[k + 1]
    return Part(held.x[a:b], held.y[a:b], held.target[a:b], held.group[a:b], np.array([0, b - a]))


def plain_loop(model: Dense, held: Part, k: int, start, work: TrainConfig, name: str, width: int) -> np.ndarray:
    """One site's training as anyone would write it: batch by batch, no padding, no stack."""
    a, n = held.offsets[k], held.counts[k]
    steps = work.steps or work.epochs * -(-n // width)
    rng = generator(work.seed, purpose="order", round=work.round, site=name)
    theta, grad = start[None].copy(), np.empty((1, model.layout.size))
    mask = model.layout.mask("weight").astype(float)
    for rows in batch_rows(n, width=width, steps=steps, rng=rng):
        rows = rows[rows >= 0] + a
        model.gradient(theta, held.x[None, rows], held.target[None, rows], np.full((1, len(rows)), 1 / len(rows)), grad)
        theta -= work.lr * (grad + work.l2 * mask * theta + work.proximal * (theta - start))
    return theta[0]


sizes = st.lists(st.integers(1, 23), min_size=1, max_size=6)
works = st.builds(
    TrainConfig,
    seed=st.just(3),
    round=st.integers(1, 3),
    lr=st.just(0.1),
    epochs=st.integers(1, 3),
    steps=st.sampled_from([0, 0, 5]),
    batch=st.sampled_from([0, 4, 7, 64]),
    optimizer=st.sampled_from(["sgd", "momentum", "adam", "adamw"]),
    l2=st.sampled_from([0.0, 0.1]),
    proximal=st.sampled_from([0.0, 0.5]),
)


@given(sizes, works, st.sampled_from([(4, 1), (4, 3), (4, 5, 3)]))
@settings(max_examples=80, deadline=None)
def test_stacked_sites_give_what_single_runs_give(sizes, work, widths):
    model, held = Dense(widths), part(sizes, outputs=widths[-1])
    start = generator(0, purpose="start").normal(size=model.layout.size)
    names = tuple(f"s{k}" for k in range(len(sizes)))
    together = train(model, held, np.arange(len(sizes)), start, names=names, work=work)
    for k in range(len(sizes)):
        single = train(model, alone(held, k), np.zeros(1, int), start, names=(names[k],), work=work)
        np.testing.assert_allclose(together.theta[k], single.theta[0], atol=1e-6, rtol=1e-6)
        assert together.steps[k] == single.steps[0]


@given(sizes, works, st.integers(0, 10))
@settings(max_examples=60, deadline=None)
def test_any_chunking_gives_the_same_bits(sizes, work, seed):
    model = Dense((4, 5, 3))
    held = part(sizes, outputs=3, dtype=np.float32)
    start = generator(0, purpose="start").normal(size=model.layout.size).astype(np.float32)
    names = tuple(f"s{k}" for k in range(len(sizes)))
    whole = train(model, held, np.arange(len(sizes)), start, names=names, work=work).theta
    order = generator(seed, purpose="chunks").permutation(len(sizes))
    for chunk in np.array_split(order, min(3, len(order))):
        got = train(model, held, chunk, start, names=names, work=work).theta
        np.testing.assert_array_equal(got, whole[chunk])


@given(sizes, works.filter(lambda w: w.optimizer == "sgd"), st.sampled_from([(4, 1), (4, 5, 3)]))
@settings(max_examples=60, deadline=None)
def test_padding_never_changes_a_result(sizes, work, widths):
    model, held = Dense(widths), part(sizes, outputs=widths[-1])
    start = generator(0, purpose="start").normal(size=model.layout.size)
    names = tuple(f"s{k}" for k in range(len(sizes)))
    got = train(model, held, np.arange(len(sizes)), start, names=names, work=work).theta
    width = min(work.batch, max(sizes)) if work.batch else max(sizes)
    for k in range(len(sizes)):
        expected = plain_loop(model, held, k, start, work, names[k], width)
        np.testing.assert_allclose(got[k], expected, atol=1e-9, rtol=1e-9)


def test_one_full_batch_step_by_hand():
    """Rows (1), (3) with labels 0, 1 from zero: gradient mean((p - y) x) = (0.5 - 1.5) / 2 = -0.5, bias 0."""
    held = Part(
        x=np.array([[1.0], [3.0]]),
        y=np.array([0, 1]),
        target=np.array([[0.0], [1.0]]),
        group=np.zeros(2, int),
        offsets=np.array([0, 2]),
    )
    work = TrainConfig(seed=0, round=1, lr=0.2, epochs=1, batch=0)
    got = train(Dense((1, 1)), held, np.zeros(1, int), np.zeros(2), names=("a",), work=work)
    np.testing.assert_allclose(got.theta, [[0.1, 0.0]])


def test_class_weights_scale_the_loss_of_their_rows():
    held = part([10], outputs=1)
    work = TrainConfig(seed=0, round=1, lr=0.1, batch=0)
    start = np.zeros(5)
    plain, weighted = (
        train(Dense((4, 1)), held, np.zeros(1, int), start, names=("a",), work=work, class_weight=w).theta
        for w in (None, np.array([0.0, 2.0]))
    )
    only = np.flatnonzero(held.y == 1)
    by_hand = -0.1 * 2 * (0.5 - 1) * held.x[only].sum(axis=0) / 10
    np.testing.assert_allclose(weighted[0, :4], by_hand)
    assert not np.allclose(plain, weighted)


def test_every_row_is_seen_once_an_epoch_and_the_order_follows_from_the_seed():
    rows = batch_rows(10, width=4, steps=6, rng=generator(1, purpose="order"))
    for epoch in (rows[:3], rows[3:]):
        assert sorted(epoch[epoch >= 0].tolist()) == list(range(10))
    again = batch_rows(10, width=4, steps=6, rng=generator(1, purpose="order"))
    np.testing.assert_array_equal(rows, again)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_kept_moments_continue_where_they_stopped(optimizer):
    """Two rounds of one step with kept state equal one round of two steps (full batch, so order does not matter)."""
    model, held, start = Dense((4, 1)), part([12]), np.zeros(5)
    base = {"seed": 0, "lr": 0.1, "batch": 0, "optimizer": optimizer, "keep_optimizer": True}
    once = train(model, held, np.zeros(1, int), start, names=("a",), work=TrainConfig(round=1, steps=2, **base))
    first = train(model, held, np.zeros(1, int), start, names=("a",), work=TrainConfig(round=1, steps=1, **base))
    second = train(
        model, held, np.zeros(1, int), first.theta[0], names=("a",), work=TrainConfig(round=2, steps=1, **base),
        slots=first.slots, clock=first.clock,
    )  # fmt: skip
    np.testing.assert_allclose(second.theta, once.theta, rtol=1e-12)


def test_batches_go_on_across_rounds_as_in_one_long_epoch():
    held, names = part([10, 7]), ("a", "b")
    config = TrainConfig(seed=1, round=1, lr=0.1, steps=4, batch=3, continue_epoch=True)
    plans = [
        BatchPlan.draw(held, np.arange(2), names=names, config=replace(config, round=r)) for r in range(1, 7)
    ]
    for k, (n, in_epoch) in enumerate([(10, 4), (7, 3)]):
        batches = [plan.batch(s, list(plan.order).index(k))[0] - held.offsets[k] for plan in plans for s in range(4)]
        assert len(batches) == 24
        for start in range(0, 24 // in_epoch * in_epoch, in_epoch):
            assert sorted(np.concatenate(batches[start : start + in_epoch])) == list(range(n))
    first = plans[0].rows[:, 0].copy()
    assert not np.array_equal(first, plans[1].rows[:, 0])
    again = BatchPlan.draw(held, np.array([1]), names=names, config=replace(config, round=3))
    np.testing.assert_array_equal(again.batch(2, 0)[0], plans[2].batch(2, list(plans[2].order).index(1))[0])


def test_without_it_every_round_shuffles_anew():
    held, config = part([10]), TrainConfig(seed=1, round=2, lr=0.1, steps=2, batch=3)
    rng = generator(1, purpose="order", round=2, site="a")
    drawn = BatchPlan.draw(held, np.arange(1), names=("a",), config=config)
    np.testing.assert_array_equal(drawn.rows[:, 0], batch_rows(10, width=3, steps=2, rng=rng))
