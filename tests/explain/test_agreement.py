"""Heat against truth masks and shortcuts: worked by hand, on the published masks, beside Quantus, and in grid scenes."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.data.corruption.shortcut import patch_tile, site_patches
from grandrounds.explain.agreement import (
    FORMS,
    Share,
    cell_blobs,
    centre_blob,
    grid_accuracy,
    in_mask,
    iou,
    iou_ratio,
    mass_in_mask,
    spurious_gap,
    spurious_mass,
    uniform_noise,
    xai_accuracy,
)
from grandrounds.explain.rationale import grid_scenes, shrink
from tests.support import refused

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

CORNER = np.array([[True, False], [False, False]])
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, n: int = 5, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Heats without ties, and masks that have an inside and an outside."""
    rng = generator(seed, purpose="heats")
    masks = rng.random((n, side, side)) < 0.4
    masks[:, 0, 0], masks[:, -1, -1] = True, False
    return rng.normal(size=(n, side, side)), masks


@pytest.mark.parametrize(("form", "expected"), [("mass", 9.0), ("pixels", np.inf), ("nonzero", 3.0)])
def test_the_ratio_by_hand(form, expected):
    heat = np.array([[-3.0, 1.0], [0.0, 0.0]])  # inside 3; outside 1, 0, 0; the hottest of four pixels is inside
    assert iou_ratio(heat, CORNER, form=form) == expected
    assert iou_ratio(np.stack([heat, heat[::-1]]), np.stack([CORNER] * 2), form=form).tolist() == [expected, 0]


def test_shares_inside_the_mask_by_hand():
    heat = np.array([[3.0, 1.0], [0.0, 0.0]])
    assert (iou(heat, CORNER), in_mask(heat, CORNER), mass_in_mask(heat, CORNER)) == (1, 1, 0.75)
    assert (iou(heat, CORNER, q=0.5), in_mask(heat, CORNER, q=0.5)) == (0.5, 1)
    wide = np.array([[True, False], [True, False]])
    assert (iou(heat, wide), in_mask(heat, wide)) == (0.5, 0.5)


@pytest.mark.parametrize("form", FORMS)
def test_no_heat_is_zero_and_a_mask_without_two_sides_is_left_out(form):
    none, only_inside = np.zeros((2, 2)), np.where(CORNER, 2.0, 0.0)
    assert iou_ratio(none, CORNER, form=form) == 0
    assert iou_ratio(only_inside, CORNER, form=form) == np.inf
    for unusable in (np.zeros_like(CORNER), np.ones_like(CORNER)):
        assert np.isnan(iou_ratio(only_inside, unusable, form=form))
    assert (iou(none, CORNER), in_mask(none, CORNER), mass_in_mask(none, CORNER)) == (0, 0, 0)
    assert np.isnan([f(only_inside, CORNER | True) for f in (iou, in_mask, mass_in_mask)]).all()


def test_pixels_that_tie_with_the_last_are_in_and_cold_pixels_never():
    flat = np.full((2, 2), 0.1)
    assert iou_ratio(flat, CORNER, form="pixels") == 1  # all four tie
    assert iou(flat, CORNER) == 0.25
    one = np.array([[0.0, 5.0], [0.0, 0.0]])
    assert iou(one, CORNER, q=1) == 0  # of four asked for, three are cold
    steps = np.arange(9.0, 0, -1).reshape(3, 3)
    assert in_mask(steps, steps >= 1.5, q=0.25) == 3 / 8  # 2.25 pixels are three
    assert in_mask(np.arange(100.0).reshape(10, 10), np.arange(100).reshape(10, 10) >= 50, q=0.07) == 7 / 50


def test_a_constant_map_is_not_drawn_to_the_mask_by_rounding():
    masks = generator(0, purpose="m").random((50, 28, 28)) < 0.3
    assert xai_accuracy(np.full(masks.shape, 0.1), masks) == 0
    assert xai_accuracy(np.full(masks.shape, 0.1), masks, form="pixels") == 0
    assert xai_accuracy(np.full(masks.shape, 0.1), masks, form="nonzero") == 1  # r >= 1, as printed


def test_accuracy_counts_names_what_is_left_out_and_gives_its_error():
    heats = np.array([[[3.0, 1], [0, 0]], [[0, 1], [0, 0]], [[1, 0], [0, 0]], [[1, 0], [0, 0]], [[2, 1], [1, 1]]])
    masks = np.stack([CORNER, CORNER, CORNER | True, CORNER & False, CORNER])
    found = xai_accuracy(heats, masks)
    assert found == pytest.approx(2 / 3) and found > 0.5 and float(found) == found.value
    assert (found.count, found.left_out) == (3, (2, 3))
    assert found.error == pytest.approx(np.sqrt(2 / 9 / 3))
    nothing = xai_accuracy(heats[2:4], masks[2:4])
    assert (nothing.value, nothing.count, nothing.left_out, nothing.error) == (0, 0, (0, 1), 0)


def test_a_share_is_a_number_that_cannot_be_changed():
    share = Share.from_credit(np.array([1.0, 0, np.nan, 1, 1]))
    assert share == 0.75 and 1 - share == 0.25 and json.loads(json.dumps({"x": share})) == {"x": 0.75}
    assert repr(share) == "0.7500 +- 0.2165 (4 scored, 1 left out)"
    again = copy.deepcopy(share)
    assert (again, again.count, again.left_out) == (0.75, 4, (2,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        share.value = 1.0


@settings(max_examples=50, deadline=None)
@given(seeds, st.floats(1e-200, 1e200), st.sampled_from(sorted(FORMS)))
def test_neither_scale_nor_sign_nor_the_order_of_pixels_matters(seed, scale, form):
    heats, masks = drawn(seed)
    base = iou_ratio(heats, masks, form=form)
    np.testing.assert_allclose(iou_ratio(-scale * heats, masks, form=form), base, rtol=1e-9)
    order = generator(seed, purpose="order").permutation(36)
    mixed = [a.reshape(5, 36)[:, order].reshape(5, 6, 6) for a in (heats, masks)]
    np.testing.assert_allclose(iou_ratio(*mixed, form=form), base, rtol=1e-9)
    for measure in (iou, in_mask, mass_in_mask):
        np.testing.assert_allclose(measure(mixed[0] * scale, mixed[1]), measure(heats, masks), rtol=1e-9)


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_inside_and_outside_change_places_with_the_mask(seed):
    heats, masks = drawn(seed)
    np.testing.assert_allclose(iou_ratio(heats, ~masks), 1 / iou_ratio(heats, masks), rtol=1e-9)
    np.testing.assert_allclose(mass_in_mask(heats, ~masks), 1 - mass_in_mask(heats, masks), atol=1e-12)
    for measure in (iou, in_mask, mass_in_mask):
        assert ((measure(heats, masks) >= 0) & (measure(heats, masks) <= 1)).all()
    one_by_one = [iou_ratio(h, m) for h, m in zip(heats, masks, strict=True)]
    assert iou_ratio(heats, masks).tolist() == one_by_one


def test_shares_agree_with_quantus():
    quantus = pytest.importorskip("quantus")
    heats, masks = drawn(3, n=8, side=10)
    size = np.abs(heats)[:, None]
    given = {"model": None, "x_batch": size, "y_batch": np.zeros(8, int), "a_batch": size, "s_batch": masks[:, None]}
    options = {"abs": False, "normalise": False, "disable_warnings": True}
    mass = quantus.RelevanceMassAccuracy(**options)(**given)
    np.testing.assert_allclose(mass_in_mask(heats, masks), mass, rtol=1e-9)
    top = quantus.TopKIntersection(k=25, **options)(**given)
    np.testing.assert_allclose(in_mask(heats, masks) * masks.sum((1, 2)) / 25, top, rtol=1e-9)


def read_part(path: Path, part: str) -> np.ndarray:
    with np.load(path) as held:
        return held[part]


@pytest.mark.data("xfed_masks", "ham10000")
def test_a_blob_that_looks_at_nothing_is_right_on_the_published_masks(data_folder):
    cifar = read_part(data_folder / "xfed_masks/xfed_masks.npz", "cifar_masks")
    mnist = read_part(data_folder / "xfed_masks/xfed_masks.npz", "mnist_masks")
    for masks in (cifar, mnist):
        assert xai_accuracy(centre_blob(masks.shape), masks) == 1
    packed = read_part(data_folder / "ham10000/ham10000_28x28.npz", "mask")
    lesions = np.unpackbits(packed, axis=2, count=28).astype(bool)
    found = xai_accuracy(centre_blob(lesions.shape), lesions)
    assert round(found, 4) == 0.9999
    assert (found.count, len(found.left_out)) == (10_013, 2)


@pytest.mark.data("xfed_masks")
def test_noise_is_right_half_the_time_on_the_published_masks(data_folder):
    masks = read_part(data_folder / "xfed_masks/xfed_masks.npz", "cifar_masks")
    scores = [xai_accuracy(uniform_noise(masks.shape, generator(s, purpose="noise")), masks) for s in range(200)]
    assert np.mean(scores) == pytest.approx(0.51, abs=0.02)
    assert scores[0].error == pytest.approx(0.09, abs=0.005)  # thirty pictures
    assert xai_accuracy(uniform_noise(masks.shape, generator(0, purpose="noise")), masks, form="nonzero") == 1


def test_the_blob_of_each_cell_is_in_its_middle():
    blob = cell_blobs((10, 14), 2)
    assert np.argwhere(blob == 1).tolist() == [[2, 3], [2, 10], [7, 3], [7, 10]]
    np.testing.assert_allclose(blob, blob[::-1, ::-1])
    np.testing.assert_allclose(centre_blob((3, 7, 7))[2], cell_blobs((7, 7), 1))
    assert np.unravel_index(centre_blob((7, 9)).argmax(), (7, 9)) == (3, 4)


def test_the_warmest_cell_is_the_answer_and_ties_share_it():
    heats = np.zeros((4, 4, 4))
    heats[0, 0, 3] = -1  # cell 1
    heats[1, 2:, :2] = 0.3  # cell 2, with more mass than the single hottest pixel of cell 3
    heats[1, 3, 3] = 1
    heats[2] = 0.1  # a guess among four
    found = grid_accuracy(heats, np.array([1, 2, 3, 0]), 2)  # the last has no heat
    assert (float(found), found.count, found.left_out) == ((1 + 1 + 0.25 + 0) / 4, 4, ())
    assert grid_accuracy(heats, np.array([0, 3, 3, 0]), 2) == 0.25 / 4
    assert grid_accuracy(heats[:2], np.array([1, 2]), 2, positive=True) == 0.5  # the first speaks against the class
    rng = generator(0, purpose="cells")
    values = rng.random(49)
    cells = [rng.permutation(values).reshape(7, 7) for _ in range(4)]
    alike = np.block([cells[:2], cells[2:]])[None]  # equally warm, whatever the order of adding up
    assert [grid_accuracy(alike, np.array([c]), 2) for c in range(4)] == [0.25] * 4


@pytest.mark.parametrize(("size", "grid"), [(28, 2), (28, 3), (32, 3)])
def test_in_scenes_only_the_right_cell_wins(size, grid):
    x, y = bright_channels(36, size=size)
    scenes = grid_scenes(x, y, grid, generator(1, purpose="scenes"))
    follows = np.abs(scenes.x[np.arange(36), y])  # what a net that reads the class's channel looks at
    assert grid_accuracy(follows, scenes.cell, grid) == 1
    assert xai_accuracy(scenes.mask.astype(float), scenes.mask) == 1
    chance = pytest.approx(1 / grid**2)
    assert grid_accuracy(centre_blob(follows.shape), scenes.cell, grid) == chance
    assert grid_accuracy(cell_blobs(follows.shape, grid), scenes.cell, grid) == chance
    many = np.tile(scenes.cell, 100)
    noise = uniform_noise((3600, size, size), generator(2, purpose="noise"))
    assert grid_accuracy(noise, many, grid) == pytest.approx(1 / grid**2, abs=0.03)


def bright_channels(n: int, *, size: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of three classes: the channel of the class is bright, and picture i has the brightness 1 + i / n."""
    y = np.arange(n) % 3
    x = np.zeros((n, 3, size, size), np.float32)
    x[np.arange(n), y] = (1 + np.arange(n) / n)[:, None, None]
    return x, y


@pytest.mark.parametrize("grid", [2, 3])
def test_a_scene_holds_its_picture_once_among_others_of_other_classes(grid):
    x, y = bright_channels(30)
    scenes = grid_scenes(x, y, grid, generator(0, purpose="scenes"))
    assert (scenes.x.shape, scenes.x.dtype, len(scenes)) == (x.shape, np.float32, 30)
    edges = np.ceil(np.arange(grid + 1) * 28 / grid).astype(int)
    for i in range(30):
        found = []
        for r in range(grid):
            for c in range(grid):
                box = slice(edges[r], edges[r + 1]), slice(edges[c], edges[c + 1])
                cell = scenes.x[i][:, *box]
                np.testing.assert_allclose(cell, np.broadcast_to(cell[:, :1, :1], cell.shape), rtol=1e-6)
                label = int(cell[:, 0, 0].argmax())
                found.append((label, round((float(cell[label, 0, 0]) - 1) * 30)))
                assert (scenes.mask[i][box] == (r * grid + c == scenes.cell[i])).all()
        assert found[scenes.cell[i]] == (y[i], i)
        assert [label for label, _ in found].count(y[i]) == 1
        assert len(set(found)) == grid**2  # no distractor twice
    assert np.ptp(np.bincount(scenes.cell, minlength=grid**2)) <= 1
    again = grid_scenes(x, y, grid, generator(0, purpose="scenes"))
    assert (again.x == scenes.x).all() and (again.cell == scenes.cell).all()


def test_few_distractors_are_shown_more_than_once():
    x, y = bright_channels(2, size=16)
    scenes = grid_scenes(x, y, 3, generator(0, purpose="scenes"))
    assert [int((scenes.x[i, y[i]] > 0).sum()) for i in range(2)] == scenes.mask.sum((1, 2)).tolist()


def test_shrinking_is_the_mean_of_the_area():
    x = np.arange(16.0).reshape(1, 4, 4)
    assert shrink(x, 2, 2).tolist() == [[[2.5, 4.5], [10.5, 12.5]]]
    np.testing.assert_allclose(shrink(np.array([[[3.0, 6.0, 0.0]]]), 1, 2), [[[4.0, 2.0]]])
    assert shrink(x.astype(np.float32), 3, 3).dtype == np.float32
    y = generator(0, purpose="x").normal(size=(2, 3, 28, 28))
    np.testing.assert_allclose(shrink(y, 9, 10).mean((-1, -2)), y.mean((-1, -2)), atol=1e-12)


def test_the_mass_on_each_site_s_shortcut():
    sketches = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.1, 0.2], [0.0, 0.0, 2.0, 6.0]])
    tiles = np.array([patch_tile(p.corner, grid=2) for p in site_patches("abc").values()])
    assert tiles.tolist() == [0, 1, 2]
    np.testing.assert_allclose(spurious_mass(sketches, tiles), [0.7, 0.5, 0.25])
    np.testing.assert_allclose(spurious_mass(sketches[0], tiles), [0.7, 0.1, 0.1])
    assert spurious_gap(0.95, 0.7) == pytest.approx(0.25)


def test_what_does_not_fit_is_refused():
    heats, masks = drawn(0)
    cases = [
        (lambda: iou_ratio(heats, masks[:, 1:]), "mismatched-shapes"),
        (lambda: iou_ratio(heats[None], masks[None]), "mismatched-shapes"),
        (lambda: iou_ratio(heats * np.nan, masks), "not-finite"),
        (lambda: iou_ratio(heats, masks * 255), "mask-not-binary"),
        (lambda: iou_ratio(heats, masks, form="pixel"), "unknown-form"),
        (lambda: iou(heats, masks, q=0), "share-out-of-range"),
        (lambda: grid_accuracy(heats, np.zeros(4, int), 2), "mismatched-shapes"),
        (lambda: grid_accuracy(heats, np.full(5, 4), 2), "cell-out-of-range"),
        (lambda: grid_accuracy(heats, np.zeros(5, int), 7), "grid-too-fine"),
        (lambda: cell_blobs((6,), 2), "invalid-image-shape"),
        (lambda: spurious_mass(np.ones((2, 4)), np.array([0, 1, 2])), "mismatched-shapes"),
        (lambda: spurious_mass(np.ones((2, 4)), np.array([0, 4])), "tile-out-of-range"),
        (lambda: spurious_mass(np.zeros((1, 4)), np.array([0])), "bad-shares"),
        (lambda: grid_scenes(heats, np.zeros(5, int), 2, generator(0, purpose="s")), "mismatched-shapes"),
        (lambda: grid_scenes(heats[:, None], np.arange(5), 1, generator(0, purpose="s")), "grid-out-of-range"),
        (lambda: grid_scenes(heats[:, None], np.zeros(5), 2, generator(0, purpose="s")), "too-few-classes"),
    ]
    for call, code in cases:
        with refused(code):
            call()


@pytest.mark.parametrize("of", [iou_ratio, iou, xai_accuracy])
def test_no_heat_map_at_all_is_refused(of):
    with refused("no-values"):
        of(np.zeros((0, 4, 4)), np.zeros((0, 4, 4), bool))
