"""A stay in words, against texts written by hand."""

from __future__ import annotations

import pytest

from grandrounds.data.sets.diabetes_text import DRUGS, describe_stay, describe_stays
from grandrounds.data.table import Table

STAY = {
    "race": "AfricanAmerican", "gender": "Female", "age": "[70-80)",
    "admission_type_id": "1", "discharge_disposition_id": "3", "admission_source_id": "7",
    "time_in_hospital": 1.0, "num_lab_procedures": 59.0, "num_procedures": 0.0, "num_medications": 18.0,
    "number_outpatient": 0.0, "number_emergency": 1.0, "number_inpatient": 2.0,
    "diag_1": "circulatory", "diag_2": "diabetes", "diag_3": "neoplasms", "number_diagnoses": 9.0,
    "max_glu_serum": "not measured", "A1Cresult": ">8",
    **dict.fromkeys(DRUGS, "No"), "insulin": "Up", "metformin": "Steady", "glyburide": "Steady", "readmitted": "<30",
}  # fmt: skip
TOLD = (
    "An African American woman aged 70 to 79, admitted as an emergency through the emergency room for circulatory "
    "disease, diabetes and a neoplasm (9 diagnoses), stayed 1 day. 59 lab tests and 18 medicines; HbA1c above 8%. "
    "Insulin increased, metformin and glyburide unchanged. Past year: 2 hospital stays and 1 emergency visit. "
    "Discharged to a nursing facility."
)


def test_a_stay_is_told_as_a_doctor_would():
    assert describe_stay(STAY) == TOLD


def test_what_is_not_known_is_not_told():
    unknown = STAY | {
        "race": None, "gender": "Unknown/Invalid", "age": "[0-10)", "admission_type_id": "6",
        "admission_source_id": "17", "discharge_disposition_id": "18", "diag_1": None, "diag_2": None, "diag_3": None,
        "number_diagnoses": 1.0, "A1Cresult": "not measured", "insulin": "No", "metformin": "No", "glyburide": "No",
        "number_emergency": 0.0, "number_inpatient": 0.0,
    }  # fmt: skip
    assert describe_stay(unknown) == (
        "A patient aged 0 to 9, admitted (1 diagnosis), stayed 1 day. 59 lab tests and 18 medicines. "
        "No diabetes medicine."
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gender": "Male", "race": "Other", "age": "[10-20)"}, "A boy aged 10 to 19,"),
        ({"diag_2": "circulatory", "diag_3": "other"}, "for circulatory disease and other illness (9"),
        ({"max_glu_serum": "Norm", "num_procedures": 1.0}, "59 lab tests, 1 procedure and 18 medicines; HbA1c above 8%; "
                                                           "glucose normal."),
        ({"insulin": "Down", "glipizide": "Up"}, "Glipizide increased, insulin reduced, metformin and glyburide unch"),
        ({"number_outpatient": 3.0}, "Past year: 2 hospital stays, 1 emergency visit and 3 clinic visits."),
        ({"discharge_disposition_id": "7"}, "Discharged home against medical advice."),
    ],
)  # fmt: skip
def test_each_thing_has_its_words(change, says):
    assert says in describe_stay(STAY | change)


def test_the_outcome_is_not_told():
    columns = {name: [value] * 3 for name, value in STAY.items()} | {"readmitted": ["NO", "<30", ">30"]}
    assert describe_stays(Table.from_mapping(columns)) == [TOLD] * 3
