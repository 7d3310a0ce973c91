"""The torch kernel: a dense model gives the numbers of the NumPy kernel, and the stacked gradient those of one site."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import refused

torch = pytest.importorskip("torch")

from grandrounds.core.rng import generator  # noqa: E402
from grandrounds.models.dense import Dense  # noqa: E402
from grandrounds.models.torch_build import pick_device, torch_dense  # noqa: E402
from grandrounds.site import torch_job, torch_train  # noqa: E402
from grandrounds.site.batches import BatchPlan  # noqa: E402
from grandrounds.site.cuda_train import _segments  # noqa: E402
from grandrounds.site.numpy_train import train as numpy_train  # noqa: E402
from grandrounds.site.train_job import TrainConfig, TrainJob  # noqa: E402
from tests.site.test_numpy_train import part  # noqa: E402

SIZES = [17, 5, 30, 1]
NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("widths", [(4, 1), (4, 6, 3)])
@pytest.mark.parametrize("extra", [{}, {"l2": 0.1, "proximal": 0.5, "steps": 7}, {"batch": 0, "weight_decay": 0.1}])
def test_both_kernels_of_a_dense_model_agree(optimizer, widths, extra):
    dense, held = Dense(widths), part(SIZES, outputs=widths[-1])
    model = torch_dense(dense, device="cpu", precision="float64")
    start = generator(0, purpose="start").normal(size=dense.layout.size)
    work = TrainConfig(**{"seed": 1, "round": 2, "lr": 0.1, "epochs": 2, "batch": 8, "optimizer": optimizer, **extra})
    members = np.array([2, 0, 3])
    weight = np.linspace(0.5, 1.5, max(2, widths[-1]))
    plan = BatchPlan.draw(held, members, names=NAMES, config=work)
    mine = numpy_train(TrainJob(dense, held, members, start, work, class_weight=weight), plan)
    theirs = torch_train.train(TrainJob(model, held, members, start, work, class_weight=weight), plan)
    np.testing.assert_allclose(theirs.theta, mine.theta, atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(theirs.clock, mine.clock)
    x = held.x[:9]
    np.testing.assert_allclose(model.logits(start, x), dense.logits(start, x), atol=1e-9)
    np.testing.assert_array_equal(model.init(3, np.float64), dense.init(3, np.float64))
    np.testing.assert_allclose(model.with_temperature(start, 2.0), dense.with_temperature(start, 2.0))


def test_graphs_shrink_as_sites_finish():
    """By hand: of six sites one has no rows; two thirds of 6 are 4, of 4 (and of 3) one less."""
    plan = SimpleNamespace(active=[5, 5, 5, 4, 3, 3, 1])
    assert list(_segments(plan, 6)) == [(6, [(5, 3)]), (4, [(4, 1)]), (3, [(3, 2)]), (1, [(1, 1)])]


@given(steps=st.lists(st.integers(0, 12), min_size=1, max_size=20))
def test_every_step_is_in_one_graph_that_holds_all_active_sites(steps):
    active = [sum(n > s for n in steps) for s in range(max(steps))]
    found = list(_segments(SimpleNamespace(active=active), len(steps)))
    assert [a for _, runs in found for a, count in runs for _ in range(count)] == active
    sizes = [size for size, _ in found]
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(a <= size < 1.5 * a + 2 or size == len(steps) for size, runs in found for a, _ in runs)


def test_class_weights_stay_where_a_recorded_graph_reads_them():
    dense, held = Dense((4, 3)), part(SIZES, outputs=3)
    model = torch_dense(dense, device="cpu", precision="float64")
    start, work = np.zeros(dense.layout.size), TrainConfig(seed=0, round=1, lr=0.1)
    jobs = (TrainJob(model, held, np.zeros(1, int), start, work, class_weight=np.full(3, w)) for w in (1.0, 2.0))
    first, second = (torch_job.TorchJob.build(job).class_weight for job in jobs)
    assert first.data_ptr() == second.data_ptr() and second.tolist() == [2, 2, 2]


def test_kept_moments_continue_on_torch():
    dense, held = Dense((4, 1)), part([12])
    model = torch_dense(dense, device="cpu", precision="float64")
    base = {"seed": 0, "lr": 0.1, "batch": 0, "optimizer": "adam", "keep_optimizer": True}
    one = np.zeros(1, int)

    def run(start, work, **kept):
        plan = BatchPlan.draw(held, one, names=("a",), config=work)
        return torch_train.train(TrainJob(model, held, one, start, work, **kept), plan)

    twice = run(np.zeros(5), TrainConfig(round=1, steps=2, **base))
    first = run(np.zeros(5), TrainConfig(round=1, steps=1, **base))
    second = run(first.theta[0], TrainConfig(round=2, steps=1, **base), slots=first.slots, clock=first.clock)
    np.testing.assert_allclose(second.theta, twice.theta, rtol=1e-12)


@pytest.mark.parametrize("widths", [(4, 1), (4, 6, 3)])
def test_the_stacked_gradient_is_each_sites_own(widths):
    dense, held = Dense(widths), part([8, 8, 8], outputs=widths[-1])
    model = torch_dense(dense, device="cpu", precision="float64")
    config = TrainConfig(seed=0, round=1, lr=0.1)
    job = torch_job.TorchJob.build(TrainJob(model, held, np.arange(3), np.zeros(dense.layout.size), config))
    rng = generator(1, purpose="theta")
    theta = torch.as_tensor(rng.normal(size=(3, dense.layout.size)))
    rows = torch.arange(24).view(3, 8)
    weight = torch.as_tensor(rng.uniform(size=(3, 8)))
    params = tuple(theta[:, at].reshape(3, *shape) for _, at, shape in model.layout.slices)
    parts = torch_job.stacked_gradients(job)(params, job.batch(rows, weight, None))
    stacked = torch.cat([g.reshape(3, -1) for g in parts], dim=1)
    by_hand = np.empty((3, dense.layout.size))
    dense.gradient(theta.numpy(), held.x.reshape(3, 8, 4), held.target.reshape(3, 8, -1), weight.numpy(), by_hand)
    np.testing.assert_allclose(stacked.numpy(), by_hand, atol=1e-10)
    for k in range(3):
        own = model.point_at(theta[k])
        single = torch_job.single_gradients(job, own, job.batch(rows[k], weight[k], None))
        flat = torch.cat([g.reshape(-1) for g in single])
        np.testing.assert_allclose(flat.numpy(), by_hand[k], atol=1e-10)


def test_a_gpu_that_is_not_there_is_refused():

    if torch.cuda.is_available():
        assert pick_device("auto") == "cuda"
    else:
        with refused("no-gpu"):
            pick_device("cuda")
        assert pick_device("auto") == "cpu"
