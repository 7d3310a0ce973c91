"""Files of SAS, Stata and SPSS: values, value labels, declared missing values, dates and column labels."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest

from grandrounds.capabilities.sources import CAPABILITY
from grandrounds.capabilities.sources.statistics_files import SAS, SPSS, STATA
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.check import read_rows
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.readers import read_table
from grandrounds.data.table import Table

FRAME = pd.DataFrame(
    {
        "age": [61.0, 72.0, None, 80.0],
        "sex": [1.0, 2.0, 1.0, 2.0],
        "ward": ["North", "South", "", "West"],
        "died": [0.0, 1.0, 0.0, 1.0],
    }
)
LABELS = {"sex": {1.0: "male", 2.0: "female"}, "died": {0.0: "no", 1.0: "yes"}}


def notes(table: Table) -> str:
    assert table.reading is not None
    return "\n".join(table.reading.notes)


def refusal(path: Path, **options: Any) -> BadInput:
    with pytest.raises(BadInput) as error:
        read_table(path, **options)
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.parametrize("ending", ["sav", "zsav", "dta"])
def test_codes_become_the_words_of_their_labels(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    if ending == "dta":
        frame = FRAME.astype({"sex": int, "died": int})
        whole = {name: {int(code): word for code, word in words.items()} for name, words in LABELS.items()}
        pyreadstat.write_dta(frame, path, variable_value_labels=whole)
    else:
        pyreadstat.write_sav(FRAME, path, variable_value_labels=LABELS, compress=ending == "zsav")
    table = read_table(path)
    np.testing.assert_array_equal(table.column("age"), FRAME["age"])
    assert table.column("sex").tolist() == ["male", "female", "male", "female"]
    assert table.column("died").tolist() == ["no", "yes", "no", "yes"]
    assert table.column("ward").tolist() == ["North", "South", None, "West"]
    assert "value labels in place of codes in columns sex, died (sex: 1 is 'male', 2 is 'female')" in notes(table)
    assert read_table(path, kinds={"sex": "numeric"}).column("sex").tolist() == [1, 2, 1, 2]


def test_values_and_words_are_those_of_pandas(tmp_path: Path) -> None:
    stata, spss = tmp_path / "t.dta", tmp_path / "t.sav"
    frame = FRAME.assign(day=pd.to_datetime(["2024-05-31", "2020-02-29", None, "1959-01-01"]))
    coded = pd.Categorical.from_codes([0, 1, 0, 1], ["male", "female"])
    frame.assign(sex=coded).to_stata(stata, write_index=False, convert_dates={"day": "td"})
    table, other = read_table(stata), pd.read_stata(stata)
    np.testing.assert_array_equal(table.column("age"), other["age"].to_numpy(float))
    assert table.column("sex").tolist() == other["sex"].tolist()
    assert table.column("day").tolist() == ["2024-05-31", "2020-02-29", None, "1959-01-01"]
    pyreadstat.write_sav(FRAME, spss, variable_value_labels=LABELS)
    words = pd.read_spss(spss)
    assert read_table(spss).column("died").tolist() == words["died"].tolist()


def test_sas_transport_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.xpt"
    pyreadstat.write_xport(FRAME, path, column_labels={"age": "Age in years"})
    table = read_table(path)
    np.testing.assert_array_equal(table.column("age"), FRAME["age"])
    assert table.column("ward").tolist() == ["North", "South", None, "West"]
    assert table.reading is not None and table.reading.labels == {"age": "Age in years"}


def test_the_manifest_has_every_ending() -> None:
    assert [name for name in CAPABILITY.readers if name.startswith(".")] == [*SAS, *STATA, *SPSS]


def test_spss_portable_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.por"
    pyreadstat.write_por(FRAME[["sex", "died"]], path)
    assert read_table(path).column("DIED").tolist() == [0, 1, 0, 1]


def test_declared_missing_values_are_missing(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [61.0, 999.0, 72.0], "pain": [3.0, -8.0, -9.0], "answer": ["y", "x", "n"]})
    path = tmp_path / "t.sav"
    ranges = {"age": [999.0], "pain": [{"lo": -9.0, "hi": -1.0}], "answer": ["x"]}
    pyreadstat.write_sav(frame, path, missing_ranges=ranges, variable_value_labels={"pain": {-9.0: "refused"}})
    table = read_table(path)
    np.testing.assert_array_equal(table.column("age"), [61, np.nan, 72])
    np.testing.assert_array_equal(table.column("pain"), [3, np.nan, np.nan])
    assert table.column("answer").tolist() == ["y", None, "n"]
    assert "999 of column age read as missing, as the file declares" in notes(table)


def test_letters_for_missing_in_stata_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.dta"
    frame = pd.DataFrame({"x": [1, "a", 2, "z"], "y": [1.5, 2.5, 3.5, 4.5]})
    pyreadstat.write_dta(frame, path, missing_user_values={"x": ["a", "z"]})
    table = read_table(path)
    np.testing.assert_array_equal(table.column("x"), [1, np.nan, 2, np.nan])
    assert ".a, .z of column x read as missing" in notes(table)


def test_codes_are_kept_where_labels_do_not_name_each_of_them(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [61.0, 999.0, 72.0], "stage": [1.0, 2.0, 3.0], "g": [1.0, 2.0, 1.0]})
    labels = {"age": {999.0: "unknown"}, "stage": {1.0: "low", 2.0: "high", 3.0: "high"}, "g": {1.0: "a", 2.0: "b", 3.0: "c"}}
    path = tmp_path / "t.sav"
    pyreadstat.write_sav(frame, path, variable_value_labels=labels)
    table = read_table(path)
    assert table.column("age").tolist() == [61, 999, 72]
    assert "if 'unknown' means missing, add --missing 999" in notes(table)
    assert table.column("stage").tolist() == [1, 2, 3]
    assert "column stage: several codes have the same label" in notes(table)
    assert table.column("g").tolist() == ["a", "b", "a"]  # a label that no row needs does not matter
    assert np.isnan(read_table(path, missing=("", "999")).column("age")[1])


def test_dates_and_times_are_iso_text(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 5, 31, 13, 30)
    frame = pd.DataFrame({"day": [moment.date(), None], "moment": [moment, None], "x": [1.0, 2.0]})
    for write, name in ((pyreadstat.write_sav, "t.sav"), (pyreadstat.write_dta, "t.dta"), (pyreadstat.write_xport, "t.xpt")):
        write(frame, tmp_path / name)
        table = read_table(tmp_path / name)
        assert table.column("day").tolist() == ["2024-05-31", None], name
        assert table.column("moment").tolist() == ["2024-05-31T13:30:00", None], name


def test_months_of_stata_are_numbers_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "t.dta"
    pyreadstat.write_dta(pd.DataFrame({"m": [720, 721]}), path, variable_format={"m": "%tm"})
    assert "column m is read as a number (months since 1960)" in notes(read_table(path))


def test_a_site_keeps_codes_where_the_consortium_agreed_on_codes(tmp_path: Path) -> None:
    path = tmp_path / "t.sav"
    pyreadstat.write_sav(FRAME, path, variable_value_labels=LABELS)
    column = AgreedColumn("sex", "category", values=("1", "2"))
    codes = read_rows(DataSchema(label="died", columns=(column,), classes=("0", "1")), str(path))
    assert isinstance(codes, Table)
    assert codes.column("sex").tolist() == [1, 2, 1, 2] and codes.column("died").tolist() == [0, 1, 0, 1]
    column = AgreedColumn("sex", "category", values=("female", "male"))
    words = read_rows(DataSchema(label="died", columns=(column,), classes=("no", "yes")), str(path))
    assert isinstance(words, Table)
    assert words.column("sex")[0] == "male" and words.column("died")[0] == "no"


def test_column_labels_describe_the_columns_of_a_drafted_schema(tmp_path: Path) -> None:
    path = tmp_path / "t.sav"
    frame = pd.concat([FRAME] * 10, ignore_index=True)
    pyreadstat.write_sav(frame, path, variable_value_labels=LABELS, column_labels={"age": "Age at admission (years)"})
    drafted = draft_schema(read_table(path), label="died")
    assert {c.name: c.about for c in drafted.columns}["age"] == "Age at admission (years)"


def test_latin_text_of_an_old_file_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "t.sav"
    pyreadstat.write_sav(pd.DataFrame({"ward": ["Süd", "Nord"], "x": [1.0, 2.0]}), path)
    assert read_table(path).column("ward").tolist() == ["Süd", "Nord"]


@pytest.mark.parametrize("ending", ["sas7bdat", "xpt", "dta", "sav", "zsav", "por"])
def test_a_damaged_file_gets_one_sentence(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    for raw in (b"no such file" * 50, b"\0" * 4000):
        path.write_bytes(raw)
        assert refusal(path).code == "damaged-file"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sav"
    pyreadstat.write_sav(pd.concat([FRAME] * 50), path)
    path.write_bytes(path.read_bytes()[:-200])
    assert refusal(path).code == "damaged-file"


def test_files_that_are_cut_off_late_are_refused(tmp_path: Path) -> None:
    """Without the end of a Stata file codes would lose their labels, and a SAS file its last patients."""
    stata, sas = tmp_path / "t.dta", tmp_path / "t.xpt"
    pyreadstat.write_dta(FRAME, stata)
    stata.write_bytes(stata.read_bytes()[:-30])
    pyreadstat.write_xport(FRAME, sas)
    sas.write_bytes(sas.read_bytes()[:-50])
    for path in (stata, sas):
        error = refusal(path)
        assert error.code == "damaged-file" and "its end is missing" in str(error)


def test_a_label_that_crashes_the_parser_gets_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.sav"
    frame = pd.DataFrame({"ward": ["A", "B"], "x": [1.0, 2.0]})
    pyreadstat.write_sav(frame, path, variable_value_labels={"ward": {"A": "North", "B": "South"}})
    raw = path.read_bytes()
    place = raw.index(b"A       \x05North")
    path.write_bytes(raw[:place] + b"\xff" + raw[place + 1 :])
    assert refusal(path).code == "damaged-file"


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.dta"
    pyreadstat.write_dta(FRAME.iloc[:0].astype({"ward": str}), path)
    assert refusal(path).code == "empty-table"
