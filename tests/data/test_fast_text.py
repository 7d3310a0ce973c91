"""The reader by Arrow and the strict reader: the same table bit for bit, or the same error, for every text."""

import gzip
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grandrounds.core.errors import BadInput
from grandrounds.data.fast_text import DELIMITERS, split_columns
from grandrounds.data.formats import DEFAULT_MISSING, PLAIN, Format
from grandrounds.data.text_file import decode_text, read_text

MARKS = frozenset(DEFAULT_MISSING)
NUMBERS = [
    "0", "-0", "5", "-5", "+5", "12", "007", "-01", "00", "0.5", "-.5", ".5", "5.", "5.e1", "1e5", "1E-5", "1e400", "1e-400",
    "-1e400", "1e", "e5", "0e5", "00.5", "0x10", "1_000", "inf", "-inf", "Infinity", "nan", "NaN", "NAN", "9007199254740992",
    "9007199254740993", "9007199254740994", "-9007199254740995", "12345678901234567890", "12345678901234567890.", "0.1",
    "2.2250738585072011e-308", "4.9e-324", "1.7976931348623157e308", "9007199254740993.0", "0.30000000000000004", "1.",
    "123456789.123456789", "6.02214076e23", "-999", "-999.0", "999", "1.234", "12.345", "1,5", "1,234", "1.234,5", "45%", "<5",
    "≤5", "1 234", "1'234", "−5", "1,", ",5", "\u0665", "5 ", " 5", "\t5", "5\xa0", "\x1f5", "5\x0b", "- 5", "1e+05", "+.5e-3",
]  # fmt: skip
WORDS = [
    "", " ", "  ", "NA", " NA", "NA ", "n/a", "?", ".", "null", "None", "a", "b ", " b", "female", "Ä", "日本", "a b", "\u2028",
    "\ufeff", "\x1c", "x\x85", "a\\", "'", "2024-05-31", "31.05.2024", "true", "#N/A", "<NA>", "-", "+", "e", "a\rb",
]  # fmt: skip
BROKEN = [
    '"',
    '""',
    'a"b',
    '"a',
    'a"',
    '"a"b',
    '"a" ',
    ' "a"',
    '"a\nb"',
    '"a\r\nb"',
    '"a,b"',
    '"a""b"',
    '""""',
    '"7"',
    '" 7"',
    '"NA"',
]


def outcome(raw: bytes, *, fast: bool, **options: Any) -> object:
    """Read a text by one of the readers; return all that a caller can see of it."""
    marks = options.pop("marks", MARKS)
    try:
        text = decode_text(raw, source="t.csv", encoding=options.get("form", Format()).text_encoding)
        table = read_text(text, source="t.csv", marks=marks, fast_size=0 if fast else sys.maxsize, **options)
    except BadInput as error:
        return str(error), error.code
    columns = [(name, values.dtype.str, contents(values)) for name, values in table.columns.items()]
    return columns, table.reading


def contents(values: np.ndarray) -> object:
    """Values as they compare: bits of numbers (one kind of NaN), and text with None."""
    if values.dtype == np.object_:
        assert all(v is None or type(v) is str for v in values)
        return values.tolist()
    return np.where(np.isnan(values), np.nan, values).tobytes()


def assert_same(raw: bytes, **options: Any) -> None:
    assert outcome(raw, fast=True, **dict(options)) == outcome(raw, fast=False, **dict(options))


def write(rows: Sequence[Sequence[str]], delimiter: str = ",", end: str = "\n", *, quotes: str = "needed") -> str:
    """Write rows as CSV; quotes: "needed", "all" or "none" (which may break the file)."""

    def cell(word: str) -> str:
        special = delimiter in word or '"' in word or "\n" in word or "\r" in word
        if quotes == "none" or (quotes == "needed" and not special):
            return word
        return '"' + word.replace('"', '""') + '"'

    return "".join(delimiter.join(map(cell, row)) + end for row in rows)


def is_read(text: str, width: int = 2, delimiter: str = ",") -> bool:
    """Tell whether the fast reader takes rows without a header."""
    raw = text.encode()
    formatted = [True] * width
    return split_columns(raw, 0, delimiter=delimiter, marks=MARKS, formatted=formatted, with_cells=True) is not None


CELL = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**17), 10**17).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.text(st.sampled_from('0123456789+-.,eE_ "a%<\xa0'), max_size=6),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=4),
)


@st.composite
def columns(draw: st.DrawFn, rows: int) -> list[str]:
    """A column that is mostly of one kind, so that numbers and text both occur."""
    few = draw(st.lists(CELL, min_size=1, max_size=4))
    plain = st.sampled_from(
        draw(st.sampled_from([["1", "2.5", "-3", "40", "", "NA"], ["1,5", "-,5", "1,234", "7", "", "2,", "+1,5"]]))
    )
    return draw(st.lists(st.sampled_from(few) | plain if draw(st.booleans()) else plain, min_size=rows, max_size=rows))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A table as text: mostly regular, sometimes with one fault in its structure."""
    delimiter, end = draw(st.sampled_from(DELIMITERS)), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    count, width = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    cells = [draw(columns(count)) for _ in range(width)]
    names = draw(
        st.sampled_from(
            [
                ["a", "b", "c", "d"],
                ["", "b", "c", ""],
                ["a", "a", "c", "d"],
                ["1", "2", "3", "4"],
                ['"a\nb"', "ü", " c", "d "],
            ]
        )
    )
    rows = [names[:width], *(list(row) for row in zip(*cells, strict=True))]
    text = write(rows, delimiter, end, quotes=draw(st.sampled_from(["needed", "needed", "all", "none"])))
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(text)))
        fault = draw(
            st.sampled_from([*BROKEN, *DELIMITERS, "\n", "\r", "\r\n", " ", "\n \n", "\n\n", "\0", "\x1a", end])
        )
        text = text[:place] + fault + text[place:]
    return text.removesuffix(end) if draw(st.booleans()) else text


FORMS = st.sampled_from(
    [
        Format(),
        Format(),
        PLAIN,
        Format(decimal=","),
        Format(decimal="."),
        Format(separator=","),
        Format(censored="half"),
    ]
)
MORE_MARKS = st.sampled_from(
    [MARKS, MARKS, MARKS | {"-999"}, MARKS | {"0", "5."}, frozenset({"?"}), frozenset[str](), MARKS | {"007", "1e400"}]
)
KINDS: Any = st.sampled_from([{}, {}, {"a": "numeric"}, {"b": "categorical"}, {"a": ["1", "2"]}])


@settings(max_examples=600, deadline=None)
@given(
    text=texts(), form=FORMS, marks=MORE_MARKS, kinds=KINDS, encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])
)
@example("a,b\n1,\ufeff2\n", Format(), MARKS, {}, "utf-8-sig")
@example("a,b\n\ufeffx,2\n", Format(), MARKS, {}, "utf-8")
@example('a,b\n"1,5",1\n"1\x00,5",1\n', Format(), MARKS, {}, "utf-16")
def test_any_text_gives_the_same_table_or_the_same_error(
    text: str, form: Format, marks: frozenset[str], kinds: Mapping[str, object], encoding: str
) -> None:
    assert_same(text.encode(encoding), form=form, marks=marks, kinds=kinds)


@settings(max_examples=300, deadline=None)
@given(cells=st.lists(CELL, min_size=1, max_size=30), marks=MORE_MARKS)
def test_any_cell_is_read_alike_alone_and_among_numbers(cells: list[str], marks: frozenset[str]) -> None:
    regular = [re.sub(r"\r(?!\n)|\0", "", cell) for cell in cells]
    rows = [["a", "b", "c"], *([str(i), cell, "1.5" if i else cell] for i, cell in enumerate(regular))]
    assert_same(write(rows).encode(), marks=marks)
    assert is_read(write(rows[1:]), 3)


@pytest.mark.parametrize("word", [*NUMBERS, *WORDS])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_one_odd_cell_in_a_column_of_numbers(word: str, delimiter: str) -> None:
    rows = [["a", "b"], *([str(i / 4), str(i)] for i in range(40)), [word, "1"], *([str(i), "NA"] for i in range(20))]
    for marks in (MARKS, MARKS | {"-999", "5"}):
        assert_same(write(rows, delimiter).encode(), marks=marks)


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "NA ",
        "1.5",
        "1,5,5",
        "1.234,5",
        "007,5",
        "-0,5",
        "45%",
        "1,5e3",
        "12345678901234567890",
        "-999",
        "-999,0",
        "\xa01,5",
        "x",
        "1,234",
    ],
)
def test_decimal_commas(odd: str) -> None:
    cells = [f"{i},{i % 100:02d}" for i in range(1500)]
    cells[1200] = odd
    rows = [["a", "b", "c"], *([cell, "1,234", "NA" if i % 2 else " 5 "] for i, cell in enumerate(cells))]
    for options in ({}, {"marks": MARKS | {"-999"}}, {"keep": ["a"]}, {"kinds": {"a": "categorical"}}, {"form": PLAIN}):
        assert_same(write(rows, ";").encode(), **options)
        assert_same(write(rows).encode(), **options)


def test_decimal_commas_are_not_read_word_by_word() -> None:
    raw = write([[f"{i},5", f"{i}"] for i in range(100)], ";").encode()
    (commas, plain) = split_columns(raw, 0, delimiter=";", marks=MARKS, formatted=[True, True], with_cells=True)
    assert commas.comma == "0,5" and plain.comma is None
    assert commas.values.tolist() == [i + 0.5 for i in range(100)]


@pytest.mark.parametrize("text", BROKEN)
def test_quotes_in_a_cell(text: str) -> None:
    for place in range(3):
        rows = [["x", "y", "z"] for _ in range(30)]
        rows[20][place] = text
        assert_same(write([["a", "b", "c"], *rows], quotes="none").encode())


def test_regular_files_are_read_by_arrow() -> None:
    """Parity says nothing if everything falls back to the strict reader."""
    assert is_read("1,2\n3,4\n")
    assert is_read("1,2\r\n\r\n3,4")
    assert is_read('"a","b ""c"" d"\n"x\ny","1,5"\n')
    assert is_read("1,5;007\nNA; x\n", delimiter=";")
    assert not is_read("1,2\n3\n"), "a row is short"
    assert not is_read('1,2\n"3,4\n'), "a quote is open"
    assert not is_read('1, "2"\n'), "a space is before a quote"
    assert not is_read("1,2\r3,4\n"), "lines end in several ways"


def test_numbers_that_are_marks_are_noted_as_the_strict_reader_does() -> None:
    """The strict reader names "-999" only if a cell of the same thousand rows is no number."""
    for gap in ([], [5], [2500], [5, 1500]):
        cells = [str(i % 7) for i in range(3000)]
        cells[10] = cells[1200] = cells[2600] = "-999"
        for place in gap:
            cells[place] = "NA"
        assert_same(write([["a", "b"], *([c, "x"] for c in cells)]).encode(), marks=MARKS | {"-999"})


def test_long_cells_many_blocks_and_words_that_appear_late() -> None:
    rng = np.random.default_rng(0)
    rows = [[repr(x), f"w{i % 5}", str(i), str(i)] for i, x in enumerate(rng.standard_normal(40_000).tolist())]
    rows[39_000][2], rows[38_000][3] = "late", "007"
    assert_same(write([["a", "b", "c", "d"], *rows]).encode())
    rows[39_500][1] = "x" * 131_073
    assert_same(write([["a", "b", "c", "d"], *rows]).encode())


def test_faults_far_down_name_their_line() -> None:
    rows = [["a", "b"], *([str(i), "x"] for i in range(5000))]
    rows[4000] = ["1", "2", "3"]
    message, code = outcome(write(rows).encode(), fast=True)
    assert code == "ragged-row" and message.startswith("line 4001 of t.csv has 3 cells")
    assert_same(write(rows).encode())


def test_windows_text_and_utf_16() -> None:
    text = write([["größe", "b"], *([f"{i},5", "é"] for i in range(50))], ";")
    for encoding in ("cp1252", "utf-16", "utf-8-sig"):
        assert_same(text.encode(encoding))
    assert_same("a,b\n1,\ud800\n".encode("utf-16", "surrogatepass"), form=Format(text_encoding="utf-16"))


def test_without_pyarrow_the_strict_reader_reads() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from grandrounds.data.text_file import FileText, read_text\n"
        "table = read_text(FileText(b'a,b\\n1,x\\n'), source='t.csv', marks=frozenset(), fast_size=0)\n"
        "assert table.columns['a'].tolist() == [1.0] and table.columns['b'].tolist() == ['x']"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


@pytest.mark.data("diabetes130", "eicu_demo")
@pytest.mark.parametrize(
    "name",
    [
        "diabetes130/diabetic_data.csv.gz",
        "eicu_demo/eicu_24h.csv.gz",
        "eicu_demo/diagnosis.csv.gz",
        "eicu_demo/patient.csv.gz",
    ],
)
def test_real_files(data_folder, name: str) -> None:
    raw = gzip.decompress((data_folder / name).read_bytes())
    assert_same(raw)
    assert_same(raw, form=PLAIN)
