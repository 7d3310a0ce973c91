"""Tables as hospitals export them: each loads with a statement of what was assumed, or stops with the flag to add."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.data.formats import Format, date_format, parse_cell, read_dates
from grandrounds.data.readers import read_table
from tests.command import rounds

N = 240
FLAGS = ("--label", "died", "--site", "hospital")

Columns = dict[str, list[str]]


def patients(n: int = N) -> Columns:
    """A table that reads cleanly: two measurements, sex, four hospitals, a label that follows from age."""
    rng = generator(3, purpose="awkward tables")
    age, crp = rng.integers(20, 95, n), np.round(rng.lognormal(2, 1, n), 1) + 0.1
    died = age + rng.normal(0, 25, n) > 75
    return {
        "age": [str(v) for v in age],
        "crp": [f"{v:.1f}" for v in crp],
        "sex": ["f" if v else "m" for v in rng.random(n) < 0.5],
        "hospital": [("north", "south", "east", "west")[i % 4] for i in range(n)],
        "died": ["yes" if v else "no" for v in died],
    }


def as_text(columns: Mapping[str, Sequence[str]], separator: str = ",") -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def write(
    folder: Path, columns: Mapping[str, Sequence[str]], *, separator: str = ",", encoding: str = "utf-8",
    name: str = "t.csv",
) -> Path:  # fmt: skip
    path = folder / name
    path.write_bytes(as_text(columns, separator).encode(encoding))
    return path


def check(path: Path, *more: object, flags: Sequence[object] = FLAGS) -> str:
    """What `rounds data check` prints of a table that it accepts."""
    process = rounds("data", "check", path, *flags, *more, env={"COLUMNS": "300"})
    assert process.returncode == 0, process.stderr
    return process.stdout


def refused(path: Path, *more: object, flags: Sequence[object] = FLAGS) -> str:
    """The one sentence of a table that it refuses."""
    process = rounds("data", "check", path, *flags, *more, env={"COLUMNS": "300"})
    assert process.returncode == 2, process.stdout
    assert "Traceback" not in process.stderr and len(process.stderr.strip().splitlines()) == 1
    return process.stderr


def kind(said: str, column: str) -> str:
    """The kind that `rounds data check` shows for a column."""
    row = next(line for line in said.splitlines() if line.startswith("│") and line.split("│")[1].strip() == column)
    return row.split("│")[2].strip()


def commas(words: Sequence[str]) -> list[str]:
    return [w.replace(".", ",") for w in words]


# --- how text is written ---------------------------------------------------------------------------


def test_a_european_excel_export(tmp_path: Path) -> None:
    clean = patients()
    path = write(tmp_path, {**clean, "crp": commas(clean["crp"])}, separator=";")
    message = check(path)
    assert "assumed: cells are separated by a semicolon" in message
    assert "assumed: decimal comma in column crp" in message
    assert kind(message, "crp") == "numeric"
    np.testing.assert_array_equal(read_table(path).column("crp"), [float(w) for w in clean["crp"]])


def test_windows_1252_and_latin_1(tmp_path: Path) -> None:
    clean = patients()
    table = {**clean, "Größe": clean["age"], "hospital": ["Köln", "Süd"] * (N // 2)}
    for encoding in ("cp1252", "latin-1"):
        path = write(tmp_path, table, encoding=encoding)
        message = check(path)
        assert "assumed: read as Windows-1252 (column 'Größe')" in message
        assert set(read_table(path).column("hospital")) == {"Köln", "Süd"}
        assert "Windows-1252" not in check(path, "--text-encoding", encoding)


def test_utf_16_with_its_mark_and_tabs(tmp_path: Path) -> None:
    path = write(tmp_path, {**patients(), "Größe": patients()["age"]}, encoding="utf-16", separator="\t")
    message = check(path)
    assert "assumed: read as UTF-16" in message and "assumed: cells are separated by a tab" in message
    assert "assumed" not in check(path, "--text-encoding", "utf-16", "--separator", "tab")


def test_an_encoding_that_cannot_be_guessed_names_the_flag(tmp_path: Path) -> None:
    path = write(tmp_path, {**patients(), "hospital": ["Süd", "West"] * (N // 2)}, encoding="cp850")
    assert "--text-encoding" in refused(path)
    assert set(read_table(path, form=Format(text_encoding="cp850")).column("hospital")) == {"Süd", "West"}
    assert "not known" in refused(path, "--text-encoding", "klingon")
    assert "is not utf-8 text" in refused(path, "--text-encoding", "utf-8")


def test_a_workbook_of_another_format_names_the_way_to_one_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "book.xls"
    path.write_bytes(b"PK\x03\x04")
    assert "open it in Excel and save it as .xlsx (Excel Workbook) or as CSV UTF-8" in refused(path)
    path.rename(tmp_path / "book.csv")
    assert "name an Excel workbook .xlsx" in refused(tmp_path / "book.csv")


# --- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["1,234.56", "12.50", "1,000,000.00"], [1234.56, 12.5, 1e6]),
        (["1.234,56", "12,50", "1.000.000"], [1234.56, 12.5, 1e6]),
        (["1 234,5", "12,5", "1\u00a0234\u00a0567,25"], [1234.5, 12.5, 1234567.25]),
        (["1'234.5", "12.5", "3"], [1234.5, 12.5, 3]),
        (["1,234,567", "1,234", "12"], [1234567, 1234, 12]),
        (["-1,5", "+2", "−3,25"], [-1.5, 2, -3.25]),
        (["45%", "7,5 %", "0"], [45, 7.5, 0]),
        (["1,5", "2.25", "3"], [1.5, 2.25, 3]),
    ],
)
def test_formatted_numbers(tmp_path: Path, words: list[str], want: list[float]) -> None:
    table = read_table(write(tmp_path, {"k": ["a", "b", "c"] * 20, "x": words * 20}))
    np.testing.assert_array_equal(table.column("x"), want * 20)
    assert table.reading is not None and any("x" in note for note in table.reading.notes)


@pytest.mark.parametrize(
    "words",
    [
        ["007", "1,5", "2"],  # a code among them
        ["<40", ">=40", "<40"],  # levels
        ["0", "1", ">1"],
        ["10%", "5", "7"],  # with and without a sign
        ["123 456 789", "223 456 789", "323 456 789"],  # numbers of persons
        ["1.2.3", "1.2.4", "2.0.0"],
        ["120/80", "130/85", "110/70"],
        ["1,2,3", "2", "1,3"],  # a list of choices
        ["12345678901234567", "1,5", "2"],
    ],
)
def test_text_that_only_resembles_numbers_stays(tmp_path: Path, words: list[str]) -> None:
    assert read_table(write(tmp_path, {"x": words * 20})).column("x").tolist() == words * 20


def test_money_and_percent(tmp_path: Path) -> None:
    n = range(N)
    path = write(tmp_path, {**patients(), "cost": [f"{900 + 37 * i:,}.50" for i in n], "share": [f"{i}%" for i in n]})
    message = check(path)
    assert "assumed: thousands separators in column cost (such as '1,011.50')" in message
    assert "assumed: percent signs in column share" in message
    assert kind(message, "cost") == kind(message, "share") == "numeric"


def test_a_lone_1_234_is_settled_by_the_file_or_by_a_flag(tmp_path: Path) -> None:
    clean = patients()
    lone = ["1,234" if i % 2 else "980" for i in range(N)]
    us = read_table(write(tmp_path, {**clean, "cells": lone}))
    assert us.column("cells").max() == 1234  # crp writes 12.5
    german = {**clean, "crp": commas(clean["crp"]), "cells": lone}
    assert read_table(write(tmp_path, german, separator=";")).column("cells").min() == 1.234
    nothing = write(tmp_path, {**clean, "crp": clean["age"], "cells": lone})
    sentence = refused(nothing)
    assert "'1,234' can mean 1234 or 1.234" in sentence
    assert "--decimal . for 1234 or --decimal , for 1.234" in sentence
    assert "thousands separators in column cells" in check(nothing, "--decimal", ".")
    assert "decimal comma in column cells" in check(nothing, "--decimal", ",")
    assert kind(check(nothing, "--drop", "cells"), "cells") == "drop"
    mixed = write(tmp_path, {**clean, "dose": ["1,5", "2,5"] * (N // 2), "cells": lone})
    assert "can mean" in refused(mixed)  # crp writes 12.5, dose 1,5


def test_points_in_a_file_with_decimal_commas_separate_thousands(tmp_path: Path) -> None:
    clean = patients()
    thousands = ["1.234" if i % 2 else "980" for i in range(N)]
    german = write(tmp_path, {**clean, "crp": commas(clean["crp"]), "cells": thousands}, separator=";")
    assert read_table(german).column("cells").tolist() == [1234.0 if i % 2 else 980.0 for i in range(N)]
    assert "thousands separators in column cells (such as '1.234')" in check(german)
    plain = write(tmp_path, {**clean, "cells": thousands})
    assert read_table(plain).column("cells").min() == 1.234 and "assumed" not in check(plain)
    semicolons = write(tmp_path, {"cells": thousands}, separator=";")
    assert read_table(semicolons, sep=";").reading.notes[-1].endswith("add --decimal ,")  # type: ignore[union-attr]


def test_below_and_above_detection(tmp_path: Path) -> None:
    clean = patients()
    crp = ["<5" if float(w) < 5 else ">30" if float(w) > 30 else w for w in clean["crp"]]
    path, low, high = write(tmp_path, {**clean, "crp": crp}), crp.count("<5"), crp.count(">30")
    message = check(path)
    assert f"'<5', '>30' in {low + high} cells of crp read as 5, 30 (data.censored = value)" in message
    assert kind(message, "crp") == "numeric"
    values = read_table(path).column("crp")
    assert (values == 5).sum() >= low and values.min() == 5 and values.max() == 30
    half = read_table(path, form=Format(censored="half")).column("crp")
    assert (half == 2.5).sum() == low and half.max() == 30
    assert np.isnan(read_table(path, form=Format(censored="missing")).column("crp")).sum() == low + high
    assert "read as missing (data.censored = missing)" in check(path, "--censored", "missing")
    assert "read as 2.5, 30 (data.censored = half)" in check(path, "--set", "data.censored=half")


def test_points_and_other_words_for_missing(tmp_path: Path) -> None:
    clean = patients()
    crp = ["." if i % 9 == 0 else "#NV" if i % 9 == 1 else w for i, w in enumerate(clean["crp"])]
    path = write(tmp_path, {**clean, "crp": crp})
    message = check(path)
    assert "assumed: '.' read as missing in column crp" in message and "'#NV' read as missing" in message
    assert kind(message, "crp") == "numeric"
    some = ["haemolysed" if w == "." and i % 2 else w for i, w in enumerate(crp)]
    words = write(tmp_path, {**clean, "crp": some})
    sentence = refused(words)
    assert "first 'haemolysed'" in sentence and "--missing WORD" in sentence
    message = check(words, "--missing", "haemolysed")
    assert "'haemolysed' read as missing" in message and "'#NV' read as missing" in message  # added to the others
    assert kind(message, "crp") == "numeric"


def test_percent_signs_on_some_cells_are_refused(tmp_path: Path) -> None:
    share = [f"{i % 80}%" if i % 2 else f"0.{i % 80}1" for i in range(N)]
    path = write(tmp_path, {**patients(), "share": share})
    assert "with and without a percent sign" in refused(path)
    assert kind(check(path, "--set", "data.kinds.share=categorical"), "share") == "categorical"


# --- dates -----------------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{d:02}.{m:02}.2023", "dd.mm.yyyy"),
        ("{m:02}/{d:02}/2023", "mm/dd/yyyy"),
        ("{d:02}/{m:02}/2023 08:30", "dd/mm/yyyy"),
        ("{d}.{m}.2023 8:30:15", "dd.mm.yyyy"),
        ("{d:02}.{m:02}.23", "dd.mm.yy"),
        ("2023/{m:02}/{d:02}", "yyyy/mm/dd"),
    ],
)
def test_dates_are_left_out_and_can_order_rows(tmp_path: Path, written: str, said: str) -> None:
    days = [(i % 12 + 1, i % 28 + 1) for i in range(N)]
    dates = [written.format(m=m, d=d) for m, d in days]
    path = write(tmp_path, {**patients(), "admitted": dates})
    shown = check(path)
    assert kind(shown, "admitted") == "drop" and f"dates ({said})" in shown
    check(path, "--set", "data.time=admitted", "--set", "split.by=time")
    seconds = read_dates(dates, "auto")
    assert seconds is not None
    assert sorted(range(N), key=lambda i: (seconds[i], i)) == sorted(range(N), key=lambda i: (*days[i], i))


def test_dates_that_can_be_read_in_two_ways(tmp_path: Path) -> None:
    dates = [f"{i % 12 + 1:02}/{i % 11 + 1:02}/2020" for i in range(N)]
    path = write(tmp_path, {**patients(), "admitted": dates})
    assert "dates (dd/mm/yyyy or mm/dd/yyyy)" in check(path)  # left out either way
    ordered = ("--set", "data.time=admitted", "--set", "split.by=time")
    assert "--set data.dates=day-first" in refused(path, *ordered)
    check(path, *ordered, "--set", "data.dates=month-first")
    march, april = read_dates(["03/04/2020", "04/03/2020"], "day-first"), read_dates(["03/04/2020"], "month-first")
    assert march is not None and april is not None and march[0] > march[1] == april[0]


def test_dates_of_sas_and_words_that_are_none() -> None:
    assert date_format({"25MAY2023": 3, "1-Dec-2023": 2}) == "dd-mon-yyyy"
    for word in ("32.13.2023", "1.2.3", "120/80", "2023", "12.5.1", "99/99/2020"):
        assert date_format({word: 5}) == ""


# --- the same way in every command -----------------------------------------------------------------


def test_a_run_says_records_and_reads_new_patients_the_same_way(tmp_path: Path) -> None:
    clean = patients()
    crp = commas(clean["crp"])
    crp[::20] = ["<5"] * len(crp[::20])
    path = write(
        tmp_path, {**clean, "crp": crp, "hospital": ["Köln", "Süd"] * (N // 2)}, separator=";", encoding="cp1252"
    )
    quick = ("--set", "method.rounds=2", "--set", "explain.sketch=none")
    process = rounds("run", "--table", path, *FLAGS, *quick, "--out", tmp_path / "run")
    assert process.returncode == 0, process.stderr
    wanted = ["read as Windows-1252", "cells are separated by a semicolon", "decimal comma in column crp"]
    limit = f"'<5' in {len(crp[::20])} cells of crp read as 5 (data.censored = value)"
    schema = json.loads((tmp_path / "run" / "schema.json").read_text())
    assert schema["assumed"] == [*wanted, limit]
    for note in schema["assumed"]:
        assert f"assumed: {note}" in process.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["assumed"] == schema["assumed"]
    assert "decimal comma in column crp" in (tmp_path / "run" / "report.html").read_text()
    assert 'decimal = ","' in (tmp_path / "run" / "experiment.toml").read_text()
    again = rounds("run", tmp_path / "run" / "experiment.toml", "--out", tmp_path / "again", "--quiet")
    assert again.returncode == 0, again.stderr  # the hash of what was read is the same
    new = tmp_path / "new.csv"  # nothing but the run shows that 1,234 is below 2
    new.write_text('age,crp,sex\n70,"1,234",f\n')
    plain = tmp_path / "plain.csv"
    plain.write_text("age,crp,sex\n70,1.234,f\n", encoding="utf-8")
    scored = [rounds("predict", tmp_path / "run", "--table", file, *more)
              for file, more in ((new, ()), (plain, ("--decimal", ".")))]  # fmt: skip
    assert scored[0].stdout == scored[1].stdout != ""
    assert "assumed: decimal comma in column crp" in scored[0].stderr


def test_sites_of_one_consortium_may_export_differently(tmp_path: Path) -> None:
    clean = patients()
    local = {name: words for name, words in clean.items() if name != "hospital"}
    north = write(tmp_path, {**local, "crp": commas(local["crp"])}, separator=";", encoding="cp1252", name="north.csv")
    south = write(tmp_path, local, name="south.csv")
    draft = rounds("site", "schema", south, "--label", "died")
    (tmp_path / "consortium.toml").write_text(draft.stdout)
    for file, note in ((north, "assumed: decimal comma in column crp"), (south, "rows, 3 agreed columns: fits")):
        checked = rounds("site", "check", "--data", file, "--schema", tmp_path / "consortium.toml")
        assert checked.returncode == 0 and note in checked.stdout, checked.stdout + checked.stderr


def test_flags_without_a_table_are_refused() -> None:
    process = rounds("run", "breast-cancer", "--decimal", ",")
    assert process.returncode == 2 and "--decimal is for a table of your own" in process.stderr


def test_every_cell_format_is_a_number_or_none() -> None:
    for word in ("", "x", "1,23,4", "1.2,3.4", "%", "<", "--1", "1e", ",", ".", "1 23", "12 3456", "0x1"):
        assert parse_cell(word) is None


# --- labels, sites and flags -----------------------------------------------------------------------


def test_a_label_that_may_be_a_count_or_codes_is_asked_for_its_task(tmp_path: Path) -> None:
    days = [str(i * i % 31) for i in range(N)]
    path = write(tmp_path, {**patients(), "los_int": days, "los": [f"{i % 9}.06" for i in range(N)]})
    sentence = refused(path, flags=("--label", "los_int", "--site", "hospital"))
    assert "may be a measurement, a count or codes of classes: say --task regression, --task count" in sentence
    sentence = refused(path, flags=("--label", "los", "--task", "classification", "--site", "hospital"))
    assert "looks like a measurement (it holds 0.06), but data.task is 'classification': say --task regression" in sentence
    assert "did you mean" not in sentence
    ten = write(tmp_path, {**patients(), "digit": [str(i % 10) for i in range(N)]})
    said = check(ten, flags=("--label", "digit", "--site", "hospital"))
    assert f"classes: 0 {N // 10}" in said and "10 different whole numbers, which are read as classes" in said
    said = check(ten, flags=("--label", "digit", "--task", "classification", "--site", "hospital"))
    assert "which are read as classes" not in said


def test_missing_labels_and_small_sites_show_the_command(tmp_path: Path) -> None:
    clean = patients()
    gaps = write(tmp_path, {**clean, "died": ["", *clean["died"][1:]]})
    assert "--set data.drop_unlabelled=true" in refused(gaps)
    assert f"{N - 1} rows" in check(gaps, "--set", "data.drop_unlabelled=true")
    small = write(tmp_path, {**clean, "hospital": ["tiny"] * 3 + ["north", "south", "east"] * (N // 3 - 1)})
    assert "--set split.min_rows=3" in refused(small)
    assert "4 sites" in check(small, "--set", "split.min_rows=3")


def test_no_label_lists_the_columns_and_shows_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, patients())
    for process in (rounds("run", "--table", path), rounds("data", "check", path)):
        assert process.returncode == 2 and "has the columns age, crp, sex, hospital, died: name it" in process.stderr
    process = rounds("run", path)
    assert process.returncode == 2 and f"rounds run {path} --label COLUMN" in process.stderr


# --- warnings --------------------------------------------------------------------------------------


def test_a_clean_table_has_no_warnings_and_no_assumptions(tmp_path: Path) -> None:
    message = check(write(tmp_path, patients()))
    assert "warning" not in message and "assumed" not in message


def test_no_site_and_one_site(tmp_path: Path) -> None:
    clean = patients()
    message = check(write(tmp_path, clean), flags=("--label", "died"))
    assert "no --site: rows are dealt to 10 simulated sites" in message and "add --site hospital" in message
    plain = {name: words for name, words in clean.items() if name != "hospital"}
    message = check(write(tmp_path, plain), flags=("--label", "died"))
    assert "no --site: rows are dealt to 10 simulated sites" in message and "add --site" not in message
    path = write(tmp_path, {**clean, "hospital": ["north"] * N})
    message = check(path)
    assert "one site: 'hospital' has the same value in all rows" in message and "no --site" not in message
    run = ("run", path, *FLAGS, "--set", "method.rounds=1", "--out", tmp_path / "run")
    assert "[one-site]" in rounds(*run).stderr and not (tmp_path / "run").exists()
    assert rounds(*run, "--method", "pooled").returncode == 0


def test_copies_of_rows(tmp_path: Path) -> None:
    clean = {"stay_id": [str(i) for i in range(N)], **patients()}
    copied = {name: [*words, *words[:50]] for name, words in clean.items()}
    assert "50 rows are copies of another row" in check(write(tmp_path, copied))
    few = {name: [*words, *words[:50]] for name, words in patients().items()}  # five columns, no number of a stay
    assert "50 rows are copies of another row" in check(write(tmp_path, few))
    assert "of another row" not in check(write(tmp_path, patients()))
    coarse = {name: words for name, words in patients().items() if name in ("sex", "hospital", "died")}
    assert "of another row" not in check(write(tmp_path, coarse))  # equal by chance


def test_patients_on_both_sides_of_the_split(tmp_path: Path) -> None:
    path = write(tmp_path, {"patient_nbr": [f"P{i // 8}" for i in range(N)], **patients()})
    message = check(path)
    assert "column 'patient_nbr' looks like a patient's number" in message and "--patient patient_nbr" in message
    assert "looks like a patient" not in check(path, "--patient", "patient_nbr")


def test_survival_and_outcome_columns(tmp_path: Path) -> None:
    clean = patients()
    for name in ("time", "futime", "os_months", "followup_days", "Time_to_death"):
        message = check(write(tmp_path, {**clean, name: clean["age"]}))
        assert f"column '{name}' looks like a follow-up time beside 'died'" in message and f"--drop {name}" in message
    message = check(write(tmp_path, {**clean, "dnr": clean["sex"], "discharge status": clean["sex"]}))
    assert "columns 'dnr', 'discharge status' are named like an outcome" in message
    for innocent in ("prothrombin_time", "heart_rate", "oestradiol", "age_years"):
        assert "warning" not in check(write(tmp_path, {**clean, innocent: clean["age"]}))


def test_spellings_of_one_level_and_measurements_with_words(tmp_path: Path) -> None:
    clean = patients()
    sex = [("M", "m", "male", "F", "f", "female", "d")[i % 7] for i in range(N)]
    message = check(write(tmp_path, {**clean, "sex": sex}))
    assert "column 'sex' has levels that may mean the same ('F', 'f', 'female'; 'M', 'm', 'male')" in message
    words = ["haemolysed" if i % 5 == 0 else w for i, w in enumerate(clean["crp"])]
    assert "if 'haemolysed' means missing, add --missing haemolysed" in check(write(tmp_path, {**clean, "crp": words}))


def test_few_events_and_a_threshold_that_flags_nobody(tmp_path: Path) -> None:
    clean = patients(300)
    path = write(tmp_path, {**clean, "died": ["yes" if i % 60 == 0 else "no" for i in range(300)]})
    assert "with fewer than 10 the test figures are mostly chance" in check(path)
    process = rounds(
        "run", "--table", path, *FLAGS, "--set", "method.rounds=2", "--set", "explain.sketch=none", "--out",
        tmp_path / "run",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    warnings = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    events = next(w for w in warnings if "('yes') among" in w)
    nobody = next(w for w in warnings if "flags nobody" in w)
    assert "evaluation.threshold=youden" in nobody
    for warning in (events, nobody):
        assert warning.split(":")[0] in " ".join(process.stdout.split())
        assert warning[:40].replace("'", "&#x27;") in (tmp_path / "run" / "report.html").read_text()


def test_evaluation_on_rows_that_were_trained_on(tmp_path: Path) -> None:
    clean = patients(300)
    first = {name: words[:240] for name, words in clean.items()}
    path = write(tmp_path, first)
    run = rounds(
        "run", "--table", path, *FLAGS, "--set", "method.rounds=2", "--set", "explain.sketch=none", "--out",
        tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    part = write(tmp_path, {name: words[:100] for name, words in clean.items()}, name="part.csv")
    new = write(tmp_path, {name: words[240:] for name, words in clean.items()}, name="new.csv")
    message = {file: rounds("evaluate", tmp_path / "run", "--table", file).stdout for file in (path, part, new)}
    assert "this is the table that the run was trained on" in message[path]
    assert "of 100 rows were trained on" in message[part]
    assert "trained on" not in message[new] and "accuracy" in message[new]
