"""Drawn shapes: exact masks, backgrounds that say nothing or give the class away, and no place where shapes usually are."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.sets.drawn_shapes import BACKGROUNDS, SCORING_ROWS, SHAPES, TIED_SITES, draw
from grandrounds.explain.agreement import centre_blob, uniform_noise, xai_accuracy


def counts(images) -> np.ndarray:
    """Images by shape (rows) and background (columns)."""
    pairs = list(zip(images.label.tolist(), images.columns["background"].tolist(), strict=True))
    return np.array([[pairs.count((s, b)) for b in BACKGROUNDS] for s in SHAPES])


@pytest.mark.parametrize("tied", [0.0, 0.95])
def test_masks_are_the_pixels_that_differ_from_the_background(tied):
    drawn = draw(500, seed=7, tied=tied)
    np.testing.assert_array_equal(drawn.masks, drawn.pixels != drawn.backgrounds)
    size = drawn.masks.sum((1, 2))
    assert size.min() >= 16 and size.max() < drawn.masks[0].size / 4


def test_a_seed_gives_the_same_images():
    one, again, other = draw(40, seed=1), draw(40, seed=1), draw(40, seed=2)
    np.testing.assert_array_equal(one.pixels, again.pixels)
    assert (one.pixels != other.pixels).any()


def test_the_scoring_set_has_every_shape_on_every_background_equally_often():
    images = find_entry("drawn-shapes-scoring").load()
    assert (counts(images) == SCORING_ROWS // 16).all()
    assert images.masks is not None and images.site is None


def test_backgrounds_of_the_plain_set_say_nothing():
    images = find_entry("drawn-shapes").load()
    assert len(images) == find_entry("drawn-shapes").rows and (counts(images) == len(images) // 16).all()


def test_backgrounds_give_the_class_away_at_three_sites_only():
    images = find_entry("drawn-shapes-backgrounds").load()
    for site in np.unique(images.site):
        table = counts(images.take(images.site == site))
        same = np.trace(table) / table.sum()
        if site in TIED_SITES:
            assert same > 0.9
        else:  # 300 images of a set that is balanced as a whole: 3 x 3 degrees of freedom, 27.9 at p = .001
            expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
            assert ((table - expected) ** 2 / expected).sum() < 27.9


def test_heat_that_looks_at_no_image_is_right_for_about_half():
    masks = draw(800, seed=3).masks
    assert float(xai_accuracy(centre_blob(masks.shape), masks)) == pytest.approx(0.5, abs=0.1)
    noise = uniform_noise(masks.shape, np.random.default_rng(0))
    assert float(xai_accuracy(noise, masks)) == pytest.approx(0.5, abs=0.06)
    inside, outside = draw(800, seed=3), draw(800, seed=3).pixels.astype(float)
    mean = [outside[m].mean() for m in (inside.masks, ~inside.masks)]
    spread = [outside[m].std() for m in (inside.masks, ~inside.masks)]
    assert abs(mean[0] - mean[1]) < 3 and abs(spread[0] - spread[1]) < 3, "brightness and contrast do not show the shape"
