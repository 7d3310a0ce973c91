"""What a site keeps of its heat maps: in its own folder, read back as written, and after a start without memory."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.site.map_files import MapFiles, file_of, read_maps, rounded
from tests.support import refused


def test_maps_are_kept_by_site_and_round(tmp_path):
    files = MapFiles(tmp_path)
    for site, round, value in (("north", 1, 0.5), ("north", 2, 0.25), ("south", 2, 1.0)):
        files.write(site, round, {"local.saliency": np.full((1, 2, 2), value, np.float16), "part": np.array("test")})
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.npz")} == {
        "north/maps-1.npz", "north/maps-2.npz", "south/maps-2.npz"}  # fmt: skip
    started_again = MapFiles(tmp_path)
    for held in (files, started_again):
        assert held.read("north", 1)["local.saliency"].max() == 0.5
        assert held.read("north", 2)["local.saliency"].max() == 0.25
        assert str(held.read("south", 2)["part"]) == "test"
        assert held.read("south", 1) == {} == held.read("west", 0)


def test_without_a_folder_the_last_is_in_memory():
    files = MapFiles()
    files.write("north", 3, {"places": np.arange(2)})
    assert list(files.read("north", 3)) == ["places"]
    assert files.read("north", 2) == {}


@pytest.mark.parametrize("site", ["..", ".", "a/b", "../../etc", "St. Mary (2)", "a%2Fb"])
def test_no_name_leads_out_of_the_folder_or_into_anothers(site, tmp_path):
    path = file_of(tmp_path, site, 1)
    assert path.resolve().parent.parent == tmp_path.resolve()
    names = [file_of(tmp_path, s, 1) for s in ("..", ".", "a/b", "../../etc", "St. Mary (2)", "a%2Fb", "%2E%2E")]
    assert len(set(names)) == len(names)


def test_a_long_name_is_cut_and_leads_to_nobody_elses_folder(tmp_path):
    """A folder's name may have 255 bytes, and each of these letters takes six."""
    long = [f"Городская клиническая больница имени С. П. Боткина, {k}" for k in (1, 2)]
    files = MapFiles(tmp_path)
    for k, site in enumerate(long):
        files.write(site, 1, {"places": np.full(1, k)})
    again = MapFiles(tmp_path)
    assert [int(again.read(site, 1)["places"][0]) for site in long] == [0, 1]


@pytest.mark.parametrize("damage", [slice(60, 90), slice(100, 140), slice(None)], ids=["header", "inside", "all"])
def test_whatever_is_damaged_is_refused_in_words(damage, tmp_path):
    files, path = MapFiles(tmp_path), file_of(tmp_path, "north", 1)
    files.write("north", 1, {"local.saliency": np.linspace(0, 1, 2500).astype(np.float16).reshape(1, 50, 50)})
    held = bytearray(path.read_bytes())
    held[damage] = bytes(b ^ 0x5A for b in held[damage])
    for data in (bytes(held), b""):
        path.write_bytes(data)
        with refused("damaged-file"):
            read_maps(path)


def test_a_damaged_file_is_refused_in_words(tmp_path):
    bad = tmp_path / "maps-1.npz"
    bad.write_bytes(b"PK no zip")
    with refused("damaged-file"):
        read_maps(bad)
    with refused("cannot-read"):
        read_maps(tmp_path / "none.npz")


def test_heat_is_kept_over_its_maximum():
    kept = rounded(np.array([[[1e9, 5e8], [0, 0]], [[0, 0], [0, 0]]]))
    np.testing.assert_array_equal(kept, np.array([[[1, 0.5], [0, 0]], [[0, 0], [0, 0]]], np.float16))
