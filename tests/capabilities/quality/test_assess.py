"""Each fault by a table made for it, and a clean table of another hospital that must not alarm."""

from __future__ import annotations

import datetime
import gzip

import numpy as np
import pytest

from grandrounds.capabilities.quality.assessment.assess import assess_data, assess_table
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.table import Table, to_text
from tests.command import rounds

TODAY = datetime.date(2026, 1, 1)


def patients(seed: int, n: int = 400) -> Table:
    """Patients of one hospital: sex goes with height, mean pressure with the lowest, wards with age, every tenth returns."""
    rng = np.random.default_rng(seed)
    female = rng.random(n) < 0.5
    age = np.round(rng.normal(60, 15, n).clip(18, 95))
    pressure = rng.normal(92, 12, n)
    ward = np.where(age + rng.normal(0, 6, n) > 62, "médecine", "chirurgie")
    ward = np.where(rng.random(n) < 0.15, "réanimation", ward)
    died = rng.random(n) < 1 / (1 + np.exp(-(age - 85) / 8))
    admitted = np.datetime64("2014-01-01") + rng.integers(0, 700, n)
    pid = [f"{seed}-{i}" for i in range(n)]
    back = rng.choice(n // 2, n // 10, replace=False)
    for i in back:
        pid[int(i) + n // 2] = pid[int(i)]
        female[i + n // 2] = female[i]
    return Table.from_mapping(
        {
            "pid": pid,
            "sex": np.where(female, "F", "M").tolist(),
            "age": age,
            "height": np.round(np.where(female, 163, 177) + rng.normal(0, 7, n), 1),
            "glucose": np.round(np.exp(rng.normal(np.log(125), 0.3, n)), 1),
            "pressure_min": np.round(pressure - np.abs(rng.normal(12, 4, n)), 1),
            "pressure_mean": np.round(pressure, 1),
            "stay": np.ceil(rng.gamma(2, 3, n)),
            "ward": ward.tolist(),
            "ventilated": (rng.random(n) < 0.12).astype(float),
            "admitted": admitted.astype(str).tolist(),
            "discharged": (admitted + rng.integers(1, 15, n)).astype(str).tolist(),
            "died": np.where(died, "yes", "no").tolist(),
        },
        source="site.csv",
    )


@pytest.fixture(scope="module")
def schema() -> DataSchema:
    drafted = draft_schema(patients(0, 1500), label="died", patient="pid", quantiles=True).to_dict()
    drafted["columns"]["glucose"]["unit"] = "mg/dL"  # a table does not state its units
    drafted["columns"]["stay"]["unit"] = "days"
    return DataSchema.from_dict(drafted)


def find(table: Table, schema: DataSchema, **options) -> set[tuple[str, str]]:
    return {(f.code, f.column) for f in assess_table(table, schema, today=TODAY, **options).findings}


@pytest.mark.parametrize("seed", range(1, 9))
def test_clean_tables_of_other_hospitals_have_no_finding(schema, seed):
    assert find(patients(seed, 150), schema) == set()


def change(table: Table, **columns) -> Table:
    return table.with_columns(columns)


def test_another_unit_is_named_in_all_rows_and_in_some(schema):
    clean = patients(1)
    glucose = clean.columns["glucose"]
    assert ("units", "glucose") in find(change(clean, glucose=glucose / 18.016), schema)
    some = np.where(np.arange(400) % 3 == 0, glucose / 18.016, glucose)
    assert find(change(clean, glucose=some), schema) == {("units", "glucose")}
    stay = clean.columns["stay"]
    weeks = np.where(np.arange(400) % 3 == 0, np.round(stay / 7, 4), stay)
    assert ("units", "stay") in find(change(clean, stay=weeks), schema)


def test_a_factor_is_named_where_no_measure_is_known(schema):
    clean = patients(1)
    assert ("units", "pressure_mean") in find(change(clean, pressure_mean=clean.columns["pressure_mean"] * 1000), schema)


@pytest.mark.parametrize("pair", [("age", "height"), ("pressure_min", "pressure_mean"), ("sex", "ward"), ("age", "sex")])
def test_exchanged_columns_are_named_as_a_pair_and_nothing_else_is(schema, pair):
    clean = patients(2)
    a, b = pair
    codes = find(change(clean, **{a: clean.columns[b], b: clean.columns[a]}), schema)
    assert {("swapped-columns", a), ("swapped-columns", b)} <= codes
    assert not any(code in ("units", "recoded-category", "not-a-number") for code, _ in codes)


def test_a_column_sorted_by_itself_is_named(schema):
    drafted = schema.to_dict()
    drafted["columns"]["pressure_mean"]["relations"] = {"pressure_min": 0.9, "height": 0.6}
    agreed = DataSchema.from_dict(drafted)
    clean = patients(2)
    mean = clean.columns["pressure_mean"]
    correlated = change(clean, height=170 + 0.8 * (mean - 92) + np.random.default_rng(0).normal(0, 3, 400))
    assert "misaligned-column" not in {code for code, _ in find(correlated, agreed)}
    assert ("misaligned-column", "pressure_mean") in find(change(correlated, pressure_mean=np.sort(mean)), agreed)


def shift(table: Table, name: str, days: int) -> list[str]:
    return [str(np.datetime64(day) + days) for day in table.columns[name].tolist()]


def test_shifted_and_impossible_dates_are_named(schema):
    clean = patients(3)
    assert schema.dates[1].after == ("admitted",)
    later = find(change(clean, admitted=shift(clean, "admitted", 365)), schema)
    assert {("shifted-dates", "admitted"), ("impossible-date", "discharged")} <= later
    both = {name: shift(clean, name, 1462) for name in ("admitted", "discharged")}
    assert {("shifted-dates", "admitted"), ("shifted-dates", "discharged")} == find(change(clean, **both), schema)
    assert ("shifted-dates", "discharged") in find(change(clean, discharged=shift(clean, "discharged", 60)), schema)
    assert ("impossible-date", "admitted") in find(change(clean, admitted=shift(clean, "admitted", 36525)), schema)
    days = [str(np.datetime64("2014-01-01") + 31 * (i % 20) // 1)[:8] + f"{i % 12 + 1:02d}" for i in range(400)]
    assert ("shifted-dates", "admitted") in find(change(clean, admitted=days), schema)


def test_copied_patients_are_named_under_any_number(schema):
    clean = patients(4)
    again = np.arange(30, 70)
    rows = np.concatenate([np.arange(400), again])
    copied = clean.take(rows)
    assert ("repeated-rows", "") in find(copied, schema)
    numbers = [*clean.columns["pid"].tolist(), *(f"new{i}" for i in range(40))]
    renamed = change(copied, pid=numbers)
    assert find(renamed, schema) == {("same-patient", "pid")}
    ages = copied.columns["age"].copy()
    ages[400:] += 1
    assert ("same-patient", "pid") in find(change(renamed, age=ages), schema)


def test_patients_who_share_a_number_are_named_by_their_sex(schema):
    assert schema.fixed == ("sex",)
    clean = patients(4)
    cut = [f"{word.split('-')[0]}-{int(word.split('-')[1]) // 2}" for word in clean.columns["pid"].tolist()]
    assert ("repeated-patients", "pid") in find(change(clean, pid=cut), schema)


def test_recoded_categories_are_named(schema):
    clean = patients(5)
    sex, ward = (to_text(clean.columns[name]).tolist() for name in ("sex", "ward"))
    assert find(change(clean, sex=[{"F": "1", "M": "2"}[w] for w in sex]), schema) == {("recoded-category", "sex")}
    other = {"F": "M", "M": "F"}
    assert ("recoded-category", "sex") in find(change(clean, sex=[other[w] for w in sex]), schema)
    turned = {"médecine": "chirurgie", "chirurgie": "réanimation", "réanimation": "médecine"}
    assert ("recoded-category", "ward") in find(change(clean, ward=[turned[w] for w in ward]), schema)
    assert ("recoded-category", "ventilated") in find(change(clean, ventilated=1 - clean.columns["ventilated"]), schema)


def test_columns_that_tell_the_label_are_named(schema):
    clean = patients(6)
    died = np.asarray(clean.columns["died"] == "yes")
    glucose = clean.columns["glucose"]
    assert ("label-leak", "glucose") in find(change(clean, glucose=np.where(died, 200.0, 90.0) + glucose / 10), schema)
    assert ("label-leak", "height") in find(change(clean, height=np.where(died, np.nan, clean.columns["height"])), schema)


def test_exchanged_classes_and_a_column_that_stops_are_named(schema):
    clean = patients(7)
    flipped = ["yes" if w == "no" else "no" for w in clean.columns["died"].tolist()]
    assert ("label-prevalence", "died") in find(change(clean, died=flipped), schema)
    late = clean.columns["admitted"].astype(str) > "2015-08-01"
    assert ("column-stops", "glucose") in find(change(clean, glucose=np.where(late, np.nan, clean.columns["glucose"])), schema)


def write(table: Table) -> bytes:
    columns = [to_text(values).tolist() for values in table.columns.values()]
    rows = [",".join(table.names), *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
    return ("\n".join(rows) + "\n").encode()


def codes_of(schema: DataSchema, path, content: bytes, **options) -> set[tuple[str, str]]:
    path.write_bytes(content)
    return {(f.code, f.column) for f in assess_data(schema, str(path), **options).findings}


def test_cut_files_are_named(schema, tmp_path):
    clean = patients(8)
    whole = write(clean)
    plain, packed = tmp_path / "site.csv", tmp_path / "site.csv.gz"
    assert codes_of(schema, plain, whole, expected_rows=400) == set()
    assert codes_of(schema, plain, whole.rstrip(b"\n")) == set()  # no line break at the end is no cut
    assert codes_of(schema, plain, whole[:9000]) == {("truncated-file", "")}
    assert codes_of(schema, packed, gzip.compress(whole)) == set()
    assert codes_of(schema, packed, gzip.compress(whole)[:4000]) == {("truncated-file", "")}
    at_line = whole[: whole.index(b"\n", 9000) + 1]
    assert codes_of(schema, plain, at_line) == set()
    assert codes_of(schema, plain, at_line, expected_rows=400) == {("truncated-file", "")}
    ordered = clean.take(np.argsort(clean.columns["admitted"].astype(str)))
    assert codes_of(schema, plain, write(ordered)) == set()
    assert ("truncated-file", "") in codes_of(schema, plain, write(ordered.take(slice(0, 300))))


def test_two_encodings_are_named_and_one_other_is_not(schema, tmp_path):
    whole = write(patients(8)).decode()
    lines = whole.splitlines(keepends=True)
    path = tmp_path / "site.csv"
    assert codes_of(schema, path, whole.encode("cp1252")) == set()
    mixed = b"".join(line.encode("cp1252" if i % 3 else "utf-8") for i, line in enumerate(lines))
    assert codes_of(schema, path, mixed) == {("mixed-encoding", "ward")}
    twice = "".join(line.encode().decode("cp1252") if i % 3 else line for i, line in enumerate(lines))
    assert codes_of(schema, path, twice.encode()) == {("mixed-encoding", "ward")}


def test_a_ragged_line_in_the_middle_is_still_refused(schema, tmp_path):
    lines = write(patients(8)).splitlines(keepends=True)
    lines[7] = b"1,2,3\n"
    (tmp_path / "site.csv").write_bytes(b"".join(lines))
    with pytest.raises(BadInput, match="line 8"):
        assess_data(schema, str(tmp_path / "site.csv"))


def test_command_names_a_cut_file_and_fewer_rows(schema, tmp_path):
    import json

    (tmp_path / "schema.json").write_text(json.dumps(schema.to_dict()))
    (tmp_path / "site.csv").write_bytes(write(patients(8)))
    where = ["site", "check", "--data", str(tmp_path / "site.csv"), "--schema", str(tmp_path / "schema.json")]
    result = rounds(*where, "--rows", "450")
    assert result.returncode == 1 and "400 rows where 450 are expected" in result.stdout
    assert rounds(*where, "--rows", "400").returncode == 0


def test_shares_in_a_draft_show_no_count_below_five():
    drafted = draft_schema(patients(0, 100), label="died", patient="pid", quantiles=True)
    step = 0.05  # 5 of 100 rows
    shares = [s for c in drafted.columns for s in (*c.shares, c.missing_share)] + list(drafted.class_shares)
    assert shares and all(abs(s / step - round(s / step)) < 1e-9 for s in shares)
    plain = draft_schema(patients(0, 100), label="died", patient="pid").to_dict()
    assert not {"class_shares", "repeated_share", "dates", "fixed"} & set(plain)
    assert all(set(c) <= {"kind", "values"} for c in plain["columns"].values())
