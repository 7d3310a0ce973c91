"""`rounds explain masks check` as a user meets it: what it counts, what it draws, how it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest

from grandrounds.capabilities.cases import mask_check
from grandrounds.capabilities.cases.image_page import HIDDEN, cover_outside, to_display
from grandrounds.capabilities.cases.mask_check import check_masks, tint_mask
from grandrounds.data.images import ImageSet
from grandrounds.explain.agreement import centre_blob, xai_accuracy
from tests.command import rounds
from tests.support import refused

SIDE = 16
image = pytest.importorskip("PIL.Image")


def squares(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (n, 16, 16, 3) of a bright square that is in a corner, and masks (n, 16, 16) of it."""
    masks = np.zeros((n, SIDE, SIDE), bool)
    for i in range(n):
        top, left = (12 * (i // 2 % 2), 12 * (i % 2))
        masks[i, top : top + 4, left : left + 4] = True
    pixels = np.where(masks[..., None], 200, 10).repeat(3, axis=3).astype(np.uint8)
    return pixels, masks


def as_set(pixels: np.ndarray, masks: np.ndarray | None) -> ImageSet:
    return ImageSet("corners", pixels, np.array(["a", "b"] * (len(pixels) // 2), object), masks=masks)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's folder: pictures and PNG masks with a CSV, the same as .npz, and a table without pictures."""
    folder = tmp_path_factory.mktemp("home")
    pixels, masks = squares()
    masks = masks.copy()
    masks[3], masks[5] = False, True
    labels = np.array(["left", "right"] * 20)
    np.savez(folder / "scans.npz", images=pixels, labels=labels, masks=masks)
    np.savez(folder / "bare.npz", images=pixels, labels=labels)
    (folder / "scans").mkdir()
    (folder / "truth").mkdir()
    lines = ["file,dx"]
    for i in range(40):
        image.fromarray(pixels[i]).save(folder / "scans" / f"p{i}.png")
        image.fromarray(masks[i]).save(folder / "truth" / f"p{i}_mask.png")
        lines.append(f"p{i}.png,{labels[i]}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    (folder / "own.toml").write_text(
        '[data]\ntable = "labels.csv"\nlabel = "dx"\npictures = "scans"\nmasks = "truth"\n[model]\nname = "small-cnn"\n'
    )
    return folder


def command_refused(done, *words: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    hints = [line for line in lines[1:] if line.startswith("change ")]
    assert len(lines) == 1 + len(hints) and lines[0].startswith("error: "), done.stderr
    for word in words:
        assert word in lines[0]


def scores(printed: str, name: str) -> list[float]:
    """XAI accuracy, its error, grid accuracy, its error."""
    (line,) = [line for line in printed.splitlines() if f"│ {name} " in line]
    return [float(v) for v in re.findall(r"\d\.\d{4}", line)]


@pytest.mark.parametrize("source", ["scans.npz", "own.toml"])
def test_masks_are_counted_named_and_drawn(home, source, tmp_path):
    done = rounds("explain", "masks", "check", source, "--rows", 5, "--out", tmp_path / "new" / "sheet.png", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "40 truth masks of 16 x 16 pixels, 38 usable" in done.stdout
    area = (38 * 16 / 256 + 1) / 40
    assert f"they mark {area:.1%} of an image on average (0.0% to 100.0%)" in done.stdout
    assert "1 of 40 truth masks is empty (image 3)" in done.stdout
    assert "1 of 40 truth masks is full (image 5)" in done.stdout
    with image.open(tmp_path / "new" / "sheet.png") as sheet:
        assert sheet.format == "PNG" and sheet.height > 5 * 160


def test_baselines_say_what_a_score_means_on_this_set(home, tmp_path):
    """Squares in corners: a blob in the middle misses every one of them, noise is at one half, and scenes at a quarter."""
    done = rounds("explain", "masks", "check", "scans.npz", "--out", tmp_path, cwd=home)
    xai, error, grid, _ = scores(done.stdout, "a blob in the middle")
    assert (xai, error, grid) == (0.0, 0.0, 0.25)
    xai, error, grid, grid_error = scores(done.stdout, "noise")
    assert xai == pytest.approx(0.5, abs=0.03) and grid == pytest.approx(0.25, abs=0.03)
    assert error == pytest.approx(np.sqrt(xai * (1 - xai) / 38), abs=2e-4), (
        "of one score on 38 pictures, not of all draws"
    )
    assert grid_error == pytest.approx(np.sqrt(grid * (1 - grid) / 40), abs=2e-4)
    assert (tmp_path / "masks-scans.png").is_file()


def test_sheet_goes_from_the_smallest_mask_to_the_largest(monkeypatch):
    pixels, masks = squares(40)
    masks = masks.copy()
    masks[7], masks[9] = False, True
    drawn = []
    monkeypatch.setattr(mask_check, "draw", lambda title, strips, **_: drawn.extend(strips) or b"")
    check_masks(as_set(pixels, masks)).sheet(3)
    assert [re.search(r"image (\d+)", s.heading)[1] for s in drawn][::2] == ["7", "9"]
    assert len(drawn) == 3 and [p.title for p in drawn[0].panels][:2] == ["image", "mask"]
    drawn.clear()
    check_masks(as_set(pixels, masks)).sheet(1000)
    assert len({s.heading for s in drawn}) == 40, "each picture once"


def test_panels_show_what_is_marked():
    (pixels, *_), (mask, *_) = squares(2)
    times = len(to_display(pixels)) // SIDE
    over, inside = tint_mask(pixels, mask)[::times, ::times], cover_outside(pixels, mask)[::times, ::times]
    assert (over[~mask] == pixels[~mask]).all() and (over[mask] != pixels[mask]).any(axis=-1).all()
    assert (inside[mask] == pixels[mask]).all() and (inside[~mask] == HIDDEN).all()


def test_many_pixels_are_scored_in_part(monkeypatch):
    """A set too large for memory as heat has its baselines from some of its pictures, and all are still counted."""
    pixels, masks = squares(40)
    monkeypatch.setattr(mask_check, "_PIXELS", 10 * SIDE * SIDE)
    found = check_masks(as_set(pixels, masks))
    assert {b.xai.count for b in found.baselines.values()} == {10}
    assert found.usable == len(found.area) == 40


def test_without_a_usable_mask_nothing_is_scored():
    pixels, masks = squares(4)
    found = check_masks(as_set(pixels, np.zeros_like(masks)))
    assert found.usable == 0 and {b.xai.count for b in found.baselines.values()} == {0}
    assert found.notes == ("4 of 4 truth masks are empty (image 0, 1, 2, 3)",)
    with refused("no-truth-masks"):
        check_masks(as_set(pixels, None))


def test_strokes_and_settings(home, tmp_path):
    done = rounds("explain", "masks", "check", "bare.npz", "--set", "data.masks=strokes", "--out", tmp_path, cwd=home)
    assert "40 truth masks of 16 x 16 pixels, 40 usable; they mark 6.2% of an image" in done.stdout


def test_what_has_no_masks_is_refused_in_a_sentence(home, tmp_path):
    bare = rounds("explain", "masks", "check", "bare.npz", cwd=home)
    command_refused(bare, "bare", "has no truth masks", "data.masks", "'strokes'")
    command_refused(rounds("explain", "masks", "check", "breast-cancer", cwd=home), "[needs-images]")
    command_refused(rounds("explain", "masks", "check", "no-such-thing", cwd=home), "no-such-thing", "known:")
    jpg = rounds("explain", "masks", "check", "scans.npz", "--out", "sheet.jpg", cwd=home)
    command_refused(jpg, "[invalid-file-type]", ".png")
    command_refused(rounds("explain", "masks", "check", "scans.npz", "--out", "labels.csv/x.png", cwd=home), "[cannot-write]")
    assert not list(home.glob("masks-*.png")), "nothing is written where something is refused"


@pytest.mark.data("xfed_masks", "cifar10")
def test_published_masks_let_a_blob_pass(tmp_path):
    """An experiment that is scored on another set shows that set's masks; the blob is right on all of XFed's 18."""
    (tmp_path / "x.toml").write_text(
        '[data]\nname = "cifar-10"\n[reference.scoring]\nsource = "xfed-cifar"\nsent = true\n'
    )
    done = rounds("explain", "masks", "check", "x.toml", "--out", "sheets", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("xfed-cifar: 18 truth masks of 32 x 32 pixels, 18 usable")
    assert scores(done.stdout, "a blob in the middle") == [
        1.0,
        0.0,
        0.25,
        pytest.approx(np.sqrt(0.25 * 0.75 / 18), abs=1e-4),
    ]
    assert (tmp_path / "sheets" / "masks-xfed-cifar.png").is_file()


def test_agrees_with_scoring_by_hand():
    pixels, masks = squares(40)
    moved = np.roll(masks, (6, 6), axis=(1, 2))  # some squares towards the middle
    found = check_masks(as_set(pixels, moved)).baselines["a blob in the middle"].xai
    assert found.value == xai_accuracy(centre_blob(moved.shape), moved).value
    assert 0 < found.value < 1
