"""Diabetes-130 as text: who is drawn, what the columns are, and that they are the encoder's numbers for the words."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from grandrounds.data.sets import diabetes, diabetes_text
from grandrounds.data.sets.diabetes_text import describe_stays

pytestmark = pytest.mark.data("diabetes130")


@pytest.fixture(scope="module")
def stays():
    return diabetes_text.sample_stays()


def test_the_draw_is_12000_stays_of_as_many_patients_and_always_the_same(stays):
    assert len(stays) == 12_000
    assert len(set(stays.column("patient_nbr").tolist())) == 12_000
    assert not set(diabetes.GONE) & set(stays.column("discharge_disposition_id").tolist())
    assert stays.column("encounter_id")[:3].tolist() == [12522, 325848, 326028]
    assert (np.diff(stays.origin) > 0).all()
    assert Counter(stays.column("readmitted").tolist()) == {"NO": 6678, ">30": 4044, "<30": 1278}


@pytest.mark.slow  # the embeddings are computed where they are not in the cache
def test_the_columns_are_the_encoders_numbers(stays):
    table = diabetes_text.load()
    assert table.names == ("patient_nbr", "gender", *(f"e{j}" for j in range(384)), "readmitted")
    for name in ("patient_nbr", "gender", "readmitted"):
        assert (table.column(name) == stays.column(name)).all()
    values = np.column_stack([table.column(f"e{j}") for j in range(384)])
    assert np.linalg.norm(values, axis=1) == pytest.approx(1, abs=1e-5)
    # recorded from sentence-transformers for the first stay's words, which test_sentence_encoder.py spells out
    assert describe_stays(stays.take([0]))[0].startswith(
        "A Caucasian woman aged 80 to 89, admitted urgently from another"
    )
    assert values[0, [0, 1, 2, 191, 383]] == pytest.approx(
        [0.0282576, 0.0453107, -0.0791870, -0.0144313, -0.0674557], abs=1e-6
    )
