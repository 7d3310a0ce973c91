"""Every known picture set loads with the counts its publisher states, and its known faults are mended."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from grandrounds.data.image_encoding import ImageSummary, make_image_encoding
from grandrounds.data.images import mask_area, usable_masks
from grandrounds.data.partition import partition_by_column
from grandrounds.data.sets import images as pictures
from grandrounds.data.sets.catalog import Entry, file_status, find_entry
from grandrounds.data.sets.images import IMAGE_SETS, SCORING_SETS
from grandrounds.data.store import locate_file
from tests.support import refused

_SETS = {}
MNIST, CIFAR, HAM, XFED = (pytest.mark.data(folder) for folder in ("mnist", "cifar10", "ham10000", "xfed_masks"))


def needs(name):
    """A set of pictures, marked with the folders of its files."""
    files = (IMAGE_SETS | SCORING_SETS)[name]["files"]
    return pytest.param(name, marks=pytest.mark.data(*{file.path.partition("/")[0] for file in files}))


@pytest.fixture
def held():
    """Loads a set once for this file."""

    def of(name):
        if name == "cifar-10-full" and file_status(find_entry(name)) == "not here":
            pytest.skip("all 60,000 images are not on this machine (rounds data get cifar-10-full)")
        if name not in _SETS:
            _SETS[name] = (IMAGE_SETS | SCORING_SETS)[name]["load"]()
        return _SETS[name]

    return of


@pytest.mark.parametrize("name", [needs(name) for name in IMAGE_SETS | SCORING_SETS])
def test_facts_describe_their_set(name, held):
    facts = (IMAGE_SETS | SCORING_SETS)[name]
    one = Entry(**facts)
    assert one.name == name and one.licence and one.source_url.startswith("http")
    result = held(name)
    assert result.name == name and len(result) == one.rows
    assert (one.site is None) == (result.site is None) and (one.patient is None) == (result.patient is None)
    if name in IMAGE_SETS:
        assert (one.site is None) == bool(one.partition)
    for column in (one.site, one.patient, one.subgroup):
        assert column is None or column in result.columns
    assert all(locate_file(file).stat().st_size == file.bytes for file in one.files)


def test_licences_that_restrict_use_are_said():
    assert "NC" in IMAGE_SETS["ham10000"]["licence"] and "NC" in IMAGE_SETS["ham10000-malignant"]["licence"]
    assert all("none stated" in facts["licence"] for facts in SCORING_SETS.values() if facts["files"])


@MNIST
def test_mnist(held):
    result = held("mnist")
    assert result.shape == (1, 28, 28) and Counter(result.columns["part"]) == {"train": 60_000, "test": 10_000}
    assert result.label[:4].tolist() == ["5", "0", "4", "1"] and result.label[60_000:60_004].tolist() == list("7210")
    assert result.columns["index"][[0, 59_999, 60_000, 69_999]].tolist() == ["0", "59999", "0", "9999"]
    train = make_image_encoding(ImageSummary.from_images(result.take(result.columns["part"] == "train")))
    assert train.mean == pytest.approx((0.1307,), abs=5e-5) and train.std == pytest.approx((0.3081,), abs=5e-5)
    assert train.class_counts == (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    test = pictures.mnist("test")
    assert len(test) == 10_000 and (test.pixels == result.pixels[60_000:]).all()
    with refused("unknown-split", match="'tests'.*'test'"):
        pictures.mnist("tests")


@CIFAR
def test_cifar10(held):
    result = held("cifar-10")
    assert result.shape == (3, 32, 32) and Counter(result.columns["part"]) == {"train": 20_000, "test": 4_000}
    counts = Counter(zip(result.columns["part"], result.label, strict=True))
    assert all(counts["train", c] == 2000 and counts["test", c] == 400 for c in pictures.CIFAR_CLASSES)
    assert result.label[:3].tolist() == ["frog", "truck", "truck"] and result.pixels[0, 0, 0].tolist() == [59, 62, 63]
    for part, full in (("train", 50_000), ("test", 10_000)):
        index = result.columns["index"][result.columns["part"] == part].astype(int)
        assert len(set(index)) == len(index) and index.min() == 0 and index.max() < full


def test_a_file_that_is_not_the_full_cifar10_is_refused(tmp_path):
    parts = {"train": 50_000, "test": 10_000}
    one = np.zeros((1, 32, 32, 3), np.uint8)
    arrays = {f"x_{part}": np.broadcast_to(one, (n, 32, 32, 3)) for part, n in parts.items()}
    arrays |= {f"{k}_{part}": np.zeros(n, np.uint8) for part, n in parts.items() for k in ("y", "idx")}
    np.savez_compressed(tmp_path / "black.npz", **arrays)
    np.savez(tmp_path / "short.npz", x_train=one)
    for name in ("black", "short"):
        with refused("unexpected-file", match=f"{name}.npz is not the full CIFAR-10; `rounds data get cifar-10-full`"):
            pictures.cifar10_full(tmp_path / f"{name}.npz")
    with refused("file-not-found"):
        pictures.cifar10_full(tmp_path / "none.npz")


@HAM
def test_ham10000(held):
    result = held("ham10000")
    assert result.shape == (3, 28, 28)
    assert Counter(result.label) == {
        "akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142,
    }  # fmt: skip
    assert {site: len(rows) for site, rows in partition_by_column(result.site).items()} == {
        "rosendahl": 2259, "vidir_modern": 3363, "vidir_molemax": 3954, "vienna_dias": 439,
    }  # fmt: skip
    assert len(set(result.patient)) == 7470
    assert (result.columns["dx"] == result.label).all() and (result.columns["dataset"] == result.site).all()
    assert Counter(result.groups("sex")) == {"male": 5406, "female": 4552, "sex unknown": 57}
    ages = Counter(result.groups("age"))
    assert ages["missing"] == 57 and len(ages) == 5
    assert result.masks.shape == (10_015, 28, 28) and 0.2 < mask_area(result.masks).mean() < 0.3
    assert np.flatnonzero(~usable_masks(result.masks)).tolist() == [1736, 5513]
    between = Counter(lesion for lesion, _ in set(zip(result.patient, result.site, strict=True)))
    assert sum(n > 1 for n in between.values()) == 9  # lesions that two sources photographed


@HAM
def test_ham10000_malignant(held):
    result, seven = held("ham10000-malignant"), held("ham10000")
    assert Counter(result.label) == {"benign": 8061, "malignant": 1954}
    assert set(seven.label[result.label == "malignant"]) == {"akiec", "bcc", "mel"}
    assert (result.groups("malignancy") == result.label).all() and result.pixels is not None


@HAM
@XFED
def test_six_sites_by_halving_the_two_largest(held):
    result = held("ham10000-malignant")
    six = pictures.halve_largest(result, seed=1)
    sizes = Counter(six.site)
    assert sorted(sizes) == ["rosendahl", "vidir_modern 1", "vidir_modern 2", "vidir_molemax 1", "vidir_molemax 2",
                             "vienna_dias"]  # fmt: skip
    assert abs(sizes["vidir_molemax 1"] - sizes["vidir_molemax 2"]) <= 3
    for name in ("vidir_modern", "vidir_molemax"):
        one, two = (set(six.patient[six.site == f"{name} {k}"]) for k in (1, 2))
        assert not one & two
    assert (pictures.halve_largest(result, seed=1).site == six.site).all()
    assert (pictures.halve_largest(result, seed=2).site != six.site).any()
    with refused("no-site-column"):
        pictures.halve_largest(held("xfed-mnist"))


@HAM
def test_ham10000_six_is_the_malignant_set_at_six_sites(held):
    six, four = held("ham10000-six"), held("ham10000-malignant")
    assert Counter(six.site) == {
        "rosendahl": 2259, "vidir_modern 1": 1682, "vidir_modern 2": 1681, "vidir_molemax 1": 1977,
        "vidir_molemax 2": 1977, "vienna_dias": 439,
    }  # fmt: skip
    assert (six.label == four.label).all() and (six.pixels == four.pixels).all()
    assert all(site.startswith(source) for site, source in zip(six.site, four.site, strict=True))
    assert (six.columns["clinic"] == six.site).all()
    for source in ("vidir_modern", "vidir_molemax"):
        one, two = (set(six.patient[six.site == f"{source} {k}"]) for k in (1, 2))
        assert not one & two


@HAM
def test_ham10000_large_has_the_first_200_of_each_diagnosis_at_six_sites(held):
    large, six = held("ham10000-large"), held("ham10000-six")
    assert large.shape == (3, 128, 128) and Counter(large.columns["dx"]) == {
        "akiec": 200, "bcc": 200, "bkl": 200, "df": 115, "mel": 200, "nv": 200, "vasc": 142,
    }  # fmt: skip
    assert Counter(large.label) == {"malignant": 600, "benign": 657} and len(set(large.site)) == 6
    rows = np.flatnonzero(np.isin(six.columns["image_id"], large.columns["image_id"]))
    assert (six.columns["image_id"][rows] == large.columns["image_id"]).all()
    assert (six.label[rows] == large.label).all() and (six.patient[rows] == large.patient).all()
    inside = [images.masks.mean(axis=(1, 2)) for images in (large, six.take(rows))]
    assert np.abs(inside[0] - inside[1]).max() < 0.03, "the same masks at another size"
    colour = [images.pixels.mean(axis=(1, 2, 3)) for images in (large, six.take(rows))]
    assert np.abs(colour[0] - colour[1]).max() < 2
    for source in ("rosendahl", "vidir_modern"):
        one, two = (set(large.patient[large.site == f"{source} {k}"]) for k in (1, 2))
        assert one and two and not one & two


@HAM
def test_a_set_of_pictures_can_be_checked_without_naming_a_net(held):
    held("ham10000-six")
    code = (
        "import sys; sys.argv = ['rounds', 'data', 'check', 'ham10000-six']; from grandrounds.cli import main; main()"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ham10000-six: 10,015 images of 28 x 28, 3 channels, 6 sites" in process.stdout, process.stderr


@MNIST
@XFED
def test_xfed_digits_have_the_right_labels(held):
    result, digits = held("xfed-mnist"), held("mnist")
    test = digits.take(digits.columns["part"] == "test")
    assert (result.label[:100] == test.label[:100]).all()
    wrong = np.flatnonzero(result.label != result.columns["published"])
    assert result.columns["number"][wrong].tolist() == ["8", "23", "25"]
    assert result.columns["index"][100:].tolist() == [None, "1198"]
    assert np.abs(result.pixels[:100].astype(int) - test.pixels[:100]).mean() < 6  # JPEG copies
    assert usable_masks(result.masks).all() and mask_area(result.masks).mean() == pytest.approx(0.137, abs=0.001)
    assert pictures.scoring_rows(digits, result).sum() == 101


@CIFAR
@XFED
def test_xfed_web_photographs_are_left_out_unless_asked_for(held):
    result, cifar = held("xfed-cifar"), held("cifar-10")
    assert len(result) == 18 and set(result.columns["origin"]) == {"cifar-10 test"}
    rows = np.flatnonzero(pictures.scoring_rows(cifar, result))
    assert len(rows) == 18
    same = dict(zip(cifar.columns["index"][rows], cifar.label[rows], strict=True))
    assert [same[i] for i in result.columns["index"]] == result.label.tolist()
    every = pictures.xfed_masks("cifar", web=True)
    web = every.take(every.columns["origin"] == "web")
    assert len(every) == 30 and web.label.tolist() == (
        ["dog", "dog", "automobile", "automobile", "cat", "cat", "deer", "deer", "frog", "frog", "truck", "cat"]
    )
    assert every.columns["number"][every.columns["note"] == "poor mask"].tolist() == ["29"]
    assert every.label[28] == "truck" and mask_area(every.masks).mean() == pytest.approx(0.406, abs=0.001)
    with refused("unknown-kind", match="'cifr'.*'cifar'"):
        pictures.xfed_masks("cifr")


def test_sets_that_are_not_on_this_machine_say_where_to_put_them(monkeypatch, tmp_path):
    monkeypatch.setenv("GRANDROUNDS_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for facts in [facts for facts in (IMAGE_SETS | SCORING_SETS).values() if facts["files"]]:
        with refused("data-not-downloaded", match="GRANDROUNDS_DATA"):
            facts["load"]()
