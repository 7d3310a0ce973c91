"""Pictures prepared alike: what sites say together is what the pooled pixels would say."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.data.image_encoding import ImageEncoding, ImageSummary, make_image_encoding
from grandrounds.data.images import ImageSet
from grandrounds.protocol.messages import Answers
from tests.support import refused


def pictures(n=12, shape=(6, 5, 3), *, seed=0, classes=("benign", "malignant"), **parts) -> ImageSet:
    rng = generator(seed, purpose="pictures")
    label = np.array(classes, object)[np.arange(n) % len(classes)]
    return ImageSet("made up", rng.integers(0, 256, (n, *shape), dtype=np.uint8), label, **parts)


def merged(held, cuts=(), *, groups=None) -> ImageSummary:
    """The sites' summaries as the server gets them: payloads, gathered into columns and taken apart again."""
    parts = np.split(np.arange(len(held)), sorted(cuts))
    payloads = [
        ImageSummary.from_images(held.take(rows), groups=[] if groups is None else groups[rows].tolist()).to_payload()
        for rows in parts
        if len(rows)
    ]
    answers = Answers.from_rows((f"site-{k}", payload) for k, payload in enumerate(payloads))
    assert all(values["kind"] == "image" for _, values in answers)
    return ImageSummary.merge([ImageSummary.from_payload(values) for _, values in answers])


@given(
    n=st.integers(1, 20),
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    channels=st.sampled_from([1, 3]),
    low=st.integers(0, 255),
    seed=st.integers(0, 9),
    cuts=st.lists(st.integers(1, 19), max_size=4, unique=True),
)
@settings(max_examples=150, deadline=None)
def test_normalisation_from_summed_statistics_is_that_of_the_pooled_pixels(n, size, channels, low, seed, cuts):
    rng = generator(seed, purpose="pixels")
    pixels = rng.integers(low, min(255, low + rng.integers(1, 256)) + 1, (n, *size, channels), dtype=np.uint8)
    images = ImageSet("drawn", pixels, np.array([str(i % 2) for i in range(n)], object))
    encoding = make_image_encoding(merged(images, [c for c in cuts if c < n]))
    pooled = pixels.reshape(-1, channels) / 255
    np.testing.assert_allclose(encoding.mean, pooled.mean(axis=0), rtol=1e-12)
    exact = (pixels.reshape(-1, channels).astype(np.int64) - pooled.mean(axis=0) * 255).std(axis=0) / 255
    flat = pixels.reshape(-1, channels).min(axis=0) == pixels.reshape(-1, channels).max(axis=0)
    np.testing.assert_allclose(np.array(encoding.std)[~flat], exact[~flat], rtol=1e-9)
    assert (np.array(encoding.std)[flat] == 1).all()
    x = encoding.encode(images, np.float64)
    np.testing.assert_allclose(x.mean(axis=(0, 2, 3)), 0, atol=1e-9)
    np.testing.assert_allclose(x.std(axis=(0, 2, 3))[~flat], 1, rtol=1e-9)
    np.testing.assert_array_equal(encoding.decode(x), pixels)


def test_any_grouping_gives_the_same_bits():
    images = pictures(30)
    groups = np.array(["f", "m", "m"] * 10, object)
    one = merged(images, groups=groups)
    for cuts in ([10], [3, 4, 29], range(1, 30)):
        many = merged(images, cuts, groups=groups)
        assert make_image_encoding(many) == make_image_encoding(one)
        assert many.groups == {"f": 10, "m": 20} and many.classes == {"benign": 15, "malignant": 15}


def test_blocks_do_not_change_the_sums():
    images = pictures(50, (200, 200, 1))
    summary = ImageSummary.from_images(images)
    wide = images.pixels.astype(np.int64)
    assert summary.rows == 50 and summary.pixels == 50 * 200 * 200
    assert summary.sums.tolist() == [wide.sum()] and summary.squares.tolist() == [(wide**2).sum()]
    encoding = make_image_encoding(summary)
    expected = (images.pixels[..., 0] / 255 - encoding.mean[0]) / encoding.std[0]
    np.testing.assert_allclose(encoding.encode(images)[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_inputs_are_channels_first_contiguous_and_of_the_type_asked_for():
    images = pictures()
    encoding = ImageEncoding((0.5, 0.25, 0.0), (0.5, 1.0, 2.0), (3, 6, 5), ("benign", "malignant"), (6, 6))
    x = encoding.encode(images)
    assert x.shape == (12, 3, 6, 5) and x.dtype == np.float32 and x.flags.c_contiguous
    assert encoding.encode(images, np.float64).dtype == np.float64
    r, g, b = images.pixels[4, 2, 3] / 255
    np.testing.assert_allclose(x[4, :, 2, 3], [(r - 0.5) / 0.5, g - 0.25, b / 2], rtol=1e-6)
    assert encoding.inputs == (3, 6, 5) and encoding.features == ()
    np.testing.assert_array_equal(encoding.decode(x), images.pixels)
    assert encoding.decode(np.full((1, 3, 1, 1), 9.0)).tolist() == [[[[255, 255, 255]]]]


def test_labels_and_groups_become_numbers():
    images = pictures(classes=("malignant", "benign"))
    total = merged(images, groups=np.array(["f", "m"] * 6, object))
    assert make_image_encoding(total).classes == ("benign", "malignant")
    encoding = make_image_encoding(total, positive="benign")
    assert encoding.classes == ("malignant", "benign") and encoding.class_counts == (6, 6)
    assert encoding.labels(images).tolist() == [0, 1] * 6
    assert encoding.group_numbers(["m", "f", "other"]).tolist() == [1, 0, 2]
    with refused("untrained-class", match="'unclear'"):
        encoding.labels(pictures(classes=("unclear", "benign")))
    with refused("unknown-class", match="data.positive.*'cancer'"):
        make_image_encoding(total, positive="cancer")


def test_an_encoding_survives_json():
    encoding = make_image_encoding(merged(pictures(), groups=np.array(["f", "m"] * 6, object)))
    reported = json.loads(json.dumps(encoding.to_dict()))
    assert reported["kind"] == "image"
    assert ImageEncoding.from_dict(reported) == encoding


def test_pictures_of_different_sizes_are_refused():
    small, large = ImageSummary.from_images(pictures()), ImageSummary.from_images(pictures(shape=(8, 8, 1)))
    with refused("image-size-mismatch", match="6x5.*3 channels.*2 sites.*8x8.*1 channel.*1 site"):
        ImageSummary.merge([small, large, small])
    with refused("image-size-mismatch", match="6x5.*3 channels.*28x28.*3 channels"):
        make_image_encoding(small, shape=(3, 28, 28))
    encoding = make_image_encoding(small, shape=(3, 6, 5))
    with refused("image-size-mismatch", match="8x8.*1 channel.*6x5"):
        encoding.encode(pictures(shape=(8, 8, 1)))


def test_notes_count_black_pictures_and_masks_without_an_inside():
    pixels = np.array(pictures().pixels)
    pixels[[2, 5]] = 0
    masks = pixels[..., 0] > 128
    masks[7] = True
    images = ImageSet("made up", pixels, pictures().label, masks=masks)
    encoding = make_image_encoding(merged(images))
    assert encoding.notes(images) == [
        "2 of 12 images are black",
        "2 of 12 truth masks are empty (image 2, 5)",
        "1 of 12 truth masks is full (image 7)",
    ]
    assert encoding.notes(pictures()) == []
    assert ImageSummary.from_images(images).leak_warnings([]) == []
