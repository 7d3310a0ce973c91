"""One file for each hospital, and together what they were."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.data.readers import read_table
from grandrounds.data.row_files import split_table, to_csv
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.table import Table, missing_mask, to_text
from tests.command import rounds
from tests.support import refused


def test_four_hospitals_of_the_heart_data(tmp_path):
    process = rounds("data", "split", "heart", "--out", "tables", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [line.split()[:2] for line in process.stdout.splitlines()[1:]] == [
        ["cleveland", "303"],
        ["hungarian", "294"],
        ["switzerland", "123"],
        ["va", "200"],
    ]
    full = find_entry("heart").load()
    for name in ("cleveland", "va"):
        rows = np.flatnonzero(full.column("hospital") == name)
        read = read_table(str(tmp_path / "tables" / f"{name}.csv"))
        assert read.names == tuple(n for n in full.names if n != "hospital")
        for column in read.names:  # cells that mean "no value" are read as such again
            assert to_text(read.column(column)).tolist() == to_text(full.take(rows).column(column)).tolist()


def test_files_that_are_there_stay(tmp_path):
    (tmp_path / "va.csv").write_text("mine")
    process = rounds("data", "split", "heart", "--out", ".", cwd=tmp_path)
    assert process.returncode == 2
    assert "va.csv exists" in process.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["va.csv"]
    assert (tmp_path / "va.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["breast-cancer"], "the column of breast-cancer that names the hospital is not known: name it with --by COLUMN"),
        (["heart", "--by", "hopsital"], "column 'hopsital' not found"),
        (["hart"], "data set 'hart' is unknown"),
        (["nowhere.csv", "--by", "x"], "nowhere.csv"),
    ],
)
def test_what_cannot_be_split_is_said(tmp_path, arguments, words):
    process = rounds("data", "split", *arguments, "--out", "tables", cwd=tmp_path)
    assert (process.returncode, words in process.stderr) == (2, True), process.stderr
    assert not (tmp_path / "tables").exists()


def test_a_row_of_nobody_is_refused():
    with refused("missing-values", match="1 rows"):
        split_table(Table.from_mapping({"at": ["a", None], "x": [1, 2]}, source="t"), "at")


def test_cells_come_back_as_they_were(tmp_path):
    data = Table.from_mapping({"at": [2, 2, 3], "x": [1.5, None, 7], 'say "so", then': ["a\nb", None, "ü"]}, source="t")
    parts = split_table(data, "at")
    assert list(parts) == ["2", "3"]
    (tmp_path / "2.csv").write_bytes(to_csv(parts["2"]))
    again = read_table(str(tmp_path / "2.csv"))
    assert again.column("x")[0] == 1.5
    assert missing_mask(again.column("x")).tolist() == [False, True]
    assert again.column('say "so", then').tolist() == ["a\nb", None]
