"""Excel workbooks as people make them: the values, the notes on assumptions, and one sentence for what cannot be read."""

from __future__ import annotations

import datetime
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest

from grandrounds.core.errors import BadInput
from grandrounds.data import sheets
from grandrounds.data.formats import Format
from grandrounds.data.readers import read_table
from grandrounds.data.table import Table

HEADER = ["age", "crp", "sex", "died"]
ROWS = [[61, 4.5, "f", 0], [72, 12, "m", 1], [55, None, "f", 0], [80, 0.1, "m", 1]]


def make(path: Path, rows: Sequence[Sequence[Any]], change: Callable[[Any, Any], None] | None = None) -> Path:
    """Write rows into a workbook of one sheet, and change it by hand."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Patients"
    for row in rows:
        sheet.append(row)
    if change is not None:
        change(book, sheet)
    book.save(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "book.xlsx"


def notes(table: Table) -> str:
    assert table.reading is not None
    return "\n".join(table.reading.notes)


def refusal(path: Path, **options: Any) -> BadInput:
    with pytest.raises(BadInput) as error:
        read_table(path, **options)
    assert "\n" not in str(error.value)
    return error.value


def rewrite(path: Path, part: str, change: Callable[[str], str]) -> None:
    """Change the XML of one part of a workbook."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts[part] = change(parts[part].decode()).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


# --- values ----------------------------------------------------------------------------------------


def test_a_plain_sheet_has_the_values_that_pandas_reads(path: Path) -> None:
    table, frame = read_table(make(path, [HEADER, *ROWS])), pd.read_excel(path)
    assert table.names == tuple(frame.columns)
    for name in ("age", "crp", "died"):
        np.testing.assert_array_equal(table.column(name), frame[name].to_numpy(float))
    assert table.column("sex").tolist() == frame["sex"].tolist()
    assert notes(table) == ""


def test_a_workbook_and_its_csv_have_the_same_digest(path: Path) -> None:
    make(path, [HEADER, *ROWS])
    text = path.with_suffix(".csv")
    text.write_text("age,crp,sex,died\n61,4.5,f,0\n72,12,m,1\n55,,f,0\n80,0.1,m,1\n")
    assert read_table(path).sha256() == read_table(text).sha256()


def test_dates_are_iso_text_and_times_are_kept_where_one_has_any(path: Path) -> None:
    day, moment = datetime.datetime(2024, 5, 31), datetime.datetime(2024, 5, 31, 13, 30)
    table = read_table(make(path, [["a", "b", "t"], [day, day, moment.time()], [day, moment, None]]))
    assert table.column("a").tolist() == ["2024-05-31", "2024-05-31"]
    assert table.column("b").tolist() == ["2024-05-31T00:00:00", "2024-05-31T13:30:00"]
    assert table.column("t").tolist() == ["13:30:00", None]


def test_dates_from_1904_on_are_the_same_days(path: Path) -> None:
    def change(book: Any, sheet: Any) -> None:
        book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
        sheet["A2"] = datetime.datetime(2024, 5, 31)

    assert read_table(make(path, [["a", "b"], [None, 1]], change)).column("a").tolist() == ["2024-05-31"]


def test_dates_stored_as_text_beside_dates_are_read(path: Path) -> None:
    table = read_table(make(path, [["d", "x"], [datetime.datetime(2024, 5, 3), 1], ["31.05.2024", 2], [None, 3]]))
    assert table.column("d").tolist() == ["2024-05-03", "2024-05-31", None]
    assert "dates stored as text in column d (such as '31.05.2024')" in notes(table)


def test_numbers_stored_as_text_and_formatted_numbers_are_numbers(path: Path) -> None:
    rows = [["a", "b", "c", "zip"], ["12", "1,5", "<5", "007"], ["7", "2,5", 8.5, "008"], [3, "3,0", 9.5, "009"]]
    table = read_table(make(path, rows))
    assert table.column("a").tolist() == [12, 7, 3]
    assert table.column("b").tolist() == [1.5, 2.5, 3.0]
    assert table.column("zip").tolist() == ["007", "008", "009"]
    assert "numbers stored as text in column a" in notes(table)
    assert "decimal comma in column b" in notes(table)
    assert read_table(path, kinds={"c": "numeric"}, form=Format(censored="half")).column("c").tolist() == [2.5, 8.5, 9.5]


def test_percent_formats_are_read_as_they_are_shown(path: Path) -> None:
    def change(_: Any, sheet: Any) -> None:
        for row in (2, 3):
            sheet.cell(row, 1).number_format = "0.0%"
        sheet.cell(2, 2).number_format = "0%"

    table = read_table(make(path, [["fio2", "part"], [0.07, 0.45], [0.215, 0.5]], change))
    assert table.column("fio2").tolist() == [7.0, 21.5]  # 0.07 * 100 is 7.000000000000001
    assert table.column("part").tolist() == [0.45, 0.5]
    assert "a cell that shows 45% is read as 45" in notes(table)
    assert "some cells of column part, read as stored" in notes(table)


def test_truth_values_are_numbers_as_in_parquet(path: Path) -> None:
    assert read_table(make(path, [["a", "b"], [True, 1], [False, 2], [None, 3]])).column("a")[:2].tolist() == [1.0, 0.0]


def test_codes_for_missing_are_missing_also_among_numbers(path: Path) -> None:
    rows = [["a", "b", "c"], [-999, "NA", "x"], [3, 4, "?"], [5, ".", "y"]]
    table = read_table(make(path, rows), missing=("", "NA", "?", ".", "-999"))
    assert np.isnan(table.column("a")[0]) and table.column("a")[1] == 3
    np.testing.assert_array_equal(table.column("b"), [np.nan, 4, np.nan])
    assert table.column("c").tolist() == ["x", None, "y"]
    assert "'?' read as missing in column c" in notes(table)


def test_shared_texts_are_read_with_all_runs_of_a_rich_text(path: Path) -> None:
    """Excel itself keeps texts once for the whole workbook; openpyxl writes them into the cells."""
    make(path, [["age", "sex"], [1, "f"], [2, "m"]])
    texts: list[str] = []

    def share(xml: str) -> str:
        def number(match: re.Match[str]) -> str:
            texts.append(match[2])
            return f'{match[1]} t="s"><v>{len(texts) - 1}</v></c>'

        return re.sub(r'(<c r="\w+")[^>]*t="inlineStr"[^>]*><is><t>(.*?)</t></is></c>', number, xml)

    rewrite(path, "xl/worksheets/sheet1.xml", share)
    assert texts == ["age", "sex", "f", "m"]
    namespace = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    runs = "".join(f"<si><r><t>{t[:1]}</t></r><r><t>{t[1:]}</t></r><rPh sb='0' eb='1'><t>hint</t></rPh></si>" for t in texts)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{namespace}">{runs}</sst>')
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    entry = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    rewrite(path, "[Content_Types].xml", lambda xml: xml.replace("</Types>", entry))
    table = read_table(path)
    assert table.names == ("age", "sex") and table.column("sex").tolist() == ["f", "m"]


# --- layout ----------------------------------------------------------------------------------------


def test_titles_units_and_remarks_are_no_patients(path: Path) -> None:
    rows = [["Ward 3, export of May"], ["printed", "2024-06-01"], [], ["age", "crp", "sex", "died"]]
    rows += [["years", "mg/l", "", ""], *ROWS, [], ["* measured twice"]]
    table = read_table(make(path, rows))
    assert table.names == tuple(HEADER) and table.column("age").tolist() == [61, 72, 55, 80]
    assert "header in row 4; 2 rows above it not read ('Ward 3, export of May', 'printed')" in notes(table)
    assert "row 5 not read: it has units ('years' of age)" in notes(table)
    assert "row 11 below the table not read ('* measured twice')" in notes(table)
    assert table.where(0) == "row 6 (the header is row 4)"
    assert table.take([2]).where(0) == "row 8 (the header is row 4)"
    one_word = [None, "mg/l", None, None]  # may be a patient's
    assert len(read_table(make(path, [HEADER, one_word, *ROWS]))) == 5


def test_merged_cells_are_repeated_downwards_and_refused_sideways(path: Path) -> None:
    rows = [["ward", "age", "x"], ["North", 60, 1], [None, 61, 2], ["South", 62, 3]]
    table = read_table(make(path, rows, lambda _, sheet: sheet.merge_cells("A2:A3")))
    assert table.column("ward").tolist() == ["North", "North", "South"]
    assert "merged cells in column ward" in notes(table)
    rows = [["ward", "age", "x"], ["Ward North", None, None], ["a", 61, 2]]
    error = refusal(make(path, rows, lambda _, sheet: sheet.merge_cells("A2:C2")))
    assert "cell A2" in str(error) and "'Ward North'" in str(error) and error.code == "merged-cells"


def test_a_header_of_two_rows_is_joined(path: Path) -> None:
    def change(_: Any, sheet: Any) -> None:
        sheet.merge_cells("B1:C1")
        sheet.merge_cells("D1:E1")

    rows = [["id", "day 1", None, "day 2", None], [None, "crp", "hr", "crp", "hr"], ["a", 1, 2, 3, 4], ["b", 5, 6, 7, 8]]
    table = read_table(make(path, rows, change))
    assert table.names == ("id", "day 1 crp", "day 1 hr", "day 2 crp", "day 2 hr")
    assert table.column("day 2 crp").tolist() == [3, 7]


def test_empty_cells_around_the_table_are_nothing(path: Path) -> None:
    def change(_: Any, sheet: Any) -> None:
        sheet["Z900"].number_format = "0%"  # formatted, without a value
        sheet["B40"] = "  "

    table = read_table(make(path, [[None, *HEADER], *([None, *row] for row in ROWS), [], [None, 30, 1, "f", 0]], change))
    assert table.names == tuple(HEADER) and len(table) == 5
    assert table.where(4) == "row 7 (the header is row 1)"


def test_the_index_of_a_data_frame_is_a_column(path: Path) -> None:
    pd.DataFrame(ROWS, columns=HEADER).to_excel(path)
    assert read_table(path).names == ("index", *HEADER)


def test_columns_without_a_name_are_refused_by_their_letters(path: Path) -> None:
    error = refusal(make(path, [["age", None, None, "sex"], [1, 2, 3, "f"]]))
    assert "columns B and C of sheet 'Patients'" in str(error) and error.code == "missing-header"
    assert refusal(make(path, [[1.5, 2], [3, 4]])).code == "missing-header"
    assert refusal(make(path, [["a", "a"], [3, 4]])).code == "repeated-column"
    assert refusal(make(path, [["a", "b"]])).code == "empty-table"


def test_a_row_of_groups_that_are_not_merged_is_named_as_the_cause(path: Path) -> None:
    """Before, the group's name was a repeated column, to be renamed; merged over its columns it is read."""
    rows = [["Core", "Core", "Lab", "Lab"], ["age", "sex", "crp", "died"], [50, "f", 1.5, "no"], [60, "m", 2.5, "yes"]]
    error = refusal(make(path, rows))
    assert error.code == "two-header-rows" and "row 1" in str(error) and "delete row 1" in str(error)

    def merge(book: Any, sheet: Any) -> None:
        sheet.merge_cells("A1:B1")
        sheet.merge_cells("C1:D1")

    assert read_table(make(path, rows, merge)).names == tuple(rows[1])
    assert refusal(make(path, [["a", "a"], ["x", "x"], ["y", "x"]])).code == "repeated-column"


def test_hidden_rows_are_read_and_a_last_row_of_sums_is_noted(path: Path) -> None:
    def hide(_: Any, sheet: Any) -> None:
        sheet.row_dimensions[3].hidden = True
        sheet.column_dimensions["B"].hidden = True

    table = read_table(make(path, [HEADER, *ROWS, ["Total", 16.6, None, 2]], hide))
    assert len(table) == 5
    assert "hidden column crp read like the others" in notes(table)
    assert "1 hidden row is read" in notes(table) and "row 6 starts with 'Total'" in notes(table)


# --- sheets ----------------------------------------------------------------------------------------


def add_sheets(book: Any, _: Any) -> None:
    book.create_sheet("Notes")["A1"] = "made by hand"
    book.create_sheet("Old")["A1"] = "x"
    book["Old"].sheet_state = "hidden"


def test_the_sheet_is_named_where_several_have_cells(path: Path) -> None:
    make(path, [HEADER, *ROWS], add_sheets)
    error = refusal(path)
    assert "2 sheets with cells: 'Patients', 'Notes'; choose one with --sheet" in str(error) and error.code == "sheet-not-set"
    assert len(read_table(path, form=Format(sheet="patients "))) == 4
    assert "did you mean 'Patients'?" in str(refusal(path, form=Format(sheet="Patient")))
    text = path.with_suffix(".csv")
    text.write_text("a,b\n1,2\n")
    assert refusal(text, form=Format(sheet="Patients")).code == "conflicting-settings"


def test_the_only_visible_sheet_with_cells_is_read(path: Path) -> None:
    def change(book: Any, sheet: Any) -> None:
        add_sheets(book, sheet)
        del book["Notes"]
        book.create_sheet("Empty", 0)

    table = read_table(make(path, [HEADER, *ROWS], change))
    assert len(table) == 4 and "sheet 'Patients'; hidden and not read: 'Old'" in notes(table)


# --- what cannot be read ---------------------------------------------------------------------------


def test_errors_in_cells_name_sheet_cell_and_column(path: Path) -> None:
    make(path, [["age", "bmi"], [50, "#N/A"], [60, "#DIV/0!"], [70, 21.5]])
    for cell in ("B2", "B3"):
        rewrite(path, "xl/worksheets/sheet1.xml", lambda xml, c=cell: re.sub(rf'(<c r="{c}"[^>]*?) t="\w+"', r'\1 t="e"', xml))
    error = refusal(path)
    assert str(error).startswith(f"cell B3 of sheet 'Patients' of {path} (column 'bmi') holds the error #DIV/0!")
    assert "--missing '#DIV/0!'" in str(error)
    table = read_table(path, missing=("", "#DIV/0!"))
    np.testing.assert_array_equal(table.column("bmi"), [np.nan, np.nan, 21.5])


def test_a_formula_without_a_value_is_refused_and_one_with_a_value_is_read(path: Path) -> None:
    make(path, [["a", "b"], [1, "=A2*2"], [2, "=A3*2"]])
    error = refusal(path)
    assert "cell B2 of sheet 'Patients'" in str(error) and error.code == "formula-without-value"
    rewrite(path, "xl/worksheets/sheet1.xml", lambda xml: re.sub(r"<v ?/>|<v></v>", "<v>8</v>", xml))
    assert read_table(path).column("b").tolist() == [8, 8]


@pytest.mark.parametrize(
    ("raw", "code", "word"),
    [
        (b"PK\x03\x04 and no more", "damaged-file", "not a complete Excel workbook"),
        (b"age,sex\n1,f\n", "unknown-file-type", "name it .csv"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), "encrypted-file", "remove the password"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 a workbook of 1997", "unknown-file-type", "Excel 97-2003"),
    ],
)
def test_files_that_are_no_workbook_get_one_sentence(path: Path, raw: bytes, code: str, word: str) -> None:
    path.write_bytes(raw)
    error = refusal(path)
    assert error.code == code and word in str(error)


@pytest.mark.parametrize("ending", [".xls", ".xlsb", ".ods"])
def test_other_spreadsheets_are_refused_with_the_way_to_save_them(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"book{ending}"
    file.write_bytes(b"x")
    assert "save it as .xlsx" in str(refusal(file))


def test_a_workbook_without_its_sheet_is_damaged(path: Path) -> None:
    make(path, [HEADER, *ROWS])
    rewrite(path, "xl/worksheets/sheet1.xml", lambda xml: xml[: len(xml) // 2])
    assert refusal(path).code == "damaged-file"


def test_entities_are_refused_in_any_part_and_encoding(path: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    for part in ("xl/worksheets/sheet1.xml", "xl/styles.xml", "xl/workbook.xml"):
        make(path, [HEADER, *ROWS])
        rewrite(path, part, lambda xml: bomb + re.sub(r"^<\?xml.*?\?>", "", xml))
        assert refusal(path).code == "unsafe-file"
    make(path, [HEADER, *ROWS])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("xl/extra.xml", (bomb + "<x/>").encode("utf-16"))
    assert refusal(path).code == "unsafe-file"


@pytest.mark.parametrize("name", ["xl/worksheets/sheet1.dat", "xl/worksheets/sheet1.svg"])
def test_entities_are_refused_whatever_the_name_of_the_part(path: Path, name: str) -> None:
    make(path, [HEADER, *ROWS])
    bomb = '<!DOCTYPE x [<!ENTITY a "61">]>'
    move(path, "xl/worksheets/sheet1.xml", name)
    assert len(read_table(path)) == 4
    rewrite(path, name, lambda xml: bomb + xml.replace("<v>61</v>", "<v>&a;</v>"))
    assert refusal(path).code == "unsafe-file"
    make(path, [HEADER, *ROWS])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("xl/media/image1.svg", '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "svg11.dtd"><svg/>')
        archive.writestr("xl/media/image2.png", b"\x89PNG\r\n")
    assert len(read_table(path)) == 4


def move(path: Path, part: str, name: str) -> None:
    """Give a part of a workbook another name, wherever it is referred to."""
    with zipfile.ZipFile(path) as archive:
        parts = {n: archive.read(n) for n in archive.namelist()}
    old, new = Path(part).name.encode(), Path(name).name.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for n, data in parts.items():
            archive.writestr(name if n == part else n, data.replace(old, new))


@pytest.mark.parametrize(
    "part", ["xl/workbook.xml", "xl/_rels/workbook.xml.rels", "xl/styles.xml", "docProps/core.xml", "[Content_Types].xml"]
)
def test_parts_that_are_no_xml_are_damaged(path: Path, part: str) -> None:
    make(path, [HEADER, *ROWS])
    rewrite(path, part, lambda xml: xml[: xml.rindex("</")] + "<x:y/>")
    assert refusal(path).code == "damaged-file"


SHARED = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"


def test_text_that_is_stored_once_counts_in_every_cell(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 20_000
    make(path, [HEADER, *[[k, k, "?", k % 2] for k in range(30)]])
    inline = '<c r="C(\\d+)" t="inlineStr"><is><t>\\?</t></is></c>'
    rewrite(path, "xl/worksheets/sheet1.xml", lambda xml: re.sub(inline, r'<c r="C\1" t="s"><v>0</v></c>', xml))
    kind = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{SHARED}"/></Types>'
    rewrite(path, "[Content_Types].xml", lambda xml: xml.replace("</Types>", kind))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        namespace = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{namespace}"><si><t>{long}</t></si></sst>')
    assert read_table(path).column("sex").tolist() == [long] * 30
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "4M")
    assert refusal(path).code == "unpacks-too-large"


def test_merged_text_counts_in_every_row(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [HEADER, [1, 1, "x" * 20_000, 1], *[[k, k, None, 0] for k in range(29)]]
    make(path, rows, lambda _, sheet: sheet.merge_cells("C2:C31"))
    assert len(set(read_table(path).column("sex"))) == 1
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "4M")
    assert refusal(path).code == "unpacks-too-large"


def test_cells_are_counted_as_they_are_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path, [HEADER, *[[k % 9, 1, 2, k % 2] for k in range(8000)]])
    rewrite(path, "xl/worksheets/sheet1.xml", lambda xml: re.sub(r' (r="\w+"|t="n")', "", xml))
    assert len(read_table(path)) == 8000
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "3900K")
    error = refusal(path)
    assert error.code == "unpacks-too-large" and "sheet 'Patients'" in str(error)


def test_a_row_without_end_and_many_styles_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path, [HEADER, *ROWS])
    monkeypatch.setattr(sheets, "_MOST_ELEMENTS", 1000)
    rewrite(path, "xl/worksheets/sheet1.xml", lambda xml: xml.replace("</row>", "<c/>" * 1001 + "</row>"))
    assert refusal(path).code == "damaged-file"
    make(path, [HEADER, *ROWS])
    rewrite(path, "xl/styles.xml", lambda xml: xml.replace("</cellXfs>", "<xf/>" * 20_000 + "</cellXfs>"))
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "10M")
    assert "styles" in str(refusal(path)) and refusal(path).code == "unpacks-too-large"


def test_an_archive_that_unpacks_to_too_much_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path, [HEADER, *ROWS])
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/media/zeros.bin", bytes(2**21))
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "1M")
    assert refusal(path).code == "unpacks-too-large"


def test_a_cell_far_away_costs_no_memory(path: Path) -> None:
    def change(_: Any, sheet: Any) -> None:
        sheet["A1048576"] = 5

    table = read_table(make(path, [["a", "b"], [1, 2]], change))
    assert table.column("a").tolist() == [1, 5] and table.where(1) == "row 1048576 (the header is row 1)"


def test_a_workbook_of_another_writer_without_cell_names_is_read(path: Path) -> None:
    def strip(xml: str) -> str:
        return re.sub(r' r="[A-Z]+\d+"', "", re.sub(r'<row r="\d+"', "<row", xml))

    make(path, [HEADER, *ROWS[:2]])
    rewrite(path, "xl/worksheets/sheet1.xml", strip)
    assert read_table(path).column("age").tolist() == [61, 72]


def test_a_workbook_with_macros_is_read_like_any_other(path: Path) -> None:
    make(path, [HEADER, *ROWS])
    macro = path.with_suffix(".xlsm")
    macro.write_bytes(path.read_bytes())
    assert read_table(macro).sha256() == read_table(path).sha256()
