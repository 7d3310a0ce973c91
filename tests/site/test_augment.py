"""Augmentation: seeded by site and round, and only what it says."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.site.kernels import augment, shift_images
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob


def part(n: int = 12) -> Part:
    x = generator(0, purpose="x").normal(size=(n, 2, 8, 8)).astype(np.float32)
    return Part(x, np.zeros(n, int), np.zeros((n, 1), np.float32), np.zeros(n, int), np.array([0, n // 2, n]))


def test_moving_by_hand():
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    got = shift_images(x, np.array([1]), np.array([-1]))
    np.testing.assert_array_equal(got[0, 0], [[0, 0, 0], [1, 2, 0], [4, 5, 0]])


def test_flips_are_mirrors_and_repeat():
    held, work = part(), TrainConfig(seed=1, round=3, lr=0.1, augment="flip")
    every = np.arange(2)
    once = augment(held, every, names=("a", "b"), config=work)
    np.testing.assert_array_equal(once, augment(held, every, names=("a", "b"), config=work))
    mirrored = (once == held.x[..., ::-1]).all(axis=(1, 2, 3))
    same = (once == held.x).all(axis=(1, 2, 3))
    assert (mirrored | same).all()
    assert mirrored.any()
    assert same.any()


def test_a_site_gets_the_same_draws_whoever_is_there():
    held, work = part(), TrainConfig(seed=1, round=3, lr=0.1, augment="shift")
    together = augment(held, np.arange(2), names=("a", "b"), config=work)
    alone = augment(held, np.array([1]), names=("a", "b"), config=work)
    np.testing.assert_array_equal(together[6:], alone[6:])
    np.testing.assert_array_equal(alone[:6], held.x[:6])


def test_training_on_augmented_pictures_leaves_the_sites_own_alone():
    """Otherwise the changes would add up from round to round, and training figures would be of altered pictures."""
    pytest.importorskip("torch")
    from grandrounds.core.plan import Settings
    from grandrounds.models import build_model, model_spec
    from grandrounds.models.dense import targets
    from grandrounds.site.kernels import trainer

    rng = generator(2, purpose="x")
    y = rng.integers(0, 3, 20)
    x = rng.normal(size=(20, 1, 16, 16)).astype(np.float32)
    held = Part(x.copy(), y, targets(y, 3), np.zeros(20, int), np.array([0, 20]))
    options = {"name": "small-cnn", "hidden": (), "trees": 1, "depth": 1, "norm": "group", "stem": "small",
               "weights": None, "statistics": "averaged", "options": {}}  # fmt: skip
    model = build_model(model_spec(Settings(options), inputs=(1, 16, 16), classes=3), device="cpu")
    for r in (1, 2):
        work = TrainConfig(seed=0, round=r, lr=0.1, batch=8, augment="shift")
        trainer(model)(TrainJob(model, held, np.zeros(1, int), model.init(0), work, names=("a",)))
        np.testing.assert_array_equal(held.x, x)
