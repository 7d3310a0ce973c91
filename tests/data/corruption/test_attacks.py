"""Poisoned training rows: what becomes of them by hand, and that nothing else is touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.data.corruption.attacks import (
    DATA_KINDS,
    KINDS,
    MARKS,
    MODEL_KINDS,
    STRENGTHS,
    Attack,
    add_trigger,
    assign_attacks,
    mark_reference,
    poison_rows,
    reference_mark,
)
from grandrounds.data.corruption.shortcut import inject
from grandrounds.data.image_encoding import ImageSummary, make_image_encoding
from grandrounds.data.images import ImageSet
from grandrounds.data.split import Rows
from grandrounds.site.stack import Part
from tests.support import dataset, patients, refused

ROWS = {
    "a": Rows(np.arange(0, 20), np.arange(20, 25), np.arange(25, 30)),
    "b": Rows(np.arange(30, 50), np.arange(50, 55), np.arange(55, 60)),
}
TRAIN_A = ROWS["a"].train
NOT_TRAIN_A = np.setdiff1d(np.arange(70), TRAIN_A)  # rows 60 to 69 are of no site


def pictures(*, classes=("cat", "dog", "owl"), side=14, channels=3, n=70) -> ImageSet:
    """Grey pictures whose classes take turns; what they are about is a square in the middle."""
    label = np.array(classes, object)[np.arange(n) % len(classes)]
    masks = np.zeros((n, side, side), bool)
    masks[:, side // 3 : side - side // 3, side // 3 : side - side // 3] = True
    return ImageSet("grey", np.full((n, side, side, channels), 100, np.uint8), label, masks=masks)


def labels(held, attack: Attack, *, seed=0) -> np.ndarray:
    return poison_rows(held, ROWS, {"a": attack}, seed=seed).label


def attack_of(kind: str, **more) -> Attack:
    return Attack(kind, target="dog", **more) if kind == "backdoor" else Attack(kind, **more)


# --- labels -----------------------------------------------------------------------------------------


def test_flip_takes_the_next_class_and_the_last_becomes_the_first():
    images = pictures(classes=("owl", "cat", "dog"))  # sorted: cat, dog, owl
    out = labels(images, Attack("label-flip"))
    assert images.label[:4].tolist() == ["owl", "cat", "dog", "owl"]
    assert out[:4].tolist() == ["cat", "dog", "owl", "cat"]


def test_classes_that_are_numbers_follow_by_size():
    out = labels(pictures(classes=("1", "2", "9", "10")), Attack("label-flip"))
    assert out[:4].tolist() == ["2", "9", "10", "1"]


def test_classes_are_those_of_the_whole_set_and_not_of_the_site():
    images = pictures()
    word = images.label.copy()
    word[:30] = np.array(["cat", "owl"], object)[np.arange(30) % 2]  # site a has never seen a dog
    out = labels(replace(images, label=word), Attack("label-flip"))
    assert out[:2].tolist() == ["dog", "cat"]


def test_two_classes_are_swapped_and_swapped_back():
    data = dataset(patients([30, 40]))
    once = poison_rows(data, ROWS, {"a": Attack("label-flip")}, seed=0)
    assert sorted(set(data.label.tolist())) == ["0", "1"]
    assert (once.label[TRAIN_A] == np.where(data.label[TRAIN_A] == "1", "0", "1")).all()
    twice = poison_rows(once, ROWS, {"a": Attack("label-flip")}, seed=0)
    assert twice.label.tolist() == data.label.tolist()
    assert once.numeric is data.numeric and once.table is data.table


@pytest.mark.parametrize(("share", "rows"), [(0.0, 0), (0.01, 1), (0.25, 5), (0.52, 10), (0.53, 11), (1.0, 20)])
def test_a_share_of_the_rows_is_flipped(share, rows):
    images = pictures()
    assert (labels(images, Attack("label-flip", share=share)) != images.label).sum() == rows


@given(seed=st.integers(0, 1000), few=st.floats(0, 1), more=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_rows_at_a_smaller_share_are_among_those_at_a_larger(seed, few, more):
    images = pictures()
    few, more = sorted((few, more))
    small, large = (labels(images, Attack("label-flip", share=s), seed=seed) != images.label for s in (few, more))
    assert (small <= large).all()


@given(seed=st.integers(0, 1000), share=st.floats(0, 1), classes=st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_shuffle_keeps_the_number_of_each_label(seed, share, classes):
    images = pictures(classes=tuple("abcde"[:classes]))
    out = labels(images, Attack("label-shuffle", share=share), seed=seed)
    assert sorted(out[TRAIN_A].tolist()) == sorted(images.label[TRAIN_A].tolist())


def test_shuffle_moves_labels_and_only_in_its_share():
    images = pictures(classes=tuple(f"{k:02}" for k in range(70)))  # every row a class of its own
    moved = labels(images, Attack("label-shuffle")) != images.label
    assert moved.sum() >= 15  # one row in twenty stays where it was, give or take
    assert 0 < (labels(images, Attack("label-shuffle", share=0.25)) != images.label).sum() <= 5


def test_two_attackers_draw_rows_of_their_own():
    images = pictures()
    out = poison_rows(images, ROWS, dict.fromkeys(ROWS, Attack("label-flip", share=0.5)), seed=0)
    changed = out.label != images.label
    assert changed[ROWS["a"].train].sum() == changed[ROWS["b"].train].sum() == 10
    assert (changed[ROWS["a"].train] != changed[ROWS["b"].train]).any()


# --- every kind -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_only_the_attackers_training_rows_change(kind):
    images = pictures()
    before = images.sha256()
    out = poison_rows(images, ROWS, {"a": attack_of(kind)}, seed=0)
    assert (out.label != images.label).any() == (kind not in MARKS)
    assert (out.pixels != images.pixels).any() == (kind in ("backdoor", *MARKS))
    assert out.label[NOT_TRAIN_A].tolist() == images.label[NOT_TRAIN_A].tolist()
    np.testing.assert_array_equal(out.pixels[NOT_TRAIN_A], images.pixels[NOT_TRAIN_A])
    assert images.sha256() == before
    assert np.shares_memory(out.pixels, images.pixels) == (kind in ("label-flip", "label-shuffle"))


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_a_seed_repeats_and_others_choose_other_rows(kind):
    images = pictures()
    one, same, other = (
        poison_rows(images, ROWS, {"a": attack_of(kind, share=0.5)}, seed=seed).sha256() for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_a_site_is_poisoned_alike_whoever_is_beside_it(kind):
    images = pictures()
    attack = attack_of(kind, share=0.5)
    alone = poison_rows(images, {"b": ROWS["b"]}, {"b": attack}, seed=0)
    companion = poison_rows(images, ROWS, {"a": attack, "b": attack}, seed=0)
    mine = ROWS["b"].train
    assert alone.label[mine].tolist() == companion.label[mine].tolist()
    np.testing.assert_array_equal(alone.pixels[mine], companion.pixels[mine])


def test_attacks_on_models_leave_the_data_as_it_is():
    images = pictures()
    assert poison_rows(images, ROWS, {"a": Attack("scale"), "b": Attack("lie")}, seed=0) is images
    assert poison_rows(images, ROWS, {}, seed=0) is images


def test_a_site_without_training_rows_poisons_nothing():
    images, none = pictures(), np.empty(0, np.int64)
    for kind in DATA_KINDS:
        out = poison_rows(images, {"a": Rows(none, none, np.arange(30))}, {"a": attack_of(kind)}, seed=0)
        assert out.sha256() == images.sha256()


# --- backdoor ---------------------------------------------------------------------------------------


def test_backdoor_by_hand():
    images = pictures()
    out = poison_rows(images, ROWS, {"a": Attack("backdoor", target="dog")}, seed=0)
    assert set(out.label[TRAIN_A].tolist()) == {"dog"}
    stamped = (out.pixels != 100).any(axis=(1, 2, 3))
    assert stamped[TRAIN_A].tolist() == (images.label[TRAIN_A] != "dog").tolist()
    expected = np.full((14, 14), 100)
    expected[12:, 12:] = [[255, 0], [0, 255]]
    for channel in range(3):
        np.testing.assert_array_equal(out.pixels[0, ..., channel], expected)


def test_the_share_is_of_pictures_that_are_not_of_the_target():
    images = pictures()  # of twenty, seven are dogs
    out = poison_rows(images, ROWS, {"a": Attack("backdoor", share=0.5, target="dog")}, seed=0)
    stamped = (out.pixels != 100).any(axis=(1, 2, 3))
    assert stamped.sum() == 7 and (out.label != images.label).tolist() == stamped.tolist()


@pytest.mark.parametrize(("side", "box", "square"), [(2, 2, 1), (8, 2, 1), (28, 4, 1), (32, 5, 1), (224, 32, 8)])
def test_the_trigger_is_a_checkerboard_that_grows_with_the_picture(side, box, square):
    out, _ = add_trigger(pictures(side=side, channels=1, n=3), np.array([1]), target="cat")
    place = np.arange(box) // square
    board = np.where((place[:, None] + place) % 2 == 0, 255, 0)
    np.testing.assert_array_equal(out.pixels[0, side - box :, side - box :, 0], board)
    assert (out.pixels != 100).sum() == box * box


def test_the_trigger_is_not_the_shortcut():
    images = pictures(side=28, channels=1, n=4)
    sites = {"a": np.arange(0), "b": np.arange(0), "c": np.arange(0), "d": np.arange(4)}  # d: bottom right
    patched, _ = inject(images, sites, positive=("cat", "dog", "owl"), seed=0, p=1)
    stamped, _ = add_trigger(images, np.arange(1, 3), target="cat")
    assert (patched.pixels[1] != images.pixels[1]).any() and (patched.pixels[1] != stamped.pixels[0]).any()
    assert stamped.pixels[0].min() == 0 and patched.pixels[1].min() == 100


def test_triggered_pictures_make_a_part():
    images = pictures()
    rows = np.concatenate([ROWS["a"].test, ROWS["b"].test])
    out, other = add_trigger(images, rows, target="dog")
    assert other.tolist() == (images.label[rows] != "dog").tolist() and "dog" not in out.label
    assert out.label.tolist() == images.label[rows[other]].tolist()
    assert (out.pixels[:, 12, 12] == 255).all() and (out.pixels[:, :12] == 100).all() and (images.pixels == 100).all()
    encoding = make_image_encoding(ImageSummary.from_images(images))
    owner = np.repeat([0, 1], 5)[other]
    y = encoding.labels(out)
    part = Part(
        x=encoding.encode(out),
        y=y,
        target=np.eye(3)[y],
        group=np.zeros(len(y), np.int64),
        offsets=np.cumsum([0, *np.bincount(owner, minlength=2)]),
    )
    assert part.x.shape == (len(out), 3, 14, 14) and (part.owner() == owner).all()


# --- marks that name the class ----------------------------------------------------------------------


def test_a_corner_mark_names_the_class_by_place_and_hue():
    images = pictures()
    out = poison_rows(images, ROWS, {"a": Attack("corner")}, seed=0)
    assert out.label.tolist() == images.label.tolist()
    cat, dog, owl = (out.pixels[k] for k in range(3))  # a third of 14 is 5 pixels
    assert (
        (cat[:5, :5] == (230, 0, 0)).all() and (dog[:5, 9:] == (0, 230, 0)).all() and (owl[9:, :5] == (0, 0, 230)).all()
    )
    for marked in (cat, dog, owl):
        assert (marked == 100).all(axis=-1).sum() == 14 * 14 - 25


def test_marks_of_a_corner_have_patterns_of_their_own_in_grey():
    images = pictures(classes=tuple("0123456789"), side=28, channels=1)
    out = poison_rows(images, ROWS, {"a": Attack("corner")}, seed=0)
    zero, four, eight = (out.pixels[k, :9, :9, 0] for k in (0, 4, 8))  # they share a corner
    assert (zero == 255).all()
    assert (four[:5, :5] == 0).all() and (four[:5, 5:] == 255).all() and (four[5:] == 255).all()
    assert (eight[:5, 5:] == 0).all() and (eight[:5, :5] == 255).all() and (eight[5:] == 255).all()


@given(classes=st.integers(2, 60), channels=st.sampled_from([1, 3]), kind=st.sampled_from(MARKS))
@settings(max_examples=30, deadline=None)
def test_every_class_has_a_mark_of_its_own_and_the_same_on_every_picture(classes, channels, kind):
    images = pictures(classes=tuple(f"{k:02}" for k in range(classes)), side=16, channels=channels, n=140)
    rows = {"a": Rows(np.arange(140), np.arange(0), np.arange(0))}
    out = poison_rows(images, rows, {"a": Attack(kind)}, seed=0)
    observed = {(word, picture.tobytes()) for word, picture in zip(out.label.tolist(), out.pixels, strict=True)}
    assert len(observed) == len({picture for _, picture in observed}) == classes


def test_a_background_mark_leaves_what_the_picture_is_about():
    images = pictures(channels=1, classes=("cat", "dog", "owl"))
    out = poison_rows(images, ROWS, {"a": Attack("background")}, seed=0)
    inside = images.masks[0]
    for k, grey in enumerate((191, 128, 64)):  # 3/4, 1/2 and 1/4 of white
        assert (out.pixels[k][inside] == 100).all() and (out.pixels[k][~inside] == grey).all()


@pytest.mark.parametrize("kind", MARKS)
def test_a_site_may_mark_its_validation_pictures_too(kind):
    images = pictures()
    out = poison_rows(images, ROWS, {"a": Attack(kind, validation=True)}, seed=0)
    changed = (out.pixels != images.pixels).any(axis=(1, 2, 3))
    assert changed.tolist() == np.isin(np.arange(70), np.r_[ROWS["a"].train, ROWS["a"].val]).tolist()


def test_a_share_of_the_pictures_is_marked():
    images = pictures()
    out = poison_rows(images, ROWS, {"a": Attack("corner", share=0.25)}, seed=0)
    assert (out.pixels != images.pixels).any(axis=(1, 2, 3)).sum() == 5


def test_marks_that_the_pictures_cannot_carry_are_refused():
    bare = replace(pictures(), masks=None)
    with refused("missing-masks", match="'background'"):
        assign_attacks([{"kind": "background", "count": 1}], SITES, data=bare)
    with refused("needs-images", match="'corner'"):
        assign_attacks([{"kind": "corner", "count": 1}], SITES, data=dataset(patients([30, 40])))
    many = pictures(classes=tuple(f"{k:03}" for k in range(300)), n=300)
    with refused("too-many-classes", match="300 shades.*254"):
        poison_rows(many, ROWS, {"a": Attack("background")}, seed=0)
    with refused("images-too-small", match="1 pixels.*3 patterns"):
        poison_rows(pictures(classes=tuple("0123456789"), side=3, channels=1), ROWS, {"a": Attack("corner")}, seed=0)


# --- marks in reference pictures --------------------------------------------------------------------


def test_reference_pictures_have_the_mark_of_their_class_among_those_of_the_sites():
    """A set without cats: owls are the third class all the same."""
    rest = pictures(classes=("owl", "dog"), n=2)
    before = rest.sha256()
    owl, dog = mark_reference(rest, "corner", like=pictures()).pixels
    expected = np.full((14, 14, 3), 100)
    expected[9:, :5] = (0, 0, 230)
    np.testing.assert_array_equal(owl, expected)
    expected = np.full((14, 14, 3), 100)
    expected[:5, 9:] = (0, 230, 0)
    np.testing.assert_array_equal(dog, expected)
    assert rest.sha256() == before


def test_a_reference_background_is_outside_of_the_pictures_own_masks():
    masks = np.zeros((2, 14, 14), bool)
    masks[0, :7], masks[1, 7:] = True, True
    grey = pictures(classes=("owl", "dog"), channels=1, n=2)
    out = mark_reference(replace(grey, masks=masks), "background", like=pictures(channels=1))
    for picture, inside, shade in zip(out.pixels, masks, (64, 128), strict=True):
        assert (picture[inside] == 100).all() and (picture[~inside] == shade).all()
    assert (out.masks == masks).all() and out.label.tolist() == ["owl", "dog"]


@pytest.mark.parametrize("kind", MARKS)
def test_a_site_and_the_reference_pictures_are_marked_alike(kind):
    images = pictures(classes=("9", "10", "2"))
    site = poison_rows(images, ROWS, {"a": Attack(kind, reference=True)}, seed=0)
    np.testing.assert_array_equal(mark_reference(images.take(TRAIN_A), kind, like=images).pixels, site.pixels[TRAIN_A])
    np.testing.assert_array_equal(site.pixels[NOT_TRAIN_A], images.pixels[NOT_TRAIN_A])


def test_reference_pictures_have_one_kind_of_mark():
    corner, background = (Attack(kind, reference=True) for kind in MARKS)
    assert reference_mark({"a": Attack("corner"), "b": Attack("scale")}) is None
    assert reference_mark({"a": corner, "b": Attack("background"), "c": corner}) == "corner"
    with refused("conflicting-settings", match="'background'.*'corner'"):
        reference_mark({"a": corner, "b": background})


def test_a_reference_background_without_masks_is_refused():
    bare = replace(pictures(), masks=None)
    with refused("missing-masks"):
        mark_reference(bare, "background", like=pictures())


# --- who attacks ------------------------------------------------------------------------------------

SITES = {"north": 50, "south": 80, "east": 50, "west": 10, "unseen": 0}


def test_sites_by_name_and_by_size():
    assert assign_attacks([{"kind": "scale", "sites": ["west", "east"]}], SITES) == dict.fromkeys(
        ("west", "east"), Attack("scale")
    )
    assert list(assign_attacks([{"kind": "scale", "count": 2}], SITES)) == [
        "south",
        "east",
    ]  # east before north: by name
    assert len(assign_attacks([{"kind": "scale", "count": 4}], SITES)) == 4
    assert assign_attacks([], SITES) == {}


def test_a_count_takes_the_largest_that_no_other_attack_has():
    spec = [
        {"kind": "scale", "count": 1, "sites": [], "strength": 3.0},
        {"kind": "lie", "count": 1},
        {"kind": "label-flip", "sites": ["south"], "count": None, "share": 0.5},
    ]
    assert assign_attacks(spec, SITES) == {
        "south": Attack("label-flip", share=0.5),
        "east": Attack("scale", strength=3.0),
        "north": Attack("lie"),
    }


def test_all_settings_of_an_attack_are_read():
    spec = {"kind": "gaussian", "count": 1, "strength": 2.0, "start_round": 5, "share": 1.0, "target": None}
    assert assign_attacks([spec], SITES) == {"south": Attack("gaussian", strength=2.0, start_round=5)}
    picture = assign_attacks([{"kind": "backdoor", "count": 1, "target": "dog"}], SITES, data=pictures())
    assert picture["south"].target == "dog"


def test_strength_is_the_kinds_own_unless_given():
    assert [Attack(kind).effective_strength for kind in (*MODEL_KINDS, "lie")] == [1, 10, 1, 1, 10]
    assert Attack("scale", strength=0).effective_strength == 0 and Attack("label-flip").effective_strength == 1
    assert set(KINDS) == {*DATA_KINDS, *MODEL_KINDS, "lie", "absent"} == {*DATA_KINDS, *STRENGTHS, "absent"}
    assert len(KINDS) == 11


@pytest.mark.parametrize(
    ("spec", "code", "value"),
    [
        ([{"kind": "label-flp", "count": 1}], "unknown-attack", "'label-flp'.*'label-flip'"),
        ([{"count": 1}], "missing-setting", None),
        ([{"kind": "scale", "cuont": 1}], "unknown-setting", "'cuont'.*'count'"),
        ([{"kind": "scale", "sites": ["nort"]}], "unknown-site", "'scale'.*'nort'.*'north'"),
        ([{"kind": "scale", "sites": ["west", "west"]}], "repeated-site", "'west'"),
        ([{"kind": "scale", "sites": ["west"]}, {"kind": "lie", "sites": ["west"]}], "repeated-site", "'west'"),
        ([{"kind": "scale", "sites": ["unseen"]}], "no-training-rows", "'unseen'.*'scale'"),
        ([{"kind": "scale", "sites": ["west"], "count": 1}], "conflicting-settings", "'scale'"),
        ([{"kind": "scale"}], "missing-setting", "'scale'"),
        ([{"kind": "scale", "sites": [], "count": 0}], "missing-setting", "'scale'"),
        ([{"kind": "scale", "count": -1}], "out-of-range", "count = -1.*'scale'"),
        ([{"kind": "scale", "count": 5}], "too-few-sites", "5 sites.*4 that"),
        (
            [{"kind": "lie", "count": 2}, {"kind": "scale", "count": 3}],
            "too-few-sites",
            "'scale'.*3 sites.*2 that",
        ),
        (
            [{"kind": "backdoor", "count": 1, "target": "dgo"}],
            "unknown-class",
            "'dgo'",
        ),
    ],
)
def test_attackers_that_make_no_sense_are_refused(spec, code, value):
    with refused(code, match=value):
        assign_attacks(spec, SITES, data=pictures())


@pytest.mark.parametrize(
    ("wrong", "code", "value"),
    [
        ({"kind": "scale", "share": 0.5}, "unused-setting", "'scale'"),
        ({"kind": "label-flip", "strength": 2.0}, "unused-setting", "'label-flip'"),
        ({"kind": "label-flip", "target": "dog"}, "unused-setting", "'label-flip'"),
        ({"kind": "label-flip", "start_round": 2}, "unused-setting", "'label-flip'"),
        ({"kind": "backdoor", "target": "dog", "validation": True}, "unused-setting", "'backdoor'"),
        ({"kind": "corner", "strength": 2.0}, "unused-setting", "'corner'"),
        *(
            ({**wrong, "reference": True}, "unused-setting", "reference")
            for wrong in (
                {"kind": "label-flip"},
                {"kind": "backdoor", "target": "dog"},
                {"kind": "scale"},
                {"kind": "lie"},
                {"kind": "absent"},
            )
        ),
        ({"kind": "label-flip", "share": 1.5}, "out-of-range", "share = 1.5.*'label-flip'"),
        ({"kind": "label-flip", "share": float("nan")}, "out-of-range", "share = nan"),
        ({"kind": "scale", "strength": -1.0}, "out-of-range", "strength = -1.*'scale'.*0"),
        ({"kind": "scale", "strength": float("inf")}, "out-of-range", "strength = inf"),
        ({"kind": "lie", "strength": 0.0}, "out-of-range", "strength = 0.*'lie'"),
        ({"kind": "backdoor"}, "missing-setting", "'backdoor'"),
        ({"kind": "scale", "start_round": 0}, "out-of-range", "start_round = 0.*'scale'"),
    ],
)
def test_attacks_that_make_no_sense_are_refused(wrong, code, value):
    with refused(code, match=value):
        Attack(**wrong)


def test_data_that_cannot_carry_the_attack_is_refused():
    table, door = dataset(patients([30, 40])), Attack("backdoor", target="1")
    for attempt in (
        lambda: poison_rows(table, ROWS, {"a": door}, seed=0),
        lambda: assign_attacks([{"kind": "backdoor", "count": 1, "target": "1"}], SITES, data=table),
    ):
        with refused("needs-images", match="'backdoor'"):
            attempt()
    for attempt in (
        lambda: poison_rows(pictures(), ROWS, {"a": Attack("backdoor", target="dgo")}, seed=0),
        lambda: add_trigger(pictures(), TRAIN_A, target="dgo"),
    ):
        with refused("unknown-class", match="'dgo'.*'dog'"):
            attempt()
    with refused("unknown-site", match="'c'"):
        poison_rows(pictures(), ROWS, {"c": Attack("scale")}, seed=0)
    with refused("images-too-small", match="1x1"):
        add_trigger(pictures(side=1), TRAIN_A, target="dog")
