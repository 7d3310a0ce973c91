"""Groups of patients by several columns: the same cuts at every hospital, levels agreed from summaries, faults."""

from __future__ import annotations

import json

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.policy.small_cells import without_small_cells
from grandrounds.data.encoding import Encoding
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import encoding_from
from grandrounds.data.subgroups import (
    Grouping,
    add_words,
    agree_groupings,
    band_names,
    count_words,
    known_groupings,
    number_groups,
)
from grandrounds.data.summary import Cells
from grandrounds.data.table import Table
from tests.support import agreed, dataset, patients, refused


def test_bands_are_named_as_clinicians_write_them():
    assert band_names((45, 65, 80)) == ["under 45", "45-64", "65-79", "80 and over"]
    assert band_names((1, 2)) == ["under 1", "1", "2 and over"]
    assert band_names((0.5, 2)) == ["under 0.5", "0.5 to under 2", "2 and over"]
    assert band_names((-3,)) == ["under -3", "-3 and over"]


def test_a_row_is_in_the_band_that_begins_with_its_value():
    bands = Grouping("age", edges=(45, 65, 80))
    values = np.array([12.0, 44.9, 45.0, 79.99, 80.0, np.nan])
    assert [bands.names[k] for k in bands.number(values)] == ["under 45", "under 45", "45-64", "65-79", "80 and over", "missing"]
    text = np.array(["45", "70", "unknown", None], object)
    assert [bands.names[k] for k in bands.number(text)] == ["45-64", "65-79", "all others", "missing"]
    sex = Grouping("sex", levels=("f", "m"))
    assert [sex.names[k] for k in sex.number(np.array(["m", "x", "f"], object))] == ["m", "all others", "f"]


def test_hospitals_that_differ_agree_on_one_set_of_cuts():
    """Each hospital sees its own rows only; the age bands are fixed and the quartiles are those of all hospitals together."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(40, 5, 400), rng.normal(70, 5, 400)]
    tables = [Table.from_mapping({"age": part, "dose": part * 2, "sex": rng.choice(["f", "m"], 400)}) for part in parts]
    sites = [type("Rows", (), {"table": table, "name": "rows"}) for table in tables]
    words = [count_words(site, ["age", "dose", "sex"], {}) for site in sites]
    assert all(set(w) == {"dose", "sex"} and w["dose"] is None for w in words)
    cells = Cells.merge([Cells.from_values(np.stack([p, p * 2], axis=1)) for p in parts])
    age, dose, sex = agree_groupings(["age", "dose", "sex"], {}, add_words(words), numeric=["age", "dose"], cells=cells)
    assert age.edges == (45, 65, 80) and sex.levels == ("f", "m")
    pooled = np.quantile(np.concatenate(parts) * 2, [0.25, 0.5, 0.75])
    assert dose.edges == pytest.approx(pooled, rel=0.02)
    assert all(float(f"{edge:.3g}") == edge for edge in dose.edges)  # rounded: no patient's value


def test_cuts_of_the_settings_win_and_are_checked():
    assert known_groupings(["age"], {"age": (50,)}, {})[0].edges == (50,)
    with refused("unordered-range", match="evaluation.bands.age"):
        known_groupings(["age"], {"age": (50, 40)}, {})
    with refused("levels-not-known", match="evaluation.subgroups names 'ward'"):
        known_groupings(["ward"], {}, {})
    data = dataset(patients([40]))
    with refused("bands-need-numbers", match="column 'ward'"):
        count_words(data, ["ward"], {"ward": (1,)})
    with refused("unknown-column", match="'wrd'"):
        count_words(data, ["wrd"], {})
    with refused("too-many-groups", match=r"evaluation.bands.id = \[10, 20\]"):
        agree_groupings(["id"], {}, {"id": None})


def test_groups_travel_in_the_encoding_and_leave_others_as_they_were():
    encoding, *_ = agreed([dataset(patients([40, 30]))])
    assert "subgroups" not in encoding.to_dict()
    grouped = Encoding(**{**encoding.__dict__, "subgroups": (Grouping("age", edges=(45.0,)), Grouping("ward", levels=("a",)))})
    again = encoding_from(json.loads(json.dumps(grouped.to_dict())))
    assert again == grouped


def test_a_hospital_names_no_group_of_few_patients():
    words = {"groups": {}, "classes": {"0": 9}, "subgroups": {"ethnicity": {"a": 40, "rare": 2}, "age": None}}
    told = without_small_cells("summarise", {"summary.words": json.dumps(words)}, 5)
    assert json.loads(told["summary.words"])["subgroups"] == {"ethnicity": {"a": 40}, "age": None}


def test_images_have_groups_by_their_further_columns():
    """Ages of images are text; they are cut as the numbers of a table, and so is a column of numbers by given cuts."""
    n = 12
    ages = np.array([str(30 + 5 * k) for k in range(n - 1)] + [None], object)
    columns = {"age": ages, "sex": np.array(["f", "m", None] * 4, object)}
    images = ImageSet(
        name="lesions", pixels=np.zeros((n, 2, 2, 1), np.uint8), label=np.array(["a", "b"] * 6, object), columns=columns
    )
    assert count_words(images, ["age", "sex"], {}) == {"sex": {"f": 4, "m": 4, "missing": 4}}
    age, sex = agree_groupings(["age", "sex"], {}, count_words(images, ["age", "sex"], {}))
    numbers = number_groups((age, sex), images)
    assert [age.names[k] for k in numbers[:, 0]] == ["under 45"] * 3 + ["45-64"] * 4 + ["65-79"] * 3 + ["80 and over", "missing"]
    assert [sex.names[k] for k in numbers[:3, 1]] == ["f", "m", "missing"]
    with refused("unknown-column", match="'sx' not found in lesions"):
        count_words(images, ["sx"], {})
