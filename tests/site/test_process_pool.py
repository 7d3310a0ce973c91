"""Sites trained in several processes: the same bits as in one, also when a process dies, and cores left to others."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import grandrounds  # noqa: F401  (pins one thread before torch loads)

torch = pytest.importorskip("torch")

from grandrounds.core.rng import generator  # noqa: E402
from grandrounds.models import build_model  # noqa: E402
from grandrounds.models.dense import targets  # noqa: E402
from grandrounds.site import process_pool  # noqa: E402
from grandrounds.site.batches import BatchPlan  # noqa: E402
from grandrounds.site.stack import Part  # noqa: E402
from grandrounds.site.torch_train import train  # noqa: E402
from grandrounds.site.train_job import TrainConfig, TrainJob  # noqa: E402

SPEC = {"name": "small-cnn", "inputs": [1, 16, 16], "classes": 3, "hidden": [], "trees": 1, "depth": 1, "norm": "group",
        "stem": "small", "weights": None, "statistics": "averaged", "options": {}}  # fmt: skip


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("workers", [2, 3, 9])
def test_any_number_of_processes_gives_the_same_bits(workers, optimizer):
    sizes = [21, 5, 40, 13]
    rng = generator(0, purpose="forked")
    y = rng.integers(0, 3, sum(sizes))
    x = rng.standard_normal((len(y), 1, 16, 16)).astype(np.float32)
    part = Part(x, y, targets(y, 3), np.zeros(len(y), np.int64), np.cumsum([0, *sizes]))
    model, members = build_model(SPEC, device="cpu"), np.arange(4)
    work = TrainConfig(seed=0, round=1, lr=0.05, batch=8, optimizer=optimizer, keep_optimizer=True)
    plan = BatchPlan.draw(part, members, names=("a", "b", "c", "d"), config=work)
    alone = train(TrainJob(model, part, members, model.init(0), work), plan)
    many = train(TrainJob(model, part, members, model.init(0), work, workers=workers), plan)
    np.testing.assert_array_equal(many.theta, alone.theta)
    np.testing.assert_array_equal(many.clock, alone.clock)
    for mine, theirs in zip(many.slots, alone.slots, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert np.abs(alone.theta - model.init(0)).max() > 0


def test_what_a_process_that_dies_left_is_done_again_from_where_it_began():
    here, total = os.getpid(), process_pool.shared(torch.zeros(5, 1))

    def work(j: int) -> None:
        total[j] += j + 1
        if j == 3 and os.getpid() != here:
            os.kill(os.getpid(), 9)

    process_pool.parallel_for(work, 5, (total,), workers=2)
    assert total[:, 0].tolist() == [1, 2, 3, 4, 5]


def test_a_process_that_hangs_is_stopped_and_its_work_done_here(monkeypatch):
    monkeypatch.setattr(process_pool, "_PATIENCE", 0.2)
    here, total = os.getpid(), process_pool.shared(torch.zeros(2, 1))

    def work(j: int) -> None:
        if os.getpid() != here:
            time.sleep(3600)
        total[j] += j + 1

    process_pool.parallel_for(work, 2, (total,), workers=2)
    assert total[:, 0].tolist() == [1, 2]


def test_a_process_with_threads_of_a_library_is_not_copied(monkeypatch):
    monkeypatch.setattr(process_pool, "_single_threaded", lambda: False)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it was copied"))
    total = process_pool.shared(torch.zeros(4, 1))
    process_pool.parallel_for(lambda j: total[j].add_(j), 4, (total,), workers=3)
    assert total[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("idle", "ours", "cores"),
    [(0.0, 1.0, 1), (0.5, 1.0, 2), (0.1, 1.0, 1), (0.0, 1.9, 2), (0.75, 1.0, 4), (1.0, 0.0, 4)],
)
def test_cores_that_others_use_are_left_to_them(monkeypatch, idle, ours, cores):
    """Ten seconds on a machine of which a share was idle while this process used so many cores."""
    machine = 2 if cores <= 2 else 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(machine)), raising=False)
    looks = iter([(0.0, 0.0, 0.0, 0.0), (10.0, 10 * idle * machine, 10.0 * machine, 10 * ours)])
    monkeypatch.setattr(process_pool, "_usage", lambda: next(looks))
    assert process_pool.Cores().free() == cores
