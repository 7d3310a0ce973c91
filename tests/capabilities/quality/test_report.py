"""Description of a site's table, and schemas with a reference of what is normal."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.quality.assessment.assess import assess_table
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.table import Table

PLAIN = {
    "label": "died", "classes": ["no", "yes"], "class_shares": [0.9, 0.1], "patient": "pid", "repeated_share": 0.0,
    "fewest_rows": 4, "dates": {"admitted": {"range": ["2014-01-01", "2014-12-31"]}, "left": {"after": ["admitted"]}},
    "columns": {
        "age": {"kind": "number", "quantiles": [30, 40, 50, 60, 80], "missing_share": 0.0, "auroc": 0.6},
        "sex": {"kind": "category", "values": ["F", "M"], "shares": [0.5, 0.5]},
    },
}  # fmt: skip


def table(**changes) -> Table:
    columns = {
        "pid": ["a", "b", "b", "c", "d"],
        "age": [30.0, 40.0, np.nan, 60.0, 70.0],
        "sex": ["F", "M", "M", "X", "F"],
        "admitted": ["2014-02-01", "2014-03-01", None, "2014-05-01", "2014-06-01"],
        "died": ["no", "yes", "no", "no", "yes"],
    }
    return Table.from_mapping({**columns, **changes}, source="t.csv")


def test_schema_with_a_reference_is_read_back_the_same():
    schema = DataSchema.from_dict(PLAIN)
    assert DataSchema.from_dict(schema.to_dict()) == schema
    assert schema["age"].missing_share == 0 and schema.repeated_share == 0
    assert schema.to_dict()["dates"] == PLAIN["dates"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"class_shares": [0.5]}, "class_shares"),
        ({"repeated_share": 2}, "repeated_share"),
        ({"dates": {"admitted": {"range": ["2015-01-01", "2014-01-01"]}}}, "first to the last"),
        ({"dates": {"admitted": {"range": ["may", "june"]}}}, "first and last day"),
        ({"dates": {"admitted": {"form": 1}}}, "unknown key 'form'"),
    ],
)
def test_reference_that_cannot_be_meant_is_refused(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        DataSchema.from_dict({**PLAIN, **change})


def test_report_describes_every_agreed_column():
    report = assess_table(table(), DataSchema.from_dict(PLAIN))
    assert [c.name for c in report.columns] == ["died", "pid", "admitted", "age", "sex"]
    assert (report.rows, report.patients, report.repeated, report.copies) == (5, 4, 1, 0)
    age, sex, admitted = report["age"], report["sex"], report["admitted"]
    assert age.missing == 1 and age.missing_share == 0.2 and age.range == (30, 70) and age.quantiles[2] == 50
    assert sex.unknown == 1 and sex.coverage == 0.8 and dict(sex.levels) == {"F": 2, "M": 2, "X": 1}
    assert (admitted.kind, admitted.first, admitted.last) == ("date", "2014-02-01", "2014-06-01")
