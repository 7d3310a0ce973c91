import csv
import gzip
import os
import shutil
import socket
import subprocess
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort
from grandrounds.capabilities.sources.cohort.counts import count_concepts, measure_coverage
from grandrounds.capabilities.sources.cohort.definition import Code, ConceptSet
from grandrounds.capabilities.sources.cohort.extract import extract_table
from grandrounds.capabilities.sources.cohort.sources import open_source
from grandrounds.capabilities.sources.cohort.vocabulary import open_vocabulary
from grandrounds.core.errors import BadInput
from tests.capabilities.sources.cohort import omop_example as example
from tests.support import refused

POSTGRES = next(
    (
        p.parent
        for p in [*Path("/usr/lib/postgresql").glob("*/bin/initdb"), Path(shutil.which("initdb") or "/none")]
        if p.is_file()
    ),
    None,
)

COHORT = parse_cohort(
    {
        "predict_at": "12 hours",
        "include": {"visit": ["inpatient", "icu"]},
        "outcome": {"death": "visit"},
        "features": {
            "age": True,
            "sex": True,
            "glucose": {"measurement": ["LOINC:2345-7"], "take": "mean", "unit": "mg/dL"},
            "covid": {"measurement": [3013290], "values": {"positive": ["LOINC:LA6576-8"], "negative": [45880296]}},
            "diabetes": {"condition": ["SNOMED:73211009"]},
            "diabetes_icd": {"condition": ["ICD10CM:E11*"]},
            "metformin": {"drug": ["ATC:A10"], "take": "days_since"},
            "echo": {"procedure": ["SNOMED:40701008"], "take": "count"},
            "packs": {"observation": ["LOINC:72166-2"]},
        },
    }
)
# Patient 1: 180.5 mg/dL and 5 mmol/L by 20:00, 300 is after; patient 2: the limit 90; patient 3: a date alone is its start.
GLUCOSE = [(180.5 + 5 * 18.016) / 2, 90.0, 120.0]


def check_table(table):
    columns = table.columns
    assert columns["patient"].tolist() == ["1", "2", "3"]
    assert columns["visit_start"].tolist() == ["2020-01-10T08:00:00", "2020-02-01T23:30:00", "2020-05-05T00:00:00"]
    assert columns["died"].tolist() == [1, 0, 0]  # patient 3 dies after the visit
    assert columns["age"].tolist() == [69, 59, 49]
    assert columns["sex"].tolist() == ["male", "female", "other"]
    np.testing.assert_allclose(columns["glucose"], GLUCOSE, rtol=1e-6)
    assert columns["covid"].tolist() == [None, "positive", "negative"]
    assert columns["diabetes"].tolist() == [1, 1, 0]
    assert columns["diabetes_icd"].tolist() == [1, 1, 0]
    # 2019-11-01 12:00 to 2020-01-10 20:00
    np.testing.assert_allclose(columns["metformin"], [70 + 8 / 24, np.nan, np.nan])
    assert columns["echo"].tolist() == [0, 2, 0]
    np.testing.assert_array_equal(columns["packs"], [20, np.nan, np.nan])


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """A private PostgreSQL server."""
    if POSTGRES is None:
        pytest.skip("PostgreSQL's initdb is not on this machine")
    folder = tmp_path_factory.mktemp("postgres")
    user = []
    if os.geteuid() == 0:  # the server refuses to run as root
        if subprocess.run(["id", "postgres"], capture_output=True).returncode or not shutil.which("runuser"):
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # TMPDIR may be closed to other users
        shutil.chown(folder, "postgres")
        user = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]

    def run(program, *options):
        subprocess.run(
            [*user, str(POSTGRES / program), "-D", str(folder / "db"), *options], check=True, capture_output=True
        )

    run("initdb", "-A", "trust", "-U", "owner", "--no-sync")
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-p {port} -h 127.0.0.1 -k {folder} -F", "start")
    yield f"postgresql+psycopg://owner:secret@127.0.0.1:{port}/postgres"
    run("pg_ctl", "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


def open_kind(kind, tmp_path, request):
    if kind == "folder":
        return example.write_folder(tmp_path / "omop")
    if kind == "zip":
        return example.write_zip(tmp_path / "omop.zip")
    if kind == "parquet":
        return example.write_parquet(tmp_path / "omop")
    if kind == "sqlite":
        return example.write_database(f"sqlite:///{tmp_path}/omop.db")
    if kind == "duckdb":
        return example.write_database(f"duckdb:///{tmp_path}/omop.duckdb", "cdm")
    return example.write_database(request.getfixturevalue("postgres"), "cdm").replace("+psycopg", "")


@pytest.mark.parametrize("kind", ["folder", "zip", "parquet", "sqlite", "duckdb", "postgres"])
def test_every_kind_of_source_gives_the_table_computed_by_hand(kind, tmp_path, request):
    source = open_source(open_kind(kind, tmp_path, request))
    extracted = extract_table(COHORT, source)
    check_table(extracted.table)
    plain = open_source(example.write_folder(tmp_path / "plain"))
    assert extracted.table.sha256() == extract_table(COHORT, plain).table.sha256()  # no cell differs
    assert "glucose: 1 values are limits (<), read as the number itself" in extracted.notes
    assert "secret" not in source.name and "owner" not in source.name
    visits = source.visits()
    assert dict(zip(visits.id, visits.kind, strict=True)) == {
        "10": "inpatient", "11": "outpatient", "20": "inpatient", "30": "icu", "40": "outpatient", "41": "other",
        "50": "emergency",
    }  # fmt: skip
    ends = dict(zip(visits.id, visits.end, strict=True))
    assert str(ends["40"]) == "2020-06-01T23:59:59" and np.isnat(ends["41"])
    deaths = source.deaths()
    assert dict(zip(deaths.person, deaths.time.astype(str), strict=True)) == {
        "1": "2020-01-15T11:00:00", "3": "2020-08-01T23:59:59"
    }  # fmt: skip
    persons = source.persons()
    assert persons.id[4] == "-775517641933593374"  # beyond the whole numbers that a float has
    assert persons.birth.astype(str).tolist()[:4] == ["1950-03-10", "1960-07-01", "1970-06-15", "1980-06-15"]
    assert persons.sex.tolist() == ["male", "female", "other", "female", None]
    counts = {c.code: c for c in count_concepts(source)}
    glucose = counts["LOINC:2345-7"]
    assert (glucose.patients, glucose.records, glucose.numbers, glucose.unit) == (3, 5, 5, "mg/dL")
    assert glucose.name == "Glucose in serum"
    assert counts["SNOMED:40701008"].patients == 1 and counts["SNOMED:40701008"].records == 2
    source.close()


def test_records_that_were_not_prepared_are_the_same(tmp_path):
    source = open_source(example.write_folder(tmp_path / "omop"))
    concepts = COHORT.features[2].concepts
    before = source.records("measurement", concepts)
    source.prepare(COHORT)
    after = source.records("measurement", concepts)
    assert before.value.tolist() == after.value.tolist() and before.unit.tolist() == after.unit.tolist()
    assert before.unit.tolist() == ["mg/dL", "mmol/L", "mg/dL", "mg/dL", "mg/dL"]


def test_codes_match_source_values_where_there_is_no_vocabulary(tmp_path):
    none = dict.fromkeys(("CONCEPT", "CONCEPT_RELATIONSHIP", "CONCEPT_ANCESTOR"))
    source = open_source(example.write_folder(tmp_path / "omop", **none))
    extracted = extract_table(COHORT, source)
    columns = extracted.table.columns
    assert columns["diabetes_icd"].tolist() == [1, 1, 1]  # patient 3 has E119, without a dot and without a concept
    assert columns["diabetes"].tolist() == [0, 0, 0]
    assert columns["covid"].tolist() == [None, None, "negative"]  # by the OMOP id alone
    np.testing.assert_allclose(columns["glucose"], GLUCOSE, rtol=1e-6)  # units as the source writes them
    assert any("has no CONCEPT table" in note for note in extracted.notes)
    vocabulary = example.write_folder(tmp_path / "athena", **{n: None for n in example.TABLES if "CONCEPT" not in n})
    for path in vocabulary.iterdir():  # as Athena writes them
        path.write_text(path.read_text().replace(",", "\t").replace("Heart failure", 'Heart "failure'))
    check_table(extract_table(COHORT, open_source(tmp_path / "omop", vocabulary=vocabulary)).table)


def test_names_compression_latin_bytes_and_floats_written_for_ids(tmp_path):
    folder = example.write_folder(tmp_path / "omop")
    (folder / "PERSON.csv").rename(folder / "Person.CSV")
    header, *rows = [line.replace(",3004501,", ",3004501.0,") for line in example.MEASUREMENT]
    rows.append("8,4,3004501,2020-06-01,,,1,,,40,2345-7,3004501,\xb5g/l,caf\xe9")
    text = "\n".join([header.upper(), *rows, ""])
    (folder / "MEASUREMENT.csv").unlink()
    (folder / "measurement.csv.gz").write_bytes(gzip.compress("\ufeff".encode() + text.encode("latin-1")))
    source = open_source(folder)
    check_table(extract_table(COHORT, source).table)
    assert source.records("measurement", COHORT.features[2].concepts).unit[-1] == "\xb5g/l"


def without_columns(lines, *names):
    """Leave out columns."""
    cells = list(csv.reader(lines))
    kept = [i for i, name in enumerate(cells[0]) if name not in names]
    return [",".join(row[i] for i in kept) for row in cells]


def test_dates_alone_as_in_a_database_of_version_5_3(tmp_path):
    changed = {
        "VISIT_OCCURRENCE": without_columns(example.VISIT, "visit_start_datetime", "visit_end_datetime"),
        "MEASUREMENT": without_columns(example.MEASUREMENT, "measurement_datetime", "unit_source_value"),
        "DEATH": without_columns(example.DEATH, "death_datetime"),
        "CDM_SOURCE": ["cdm_source_name,cdm_version", "example,v5.3.1"],
    }
    source = open_source(example.write_folder(tmp_path / "omop", **changed))
    columns = extract_table(COHORT, source).table.columns
    assert columns["visit_start"].tolist() == ["2020-01-10T00:00:00", "2020-02-01T00:00:00", "2020-05-05T00:00:00"]
    assert columns["died"].tolist() == [1, 0, 0]  # on the last day of the visit
    # patient 2 was measured on 2 February, more than 12 hours after the start of 1 February
    np.testing.assert_allclose(columns["glucose"], [GLUCOSE[0], np.nan, 120.0])


def test_midnight_in_every_row_means_dates(tmp_path):
    death = [example.DEATH[0], "1,2020-01-15,2020-01-15 00:00:00", "3,2020-08-01,2020-08-01 00:00:00"]
    source = open_source(example.write_folder(tmp_path / "omop", DEATH=death))
    assert source.deaths().time.astype(str).tolist() == ["2020-01-15T23:59:59", "2020-08-01T23:59:59"]


def test_coverage_of_codes_and_a_domain_without_records(tmp_path):
    source = open_source(example.write_folder(tmp_path / "omop"))
    cohort = parse_cohort(
        {
            "outcome": {"condition": ["ICD10CM:I50.9", "ICD10CM:I99"], "within": "30 days"},
            "features": {"smoking": {"measurement": ["LOINC:72166-2"]}},
        }
    )
    outcome, smoking = measure_coverage(cohort, source)
    assert (outcome.codes, outcome.unknown, outcome.records, outcome.patients) == (2, ("ICD10CM:I99",), 1, 1)
    assert smoking.records == 0
    assert "smoking: no record in table measurement; its concepts are of domain Observation" in source.notes


def test_codes_of_a_set_have_descendants_and_the_codes_that_map_to_them(tmp_path):
    vocabulary = open_vocabulary(example.write_folder(tmp_path / "omop"))
    diabetes = ConceptSet("diabetes", (Code("SNOMED", "73211009"),))
    assert vocabulary.codes(diabetes) == {
        ("SNOMED", "73211009"), ("SNOMED", "44054006"), ("SNOMED", "420279001"), ("ICD10CM", "E11.9"),
        ("ICD10CM", "E11.22"),
    }  # fmt: skip
    (found,) = vocabulary.resolve([ConceptSet("kidney", (Code("ICD10CM", "E1122"),))])
    assert found.ids.tolist() == [443731, 45533001]  # an invalid mapping, to heart failure, does not count


def test_a_code_without_a_concept_is_named(tmp_path):
    source = open_source(example.write_folder(tmp_path / "omop"))
    cohort = parse_cohort(
        {
            "outcome": {"death": "visit"},
            "features": {"lactate": {"measurement": ["LOINC:2524-7", "LOINC:2345-7"], "take": "count"}},
        }
    )
    assert any("LOINC:2524-7" in note and "LOINC:2345-7" not in note for note in extract_table(cohort, source).notes)


def change(lines, row, old, new):
    assert old in lines[row]
    return [line.replace(old, new) if i == row else line for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"MEASUREMENT": change(example.MEASUREMENT, 2, "2020-01-10 20:00:00", "10.01.2020")},
            ("measurement_datetime", "row 3", "MEASUREMENT.csv", "'10.01.2020'"),
        ),
        (
            {"MEASUREMENT": change(example.MEASUREMENT, 1, "180.5,,", '"180,5",,')},
            ("value_as_number", "row 2", "MEASUREMENT.csv", "'180,5'"),
        ),
        ({"VISIT_OCCURRENCE": change(example.VISIT, 4, "2020-05-05,", "2020-13-05,")}, ("visit_start_date", "row 5")),
        ({"PERSON": change(example.PERSON, 2, "2,8532", "x,8532")}, ("person_id", "row 3", "PERSON.csv", "'x'")),
        ({"PERSON": change(example.PERSON, 2, "2,8532", "0x10,8532")}, ("person_id", "row 3", "'0x10'")),
        ({"PERSON": change(example.PERSON, 2, "2,8532", "1_0,8532")}, ("person_id", "row 3", "'1_0'")),
        ({"PERSON": change(example.PERSON, 2, "2,8532", "1e3,8532")}, ("person_id", "row 3", "'1e3'")),
        ({"PERSON": ["\r".join(example.PERSON)]}, ("PERSON.csv", "carriage return")),
        ({"PERSON": change(example.PERSON, 2, "2,8532", "1,8532")}, ("person_id 1", "several rows")),
        ({"PERSON": change(example.PERSON, 0, "year_of_birth", "yob")}, ("person", "no column year_of_birth", "yob")),
        ({"PERSON": change(example.PERSON, 2, "2,8532", f"{2**63},8532")}, ("person_id", "row 3", str(2**63))),
        ({"PERSON": example.PERSON[:1]}, ("table person", "no rows")),
        (
            {"PERSON": change(example.PERSON, 0, "gender_source_value", "person_id")},
            ("column person_id more than once",),
        ),
        ({"DRUG_EXPOSURE": None}, ("no table drug_exposure", "condition_occurrence")),
        ({"DEATH": change(example.DEATH, 2, "3,2020-08-01,", "3,2020-08-01,,,")}, ("row 3", "5 cells", "DEATH.csv")),
        ({"CDM_SOURCE": change(example.CDM_SOURCE, 1, "v5.4.0", "6.0")}, ("cdm_version '6.0'", "5.4")),
    ],
)
def test_a_fault_is_one_sentence_with_its_place(changed, words, tmp_path):
    with pytest.raises(BadInput) as caught:
        extract_table(COHORT, open_source(example.write_folder(tmp_path / "omop", **changed)))
    for word in words:
        assert word in str(caught.value)


def test_days_and_months_of_birth_that_no_calendar_has_are_noted(tmp_path):
    header, *rows = example.PERSON
    place = header.split(",").index("month_of_birth")
    for month, day, count in (("99", "1", 1), ("1", "0", 1), ("", "", 0)):
        cells = rows[1].split(",")
        cells[place : place + 2] = month, day
        cells = ["" if name == "birth_datetime" else c for name, c in zip(header.split(","), cells, strict=True)]
        source = open_source(example.write_folder(tmp_path / "omop", PERSON=[header, rows[0], ",".join(cells), *rows[2:]]))
        source.persons()
        assert sum("that no calendar has (person_id 2)" in note for note in source.notes) == count


def write_parquet(folder: Path, table: str, **columns: pa.Array) -> Path:
    """Write a table as Parquet in place of its CSV, with columns exchanged."""
    path = example.write_folder(folder) / f"{table}.csv"
    content = pc.read_csv(path)
    for name, cells in columns.items():
        content = content.set_column(content.column_names.index(name), name, cells.take([0] * len(content)))
    path.unlink()
    pq.write_table(content, path.with_suffix(".parquet"))
    return folder


@pytest.mark.parametrize(
    "column, cells, code",
    [
        ("unit_source_value", pa.array([["mg"]]), "invalid-word-cell"),
        ("unit_source_value", pa.array([{"a": "mg"}]), "invalid-word-cell"),
        ("unit_source_value", pa.array([[("a", "mg")]], pa.map_(pa.string(), pa.string())), "invalid-word-cell"),
        ("person_id", pa.array([[1]]), "invalid-id-cell"),
        ("measurement_datetime", pa.array([10**9]).cast(pa.timestamp("us", "Mars/Base")), "invalid-date-cell"),
        ("unit_source_value", pa.array([10**18]).cast(pa.timestamp("us")), "invalid-word-cell"),
    ],
)
def test_parquet_columns_of_other_types_are_one_sentence(column, cells, code, tmp_path):
    with refused(code, match=column):
        extract_table(COHORT, open_source(write_parquet(tmp_path / "omop", "MEASUREMENT", **{column: cells})))


def test_text_of_parquet_counts_in_every_cell(tmp_path, monkeypatch):
    folder = write_parquet(tmp_path / "omop", "MEASUREMENT", unit_source_value=pa.array(["x" * 50_000]))
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "1M")
    with refused("unpacks-too-large"):
        extract_table(COHORT, open_source(folder))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    folder = example.write_folder(tmp_path / "omop")
    (folder / "PERSON.csv").rename(folder / "parts.csv")
    (folder / "PERSON.csv").symlink_to("parts.csv")
    assert open_source(folder).persons()
    (tmp_path / "secret").write_text("a secret line\n")
    (folder / "PERSON.csv").unlink()
    (folder / "PERSON.csv").symlink_to(tmp_path / "secret")
    with refused("link-not-followed") as caught:
        open_source(folder)
    assert "a secret" not in str(caught.value)


def test_a_folder_of_something_else_is_listed(tmp_path):
    (tmp_path / "letters.docx").write_text("x")
    with pytest.raises(BadInput, match=r"letters\.docx"):
        open_source(tmp_path)


def test_two_files_of_a_table_are_refused(tmp_path):
    folder = example.write_folder(tmp_path / "omop")
    shutil.copy(folder / "PERSON.csv", folder / "person.tsv")
    with pytest.raises(BadInput, match="2 files of table person"):
        open_source(folder)


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "omop.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("person.csv", example.PERSON[0] + "\n" + "0" * 2**21)
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "1M")
    with pytest.raises(BadInput) as caught:
        open_source(path)
    assert caught.value.code == "unpacks-too-large"


def test_schemas_of_a_database(tmp_path):
    url = example.write_database(f"duckdb:///{tmp_path}/omop.duckdb", "cdm")
    assert len(open_source(url, query="cdm").persons().id) == 5
    assert len(open_source(f"{url}?schema=cdm").persons().id) == 5
    with pytest.raises(BadInput, match="no schema 'public2'"):
        open_source(url, query="public2")


def test_more_concepts_than_one_statement_takes(tmp_path, monkeypatch):
    from grandrounds.capabilities.sources.cohort import omop_sql

    monkeypatch.setattr(omop_sql, "_IDS", 1)
    monkeypatch.setattr(omop_sql, "_WORDS", 1)
    check_table(extract_table(COHORT, open_source(example.write_database(f"sqlite:///{tmp_path}/omop.db"))).table)


def test_observation_periods_without_a_table_come_from_visits(tmp_path):
    source = open_source(example.write_folder(tmp_path / "omop", OBSERVATION_PERIOD=None))
    periods = source.periods()
    first = periods.person.tolist().index("1")
    assert (str(periods.start[first]), str(periods.end[first])) == ("2020-01-10T08:00:00", "2020-03-01T10:00:00")


@pytest.mark.data("omop")
def test_synthea_agrees_with_a_count_of_its_rows(data_folder):
    source = open_source(data_folder / "omop" / "Synthea27Nj_5.4.zip")
    with zipfile.ZipFile(data_folder / "omop" / "Synthea27Nj_5.4.zip") as archive:
        lines = archive.read("MEASUREMENT.csv").decode().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=False)) for line in lines[1:]]
    weights = [r for r in rows if r["measurement_source_value"] == "29463-7"]
    concepts = (
        parse_cohort({"outcome": {"death": "visit"}, "features": {"weight": {"measurement": ["LOINC:29463-7"]}}})
        .features[0]
        .concepts
    )
    found = source.records("measurement", concepts)
    assert sorted(found.value) == sorted(float(r["value_as_number"]) for r in weights)
    assert set(found.unit) == {"kg"}
    count = next(c for c in count_concepts(source) if c.code == "LOINC:29463-7")
    assert (count.records, count.patients) == (len(weights), len({r["person_id"] for r in weights}))
    assert (source.deaths().time.astype("datetime64[s]").astype(int) % 86400 == 86399).all()  # midnight alone: dates
