"""Truth masks: derived from strokes, read from files, and checked before anything is scored by them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images import STROKE, mask_area, mask_notes, read_masks, stroke_masks, usable_masks
from tests.support import refused


def test_strokes_are_the_bright_pixels():
    pixels = np.array([[[[0], [76]], [[77], [255]]]], np.uint8)  # 0.3 of 255 is 76.5
    assert stroke_masks(pixels).tolist() == [[[False, False], [True, True]]]
    assert stroke_masks(pixels, threshold=1).sum() == 1
    colour = np.zeros((1, 1, 2, 3), np.uint8)
    colour[0, 0, 1, 2] = 200
    assert stroke_masks(colour).tolist() == [[[False, True]]]
    for wrong in (0, 1.1):
        with refused("out-of-range"):
            stroke_masks(pixels, threshold=wrong)


def test_area_and_masks_that_cannot_be_scored():
    masks = np.zeros((4, 2, 4), bool)
    masks[1, 0, 0] = True
    masks[2] = True
    assert mask_area(masks).tolist() == [0, 1 / 8, 1, 0]
    assert usable_masks(masks).tolist() == [False, True, False, False]
    assert mask_notes(masks) == [
        "2 of 4 truth masks are empty (image 0, 3)",
        "1 of 4 truth masks is full (image 2)",
    ]
    assert mask_notes(masks[1:2]) == []
    assert mask_notes(np.zeros((12, 2, 2), bool)) == [
        "12 of 12 truth masks are empty (image 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)"
    ]


def test_half_a_pixel_inside_is_inside(tmp_path):
    mask = np.zeros((4, 8), bool)
    mask[:, :3] = True
    mask[0, 4] = True
    Image.fromarray(mask).save(tmp_path / "a_segmentation.png")
    read = read_masks(tmp_path, ["a"], sizes=[(4, 8)], resize=(2, 4))
    assert read.tolist() == [[[True, True, False, False], [True, True, False, False]]]


def test_a_mask_of_another_size_than_its_picture_is_refused(tmp_path):
    Image.fromarray(np.zeros((4, 8), bool)).save(tmp_path / "a.png")
    with refused("mask-size-mismatch", match="a.png.*4x8.*'a'.*8x4"):
        read_masks(tmp_path, ["a"], sizes=[(8, 4)])


def test_pictures_without_a_mask_are_counted(tmp_path):
    Image.fromarray(np.zeros((4, 8), bool)).save(tmp_path / "lesion-1.png")
    with refused("missing-masks", match="2 of 3.*'lesion-2'.*'lesion-1'"):
        read_masks(tmp_path, ["lesion-1", "lesion-2", "lesion-3"], sizes=[(4, 8)] * 3)


@pytest.mark.data("mnist", "xfed_masks")
def test_strokes_agree_best_with_the_drawn_masks_where_we_cut(xfed, mnist_test):
    drawn, digits = xfed.masks[:100], mnist_test.pixels[:100]

    def agreement(threshold):
        derived = stroke_masks(digits, threshold=threshold)
        return ((drawn & derived).sum(axis=(1, 2)) / (drawn | derived).sum(axis=(1, 2))).mean()

    result = {t: agreement(t) for t in (0.05, 0.1, 0.2, STROKE, 0.5)}
    assert max(result, key=result.get) == STROKE and result[STROKE] == pytest.approx(0.822, abs=0.001)


@pytest.fixture
def xfed():
    from grandrounds.data.sets.images import xfed_masks

    return xfed_masks("mnist")


@pytest.fixture
def mnist_test():
    from grandrounds.data.sets.images import mnist

    return mnist("test")
