"""Embeddings are computed once, kept whole, and never believed when their file is damaged."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.arrays import save
from grandrounds.data.sets.sentence_encoder import cache_path, find_embeddings, load_or_compute
from tests.support import refused

TEXTS = ["one", "two", "three"]
PATH = cache_path(TEXTS, encoder="lengths", folder="set")


class Lengths:
    """An encoder that counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return np.array([[len(t), 0.5] for t in TEXTS])


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("GRANDROUNDS_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_what_was_computed_is_found_again(places):
    compute = Lengths()
    assert find_embeddings(PATH, rows=3) is None
    first = load_or_compute(PATH, rows=3, compute=compute)
    second = load_or_compute(PATH, rows=3, compute=compute)
    assert compute.asked == 1
    assert first[0] == second[0] == places / "cache/grandrounds" / PATH
    assert first[1].dtype == second[1].dtype == np.float32
    assert first[1].tolist() == second[1].tolist() == [[3, 0.5], [3, 0.5], [5, 0.5]]
    assert [p.name for p in first[0].parent.iterdir()] == [first[0].name]


def test_other_texts_or_another_encoder_have_a_file_of_their_own():
    rest = {
        cache_path(["one", "two", "thre"], encoder="lengths", folder="set"),
        cache_path(["one", "twothree"], encoder="lengths", folder="set"),
        cache_path(["two", "one", "three"], encoder="lengths", folder="set"),
        cache_path(TEXTS, encoder="vowels", folder="set"),
    }
    assert len(rest | {PATH}) == 5


def damage(name, place):
    data = place.read_bytes()
    if name == "cut short":
        place.write_bytes(data[:-5])
    elif name == "one bit":
        place.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif name == "empty":
        place.write_bytes(b"")
    elif name == "other rows":
        save(place, {"embeddings": np.zeros((2, 2), np.float32)}, {"sha256": ""})
    else:
        save(place, {"numbers": np.zeros((3, 2), np.float32)}, "text")


@pytest.mark.parametrize("name", ["cut short", "one bit", "empty", "other rows", "another file"])
def test_a_damaged_file_is_computed_again(name):
    compute = Lengths()
    place, right = load_or_compute(PATH, rows=3, compute=compute)
    damage(name, place)
    assert find_embeddings(PATH, rows=3) is None
    assert load_or_compute(PATH, rows=3, compute=compute)[1].tolist() == right.tolist()
    assert compute.asked == 2
    assert find_embeddings(PATH, rows=3) is not None


def test_the_users_own_folder_is_read_first_and_never_written(places):
    compute = Lengths()
    place, _ = load_or_compute(PATH, rows=3, compute=compute)
    mine = places / "own" / PATH
    mine.parent.mkdir()
    place.rename(mine)
    assert load_or_compute(PATH, rows=3, compute=compute)[0] == mine and compute.asked == 1
    damage("one bit", mine)
    before = mine.read_bytes()
    assert load_or_compute(PATH, rows=3, compute=compute)[0] == place and compute.asked == 2
    assert mine.read_bytes() == before


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_computed(places, monkeypatch):
    (places / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "file"))
    compute = Lengths()
    with refused("cannot-write", match="XDG_CACHE_HOME"):
        load_or_compute(PATH, rows=3, compute=compute)
    assert compute.asked == 0


def test_a_computation_that_breaks_off_leaves_nothing(places):
    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_compute(PATH, rows=3, compute=stopped)
    assert [p for p in (places / "cache").rglob("*") if p.is_file()] == []
