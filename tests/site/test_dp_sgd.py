"""DP-SGD over a stack: what a loop over single patients gives, and no patient ever moves a step by more than the clip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.explain.features import Features
from grandrounds.models import build_model
from grandrounds.models.dense import Dense
from grandrounds.privacy.clipping import clip_norm
from grandrounds.privacy.secagg import Secret
from grandrounds.site.anchor import ReferenceDraws, SharedReference
from grandrounds.site.dp_sgd import BLOCK, SampledSteps, add_clipped, refusals, train
from grandrounds.site.train_job import TrainConfig, TrainJob
from tests.site.test_numpy_train import alone, part
from tests.support import refused

SIZES = [70, 9, 160, 41]


def secrets(sizes, seed: int = 5) -> list[Secret]:
    return [Secret.simulated(seed, f"s{k}") for k in range(len(sizes))]


def work(**changes) -> TrainConfig:
    values = {"seed": 1, "round": 1, "lr": 0.2, "epochs": 2, "clip": 0.7, "noise": 0.9, "rate": 0.3}
    return TrainConfig(**{**values, **changes})


def draws(held, members, todo: TrainConfig, *, size: int, own: list[Secret] | None = None, purpose="ask 1") -> SampledSteps:
    own = secrets(held.counts) if own is None else own
    return SampledSteps.draw(held, members, [own[k] for k in members], config=todo, purpose=purpose, size=size)


def trained(model, held, todo: TrainConfig, start, members=None, own=None, **kept):
    members = np.arange(len(held.counts)) if members is None else members
    made = draws(held, members, todo, size=model.layout.size, own=own)
    return train(TrainJob(model, held, members, start, todo, **kept), made)


def lent_for(made: SampledSteps, members, todo: TrainConfig) -> ReferenceDraws:
    """Which of nine lent rows each step takes."""
    rows = SharedReference(generator(5, purpose="lent").normal(size=(9, 4)), Features.from_inputs(list("abcd")))
    return ReferenceDraws.draw(rows, made, members, names=("s0", "s1", "s2", "s3"), config=todo)


def row_gradient(model: Dense, theta, held, i: int, weight: float) -> np.ndarray:
    out = np.empty((1, model.layout.size))
    model.gradient(theta[None], held.x[None, i : i + 1], held.target[None, i : i + 1], np.full((1, 1), weight), out)
    return out[0]


def by_hand(model: Dense, held, k: int, start, todo: TrainConfig, by_class, correction) -> np.ndarray:
    """One site's DP-SGD as the paper's Algorithm 1 has it: patient by patient."""
    made = draws(held, np.arange(len(held.counts)), todo, size=model.layout.size)
    j = int(np.flatnonzero(made.order == k)[0])
    theta, mask, velocity = start.copy(), model.layout.mask("weight").astype(float), np.zeros(len(start))
    for s in range(made.steps[k]):
        total = np.zeros(len(start))
        for i in made.rows[s, j][made.real[s, j]]:
            g = row_gradient(model, theta, held, i, by_class[held.y[i]])
            total += g * min(1.0, todo.clip / max(np.linalg.norm(g), 1e-300))
        noisy = total + todo.noise * todo.clip * made.noise.next()[j]
        g = noisy / (todo.rate * held.counts[k])
        g = g + todo.l2 * mask * theta + todo.proximal * (theta - start) + correction[k]
        velocity = 0.9 * velocity + g
        theta = theta - todo.lr * (velocity if todo.optimizer == "momentum" else g)
    return theta


@pytest.mark.parametrize("widths", [(4, 1), (4, 3), (4, 6, 5, 3)], ids=str)
@pytest.mark.parametrize("changes", [{}, {"l2": 0.1, "proximal": 0.5, "steps": 4}, {"optimizer": "momentum"}], ids=str)
def test_a_stack_gives_what_a_loop_over_patients_gives(widths, changes):
    model, held, todo = Dense(widths), part(SIZES, outputs=widths[-1]), work(**changes)
    start = generator(0, purpose="start").normal(size=model.layout.size)
    by_class = generator(1, purpose="start").uniform(0.5, 3, max(2, widths[-1]))
    correction = generator(2, purpose="start").normal(size=(len(SIZES), model.layout.size)) / 10
    done = trained(model, held, todo, start, class_weight=by_class, correction=correction)
    for k in range(len(SIZES)):
        expected = by_hand(model, held, k, start, todo, by_class, correction)
        np.testing.assert_allclose(done.theta[k], expected, rtol=3e-5, atol=3e-5)
    assert done.steps.tolist() == [todo.steps or 7] * len(SIZES), "round(2 epochs / 0.3)"


rows = st.integers(1, 40)


@given(
    st.integers(0, 2**32),
    st.sampled_from([(3, 1), (3, 4), (3, 7, 2)]),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e6),
    rows,
)
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_patient_never_adds_more_than_the_clip(dtype, seed, widths, clip, size, n):
    """Whatever the model, the patient, and who else is in the step: with and without a row, sums are within the clip."""
    model, rng = Dense(widths), np.random.default_rng(seed)
    theta = rng.normal(size=(1, model.layout.size)).astype(dtype) * rng.choice([0.01, 1, 30])
    x = (rng.normal(size=(1, n, widths[0])) * size).astype(dtype)
    target = rng.dirichlet(np.ones(max(2, widths[-1])), (1, n))[..., : widths[-1]].astype(dtype)
    weight = rng.uniform(0.1, 5, (1, n)).astype(dtype)
    single = np.zeros((n, model.layout.size), dtype)
    for i in range(n):
        only = weight * (np.arange(n) == i)
        add_clipped(
            model, model.layers(theta), model.layers(single[i : i + 1]), x, target, only.astype(dtype), clip=clip
        )
    assert np.sqrt((single.astype(float) ** 2).sum(axis=1)).max() <= clip
    both = np.zeros((1, model.layout.size), dtype)
    add_clipped(model, model.layers(theta), model.layers(both), x, target, weight, clip=clip)
    np.testing.assert_allclose(both[0], single.sum(axis=0), rtol=1e-3, atol=1e-3 * clip)


def test_a_patient_beyond_all_numbers_adds_nothing():
    model, x = Dense((2, 3, 1)), np.array([[[1.0, 2.0], [1e300, -1e300], [np.nan, 0.0]]])
    theta = generator(0, purpose="start").normal(size=(1, model.layout.size))
    grad = np.zeros_like(theta)
    with np.errstate(over="ignore", invalid="ignore"):
        add_clipped(model, model.layers(theta), model.layers(grad), x, np.ones((1, 3, 1)), np.ones((1, 3)), clip=1.0)
    assert np.isfinite(grad).all()
    assert 0 < np.linalg.norm(grad) <= 2.0


def test_company_changes_no_bit():
    """In any chunk, and alone with no others' rows in the stack, a site's model is the same to the last bit."""
    for widths, dtype in (((4, 1), np.float32), ((4, 6, 3), np.float64)):
        model, held = Dense(widths), part(SIZES, outputs=widths[-1], dtype=dtype)
        start = generator(0, purpose="start").normal(size=model.layout.size).astype(dtype)
        todo, own = work(steps=5, optimizer="adam", keep_optimizer=True), secrets(SIZES)
        together = trained(model, held, todo, start)
        for members in ([2, 0], [1], [3, 1, 2]):
            some = trained(model, held, todo, start, members=np.array(members))
            assert some.theta.tobytes() == together.theta[members].tobytes()
            assert some.slots[1].tobytes() == together.slots[1][members].tobytes()
        for k in range(len(SIZES)):
            single = trained(model, alone(held, k), todo, start, own=[own[k]])
            assert single.theta[0].tobytes() == together.theta[k].tobytes()


def test_rows_are_sampled_by_their_rate_and_independently():
    held = part([2000])
    made = draws(held, np.array([0]), work(rate=0.1, steps=200), size=1)
    taken = np.zeros((200, 2000))
    for s in range(200):
        mine = made.rows[s, 0][made.real[s, 0]]
        assert len(set(mine.tolist())) == len(mine), "nobody is in a step twice"
        taken[s, mine] = 1
    count = taken.sum(axis=1)
    assert abs(taken.mean() - 0.1) < 4 * np.sqrt(0.09 / taken.size)
    assert 0.75 < count.var(ddof=1) / (2000 * 0.09) < 1.3, "binomial, not a fixed number of rows"
    by_row = taken.sum(axis=0)
    assert 0.9 < by_row.var(ddof=1) / (200 * 0.09) < 1.1, "steps are drawn apart"
    assert made.expected[0] == 200 and made.rows.shape[2] % BLOCK == 0


def test_a_step_without_rows_is_noise_alone():
    model, held, start = Dense((4, 1)), part([5]), np.zeros(5)
    todo = work(rate=1e-9, steps=3, lr=1.0, clip=2.0, noise=1.5)
    done = trained(model, held, todo, start)
    made = draws(held, np.array([0]), todo, size=5)
    assert not made.real.any() and done.steps[0] == 3
    noise = sum(made.noise.next()[0] for _ in range(3)) * 1.5 * 2.0 / (1e-9 * 5)
    np.testing.assert_allclose(done.theta[0], -noise, rtol=1e-12)


def test_the_noise_has_the_deviation_that_is_asked_for():
    """With gradients that cancel nothing (no rows drawn) what is left is noise * clip / expected rows."""
    model, held, start = Dense((400, 1)), part([40], features=400), np.zeros(401)
    todo = work(rate=1e-6, steps=50, lr=1.0, clip=0.5, noise=3.0)
    theta = trained(model, held, todo, start).theta[0]
    expected = 3.0 * 0.5 / (1e-6 * 40) * np.sqrt(50)
    assert theta.std() == pytest.approx(expected, rel=0.15)


def test_draws_follow_from_the_secret_and_from_nothing_else():
    model, held, start = Dense((4, 1)), part([60, 80]), np.zeros(5)
    first = trained(model, held, work(), start).theta
    again = trained(model, held, work(seed=99), start).theta
    assert first.tobytes() == again.tobytes(), "the seed of the experiment has no say"
    other = trained(model, held, work(), start, own=secrets([60, 80], seed=6)).theta
    assert not np.isclose(first, other).any()
    own = [Secret.own(), Secret.own()]
    one, two = (trained(model, held, work(), start, own=own).theta for _ in range(2))
    assert not np.isclose(one, two).any(), "from the operating system, anew each time"
    made = (draws(held, np.array([0]), work(), size=4, purpose=p) for p in ("ask 1", "ask 2"))
    assert not np.isclose(*(d.noise.next() for d in made)).any(), "no two questions share their noise"


@pytest.mark.parametrize("permuted", [False, True])
def test_an_anchor_is_added_after_the_noise(permuted):
    """Its rows are no patients': the clipped sum and the noise are as they were, whatever the anchor pulls."""
    model, held, members = Dense((4, 1)), part(SIZES), np.arange(4)
    start = generator(0, purpose="start").normal(size=5)
    todo = work(steps=2, batch=6, anchor=4.0, permuted=permuted, optimizer="sgd")
    made = draws(held, members, todo, size=5)
    taken = lent_for(made, members, todo)
    plain = trained(model, held, todo, start).theta
    once = trained(model, held, work(steps=1), start).theta  # after one step the pull is nothing yet
    done = trained(model, held, todo, start, reference_draws=taken).theta
    for k in range(len(SIZES)):
        j = int(np.flatnonzero(made.order == k)[0])
        x = taken.inputs(slice(1, 2), slice(j, j + 1))[0, 0]
        fed = np.c_[x, np.ones(len(x))]
        said, now = (1 / (1 + np.exp(-fed @ theta)) for theta in (start, once[k]))
        pull = 4.0 * fed.T @ (now - said) / len(x)
        np.testing.assert_allclose(done[k], plain[k] - todo.lr * pull, rtol=1e-9, atol=1e-9)
    assert np.abs(done - plain).max() > 1e-3, "it pulls"


def test_small_sites_take_no_step_and_say_why():
    model, held, start = Dense((4, 1)), part([60, 12, 80, 49]), np.ones(5)
    todo = work(fewest=50)
    done = trained(model, held, todo, start)
    assert done.steps.tolist() == [7, 0, 7, 0]
    np.testing.assert_array_equal(done.theta[[1, 3]], 1.0)
    assert not np.isclose(done.theta[[0, 2]], 1.0).any()
    assert refusals(held.counts, todo) == ["", "too-few-rows", "", "too-few-rows"]


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"rate": 1.5}, {"noise": -1.0}], ids=str)
def test_what_bounds_nothing_is_refused(wrong):
    with refused("bad-privacy-parameter"):
        draws(part([60]), np.array([0]), work(**wrong), size=5)


@given(st.integers(0, 2**32), st.floats(1e-3, 1e3), st.sampled_from([1e-6, 1.0, 1e30]))
@settings(max_examples=100, deadline=None)
def test_updates_are_never_longer_than_agreed(seed, longest, scale):
    updates = (np.random.default_rng(seed).normal(size=(3, 50)) * scale).astype(np.float32)
    short = clip_norm(updates, longest).astype(float)
    assert np.linalg.norm(short, axis=1).max() <= longest
    kept = np.linalg.norm(updates.astype(float), axis=1) < longest * 0.999
    np.testing.assert_array_equal(short[kept], updates[kept])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("anchor", [0.0, 2.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("widths", [(4, 1), (4, 6, 3)], ids=str)
def test_torch_gives_the_same_with_the_same_draws(widths, optimizer, anchor, monkeypatch):
    pytest.importorskip("torch")
    from grandrounds.models.torch_build import torch_dense
    from grandrounds.site import torch_dp_sgd

    monkeypatch.setattr(torch_dp_sgd, "_BYTES", 5 * 8 * Dense(widths).layout.size)  # five rows at a time
    dense, held, members = Dense(widths), part(SIZES, outputs=widths[-1]), np.array([2, 0, 3])
    start = generator(0, purpose="start").normal(size=dense.layout.size)
    todo = work(optimizer=optimizer, l2=0.1, proximal=0.2, keep_optimizer=True, fewest=42, anchor=anchor, permuted=True)
    made = draws(held, members, todo, size=dense.layout.size)
    kept = {
        "reference_draws": lent_for(made, members, todo) if anchor else None,
        "class_weight": np.linspace(0.5, 1.5, max(2, widths[-1])),
        "correction": generator(1, purpose="start").normal(size=(3, dense.layout.size)) / 10,
    }
    mine = trained(dense, held, todo, start, members=members, **kept)
    model = torch_dense(dense, device="cpu", precision="float64")
    theirs = torch_dp_sgd.train(TrainJob(model, held, members, start, todo, **kept), made)
    np.testing.assert_allclose(theirs.theta, mine.theta, rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(theirs.clock, mine.clock)
    assert theirs.steps.tolist() == mine.steps.tolist() == [7, 7, 0]
    for a, b in zip(theirs.slots, mine.slots, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_a_net_for_pictures_clips_each_picture():
    """Convolutions and group norm: one step without noise is the mean of the pictures' clipped gradients."""
    torch = pytest.importorskip("torch")
    from grandrounds.site import torch_dp_sgd
    from grandrounds.site.stack import Part
    from grandrounds.site.torch_job import row_losses

    spec = {
        "name": "resnet18",
        "inputs": [1, 8, 8],
        "classes": 3,
        "hidden": [],
        "trees": 1,
        "depth": 1,
        "norm": "group",
    }
    spec |= {"stem": "small", "weights": None, "statistics": "averaged", "options": {}, "tasks": [], "keeps": "none"}
    model = build_model(spec, device="cpu", precision="float64")
    rng = generator(0, purpose="pictures")
    y = np.arange(5) % 3
    held = Part(rng.normal(size=(5, 1, 8, 8)), y, np.eye(3)[y], np.zeros(5, int), np.array([0, 5]))
    start = model.init(1, np.float64)
    todo = work(rate=1.0, steps=1, noise=0.0, lr=1.0, clip=0.4)
    made = draws(held, np.array([0]), todo, size=len(start))
    done = torch_dp_sgd.train(TrainJob(model, held, np.array([0]), start, todo), made)
    total, cut = np.zeros(len(start)), 0
    for i in range(5):
        params = model.point_at(model.tensor(start))
        out = model.net(model.tensor(held.x[i : i + 1]))
        loss = row_losses(out, model.tensor(held.target[i : i + 1])).sum()
        g = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, params)]).numpy()
        cut += np.linalg.norm(g) > 0.4
        total += g * min(1, 0.4 / np.linalg.norm(g))
    assert cut > 0, "the clip has a say"
    np.testing.assert_allclose(start - done.theta[0], total / 5, rtol=1e-4, atol=1e-8)


def test_batch_norm_is_refused():
    pytest.importorskip("torch")
    from grandrounds.site import torch_dp_sgd

    spec = {
        "name": "resnet18",
        "inputs": [1, 8, 8],
        "classes": 2,
        "hidden": [],
        "trees": 1,
        "depth": 1,
        "norm": "batch",
    }
    spec |= {"stem": "small", "weights": None, "statistics": "averaged", "options": {}, "tasks": [], "keeps": "none"}
    model = build_model(spec, device="cpu")
    held, start = part([60]), model.init(0)
    made = draws(held, np.array([0]), work(), size=len(start))
    with refused("unsupported-with-dp", match="model.norm"):
        torch_dp_sgd.train(TrainJob(model, held, np.array([0]), start, work()), made)
