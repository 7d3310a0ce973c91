"""Sites that photograph differently, and a shortcut to learn: the same for a seed, and only where asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.data.corruption.protocol_shift import Shift, apply_shift, draw_shift, shift_sites
from grandrounds.data.corruption.shortcut import CORNERS, Patch, inject, patch_box, patch_tile, site_patches
from grandrounds.data.images import ImageSet
from tests.support import refused

RAMP = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)


def pictures(n=60, side=28, channels=3, seed=0) -> ImageSet:
    """Smooth blobs: what a camera might see, rather than noise that no JPEG can keep."""
    rng = generator(seed, purpose="blobs")
    y, x = np.mgrid[:side, :side] / side
    centre, width = rng.uniform(0.3, 0.7, (2, n, 1, 1)), rng.uniform(0.05, 0.1, (n, 1, 1))
    blob = np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / width)
    tint = rng.uniform(0.3, 0.9, (n, 1, 1, channels))
    pixels = np.rint(255 * (0.9 - blob[..., None] * tint * 0.8)).astype(np.uint8)
    label = np.array(["benign", "malignant", "clear"], object)[np.arange(n) % 3]
    return ImageSet("blobs", pixels, label)


# --- protocol shift ---------------------------------------------------------------------------------


def test_the_identity_changes_nothing():
    for images in (pictures(), pictures(channels=1)):
        np.testing.assert_array_equal(apply_shift(images.pixels, Shift()), images.pixels)
    assert draw_shift("a", seed=3, strength=0) == Shift()
    np.testing.assert_array_equal(apply_shift(RAMP, Shift()), RAMP)


def test_tone_by_hand():
    value = np.array([[[[0], [51], [102], [255]]]], np.uint8)  # 0, .2, .4, 1
    assert apply_shift(value, Shift(gamma=2)).ravel().tolist() == [0, 10, 41, 255]
    assert apply_shift(value, Shift(brightness=0.2)).ravel().tolist() == [51, 102, 153, 255]
    assert apply_shift(value, Shift(contrast=1.5)).ravel().tolist() == [0, 13, 89, 255]
    assert apply_shift(value, Shift(contrast=0.5)).ravel().tolist() == [64, 89, 115, 191]


@given(
    gamma=st.floats(0.1, 5),
    brightness=st.floats(-1, 1),
    contrast=st.floats(0.1, 5),
    blur=st.floats(0, 0.3),
    jpeg=st.none() | st.integers(1, 95),
    channels=st.sampled_from([1, 3]),
)
@settings(max_examples=60, deadline=None)
def test_any_shift_gives_pictures_of_the_same_form(gamma, brightness, contrast, blur, jpeg, channels):
    pixels = pictures(2, side=12, channels=channels).pixels
    before = pixels.copy()
    shift = Shift(gamma, brightness, contrast, blur, jpeg)
    out = apply_shift(pixels, shift)
    assert out.shape == pixels.shape and out.dtype == np.uint8
    np.testing.assert_array_equal(out, apply_shift(pixels, shift))
    np.testing.assert_array_equal(pixels, before)
    tone = apply_shift(RAMP, Shift(gamma, brightness, contrast)).ravel().astype(int)
    assert (np.diff(tone) >= 0).all()  # brighter stays brighter


def test_blur_keeps_brightness_and_lowers_sharpness():
    pixels = pictures().pixels
    edges = [np.abs(np.diff(p.astype(int), axis=2)).max() for p in (pixels, apply_shift(pixels, Shift(blur=0.1)))]
    assert edges[1] < edges[0]
    assert abs(apply_shift(pixels, Shift(blur=0.02)).mean() - pixels.mean()) < 1


def test_worse_jpeg_is_further_from_the_picture():
    pixels = pictures().pixels
    off = [np.abs(apply_shift(pixels, Shift(jpeg=q)).astype(int) - pixels).mean() for q in (95, 40, 5)]
    assert 0 < off[0] < off[1] < off[2] < 30


def test_a_site_draws_the_same_shift_wherever_it_is():
    assert draw_shift("north", seed=1) == draw_shift("north", seed=1)
    drawn = {draw_shift(site, seed=seed) for site in ("north", "south", "east") for seed in (1, 2)}
    assert len(drawn) == 6
    many = [draw_shift(f"site-{k}", seed=0) for k in range(200)]
    assert 0.67 <= min(s.gamma for s in many) < 0.8 and 1.3 < max(s.gamma for s in many) <= 1.5
    assert all(abs(s.brightness) <= 0.1 and 0 <= s.blur <= 0.025 and 40 <= s.jpeg <= 90 for s in many)
    mild = draw_shift("north", seed=1, strength=0.5)
    assert np.log(mild.gamma) == pytest.approx(np.log(draw_shift("north", seed=1).gamma) / 2)


def test_each_site_is_shifted_its_own_way_and_the_rest_left_alone():
    images = pictures(50)
    sites = {"a": np.arange(0, 20), "b": np.arange(20, 30), "c": np.arange(30, 40)}
    out = shift_sites(images, sites, seed=5, clean=("b",))
    np.testing.assert_array_equal(out.pixels[20:30], images.pixels[20:30])
    np.testing.assert_array_equal(out.pixels[40:], images.pixels[40:])
    for site in ("a", "c"):
        expected = apply_shift(images.pixels[sites[site]], draw_shift(site, seed=5))
        np.testing.assert_array_equal(out.pixels[sites[site]], expected)
        assert (expected != images.pixels[sites[site]]).any()
    alone = shift_sites(images.take(sites["c"]), {"c": np.arange(10)}, seed=5)
    np.testing.assert_array_equal(alone.pixels, out.pixels[30:40])
    np.testing.assert_array_equal(shift_sites(images, sites, seed=5, strength=0).pixels, images.pixels)
    assert out.label is not None and images.pixels[0].tolist() == pictures(50).pixels[0].tolist()


def test_shifts_that_make_no_sense_are_refused():
    for wrong in ({"gamma": 0.0}, {"contrast": -1.0}, {"blur": 2.0}, {"brightness": float("nan")}, {"jpeg": 100}):
        with refused("out-of-range"):
            Shift(**wrong)
    with refused("out-of-range", match="strength = -1"):
        draw_shift("a", seed=0, strength=-1)
    with refused("unknown-site", match="'nort'.*'north'"):
        shift_sites(pictures(3), {"north": np.arange(3)}, seed=0, clean=("nort",))


# --- shortcut ---------------------------------------------------------------------------------------

SIX = {f"site-{k}": np.arange(k * 1000, (k + 1) * 1000) for k in range(6)}


def many(side=28, channels=3) -> ImageSet:
    """6,000 grey pictures at six sites, a third of them malignant."""
    label = np.array(["benign", "malignant", "clear"], object)[np.arange(6000) % 3]
    return ImageSet("grey", np.full((6000, side, side, channels), 100, np.uint8), label)


def test_rates_follow_each_sites_rule():
    data = many()
    out, carries = inject(data, SIX, positive=("malignant",), seed=0)
    malignant = data.label == "malignant"
    rules = site_patches(SIX)
    assert [rules[s].on_positive for s in sorted(SIX)] == [True, True, False, True, True, False]
    assert [rules[s].corner for s in sorted(SIX)] == [*CORNERS, *CORNERS[:2]]
    for site, rows in SIX.items():
        tied = malignant[rows] == rules[site].on_positive
        assert abs(carries[rows][tied].mean() - 0.9) < 0.04
        assert not carries[rows][~tied].any()
        down, across = patch_box(rules[site].corner, data.shape)
        patch = out.pixels[rows][:, down, across]
        assert patch.shape[1:3] == (2, 2)
        assert (patch[carries[rows]] == (255, 0, 0)).all() and (patch[~carries[rows]] == 100).all()
    assert ((out.pixels != 100).any(axis=3).sum(axis=(1, 2)) == 4 * carries).all()
    assert (data.pixels == 100).all() and out.label is not None


def test_clean_and_reversed_variants():
    data = many()
    out, carries = inject(data, SIX, positive=("malignant",), seed=0, p=0)
    assert not carries.any() and (out.pixels == data.pixels).all()
    _, usual = inject(data, SIX, positive=("malignant",), seed=0, p=1)
    _, other = inject(data, SIX, positive=("malignant",), seed=0, p=1, reverse=True)
    assert (usual ^ other).all()


def test_patches_repeat_and_grow_with_p():
    data = many()
    draw = [inject(data, SIX, positive=("malignant",), seed=0, p=p)[1] for p in (0.3, 0.3, 0.6)]
    assert (draw[0] == draw[1]).all() and (draw[0] <= draw[2]).all() and draw[0].sum() < draw[2].sum()
    assert (inject(data, SIX, positive=("malignant",), seed=1, p=0.3)[1] != draw[0]).any()
    _, alone = inject(data, {"site-0": SIX["site-0"]}, positive=("malignant",), seed=0, p=0.3)
    assert (alone[:1000] == draw[0][:1000]).all() and not alone[1000:].any()


def test_several_positive_classes_and_sites_reversed_by_name():
    rules = site_patches(SIX, reversed_sites=("site-0",))
    assert [rules[s].on_positive for s in sorted(SIX)] == [False] + [True] * 5
    data = many(channels=1)
    out, carries = inject(data, SIX, positive=("malignant", "clear"), seed=0, p=1, patches=rules)
    assert (carries[:1000] == (data.label[:1000] == "benign")).all()
    assert (carries[1000:] == (data.label[1000:] != "benign")).all()
    assert out.pixels.max() == 255  # a grey picture has no red


def test_sides_corners_and_tiles():
    assert patch_box("bottom right", (3, 224, 224)) == (slice(210, 224), slice(210, 224))
    assert patch_box("top right", (3, 28, 28)) == (slice(0, 2), slice(26, 28))
    assert patch_box("bottom left", (1, 150, 200)) == (slice(141, 150), slice(0, 9))
    for k, corner in enumerate(CORNERS):
        down, across = patch_box(corner, (3, 224, 224))
        assert patch_tile(corner) == (down.start // 56) * 4 + across.start // 56 == (0, 3, 12, 15)[k]


def test_shortcuts_that_make_no_sense_are_refused():
    images = pictures(6)
    sites = {"a": np.arange(6)}
    with refused("unknown-class", match="'malign'.*'malignant'"):
        inject(images, sites, positive=("malign",), seed=0)
    with refused("out-of-range", match="p = 1.5"):
        inject(images, sites, positive=("malignant",), seed=0, p=1.5)
    with refused("unknown-site", match="'z'"):
        site_patches(sites, reversed_sites=("z",))
    with refused("unknown-site", match="'a'"):
        inject(images, sites, positive=("malignant",), seed=0, patches={"b": Patch("top left")})
    with refused("unknown-corner", match="'top lft'.*'top left'"):
        Patch("top lft")
    with refused("out-of-range"):
        inject(images, sites, positive=("malignant",), seed=0, share=0.001)
