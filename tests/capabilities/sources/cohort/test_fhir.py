"""FHIR exports: every element that a cohort reads, and one sentence with file, line and element for every fault."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort, read_codes
from grandrounds.capabilities.sources.cohort.definition import ConceptSet
from grandrounds.capabilities.sources.cohort.extract import extract_table
from grandrounds.capabilities.sources.cohort.fhir import FhirSource
from grandrounds.capabilities.sources.cohort.fhir_codes import find_vocabulary
from grandrounds.capabilities.sources.cohort.fhir_elements import parse_end, parse_record_time, read_reference
from grandrounds.capabilities.sources.cohort.records import Records
from grandrounds.core.errors import BadInput
from grandrounds.data.limits import LONGEST_LINE
from tests.support import refused

LOINC, SNOMED = "http://loinc.org", "http://snomed.info/sct"
PATIENT = {"resourceType": "Patient", "id": "p1", "gender": "female", "birthDate": "1950-03-02"}
ONE = {"reference": "Patient/p1"}


def concept(*codings: tuple[str, str]) -> dict:
    return {"coding": [{"system": system, "code": code} for system, code in codings]}


def encounter(name: str = "e1", **more) -> dict:
    period = {"start": "2020-01-01T10:00:00+01:00", "end": "2020-01-05T12:00:00+01:00"}
    return {
        "resourceType": "Encounter", "id": name, "status": "finished", "class": {"code": "IMP"}, "subject": ONE,
        "period": period,
    } | more  # fmt: skip


def observation(name: str = "o1", code: str | dict = "2345-7", **more) -> dict:
    coded = concept((LOINC, code)) if isinstance(code, str) else code
    return {
        "resourceType": "Observation", "id": name, "status": "final", "code": coded, "subject": ONE,
        "effectiveDateTime": "2020-01-02T08:00:00Z",
    } | more  # fmt: skip


def condition(name: str = "c1", **more) -> dict:
    code = concept((SNOMED, "44054006"))
    return {"resourceType": "Condition", "id": name, "code": code, "subject": ONE, "recordedDate": "2020-01-01"} | more


def write(folder: Path, *resources: dict) -> Path:
    """Write resources to one file for each type."""
    for kind in dict.fromkeys(r["resourceType"] for r in resources):
        lines = [json.dumps(r) for r in resources if r["resourceType"] == kind]
        (folder / f"{kind}.000.ndjson").write_text("\n".join(lines) + "\n")
    return folder


def codes(*entries: str | int, name: str = "glucose") -> ConceptSet:
    return ConceptSet(name, read_codes(list(entries), name, "test"))


def read(folder: Path, *resources: dict, domain="measurement", wanted=("LOINC:2345-7",), values=()) -> Records:
    return FhirSource(write(folder, PATIENT, *resources)).records(domain, codes(*wanted), values)


def refusal(folder: Path, *resources: dict, **options) -> str:
    with pytest.raises(BadInput) as caught:
        read(folder, *resources, **options)
    return str(caught.value)


def test_patients_have_a_birth_a_sex_and_a_death(tmp_path):
    patients = [
        PATIENT,
        {"resourceType": "Patient", "id": "p2", "birthDate": "1980-04", "gender": "unknown", "deceasedBoolean": True},
        {
            "resourceType": "Patient",
            "id": "p3",
            "birthDate": "1981",
            "gender": "male",
            "deceasedDateTime": "2020-05-06",
        },
        {"resourceType": "Patient", "id": "p4", "deceasedDateTime": "2020-05-06T07:08:09-05:00"},
        {"resourceType": "Patient", "id": "p5", "deceasedDateTime": "2020-05", "deceasedBoolean": False},
    ]
    source = FhirSource(write(tmp_path, *patients))
    persons, deaths = source.persons(), source.deaths()
    assert persons.id.tolist() == ["p1", "p2", "p3", "p4", "p5"]
    assert persons.sex.tolist() == ["female", None, "male", None, None]
    assert persons.birth.astype(str).tolist() == ["1950-03-02", "1980-04-15", "1981-07-02", "NaT", "NaT"]
    found = dict(zip(deaths.person, deaths.time.astype(str), strict=True))
    assert found == {"p2": "NaT", "p3": "2020-05-06T23:59:59", "p4": "2020-05-06T07:08:09", "p5": "NaT"}


def test_classes_of_encounters_are_kinds_of_visits(tmp_path):
    kinds = {
        "IMP": "inpatient", "ACUTE": "inpatient", "NONAC": "inpatient", "SS": "inpatient", "AMB": "outpatient",
        "VR": "outpatient", "OBSENC": "outpatient", "EMER": "emergency", "HH": "outpatient", "XX": "other",
    }  # fmt: skip
    encounters = [encounter(code, **{"class": {"code": code}}) for code in kinds]
    encounters += [encounter("none", **{"class": None}), encounter("icu", type=[concept((SNOMED, "305351004"))])]
    visits = FhirSource(write(tmp_path, PATIENT, *encounters)).visits()
    found = dict(zip(visits.id, visits.kind, strict=True))
    assert found == kinds | {"none": "other", "icu": "icu"}


def test_encounters_that_did_not_happen_and_parts_of_one_stay_are_no_visits(tmp_path):
    ward = {"partOf": {"reference": "Encounter/e1"}}
    icu_place = {"resourceType": "Location", "id": "l1", "type": [concept(("v3", "ICU"))]}
    other_place = {"resourceType": "Location", "id": "l2"}
    stays = [
        encounter(),
        encounter("planned", status="planned"),
        encounter("cancelled", status="cancelled"),
        encounter("error", status="entered-in-error"),
        encounter("ward", **ward),
        encounter("icu", location=[{"location": {"reference": "Location/l1"}}], **ward),
        encounter("both", location=[{"location": {"reference": f"Location/{n}"}} for n in ("l1", "l2")]),
    ]
    source = FhirSource(write(tmp_path, PATIENT, *stays, icu_place, other_place))
    visits = source.visits()
    assert dict(zip(visits.id, visits.kind, strict=True)) == {"e1": "inpatient", "icu": "icu", "both": "inpatient"}
    assert source.notes == ("1 encounters are parts of another one of the same kind, and no visits",)


def test_times_are_the_wall_clock_and_a_day_alone_has_its_end(tmp_path):
    stays = [
        encounter(),
        encounter("days", period={"start": "2021-02-03", "end": "2021-02-04"}),
        encounter("open", status="in-progress", period={"start": "2021-03-03T09:00:00.123Z"}),
    ]
    source = FhirSource(write(tmp_path, PATIENT, *stays))
    visits, periods = source.visits(), source.periods()
    assert visits.start.astype(str).tolist() == ["2020-01-01T10:00:00", "2021-02-03T00:00:00", "2021-03-03T09:00:00"]
    assert visits.end.astype(str).tolist() == ["2020-01-05T12:00:00", "2021-02-04T23:59:59", "NaT"]
    assert (str(periods.start[0]), str(periods.end[0])) == ("2020-01-01T10:00:00", "2021-03-03T09:00:00")


def test_partial_dates_of_records_are_their_last_day_and_of_ends_not_known():
    day = 86400
    assert parse_record_time("1970-02") == (31 + 27) * day
    assert parse_record_time("1972-02") == (2 * 365 + 31 + 28) * day  # a leap year
    assert parse_record_time("1970") == 364 * day
    assert parse_record_time("1970-01-02T00:00") == day
    assert parse_end("1970-01") == -(2**63)


def test_values_of_observations(tmp_path):
    kinds = {
        "number": {"valueQuantity": {"value": 5.5, "unit": "millimoles", "code": "mmol/L"}},
        "unit": {"valueQuantity": {"value": 6, "unit": "mg/dL"}},
        "bound": {"valueQuantity": {"value": 4, "comparator": "<", "code": "mg/dL"}},
        "whole": {"valueInteger": 7},
        "none": {"dataAbsentReason": concept(("x", "unknown"))},
        "empty": {"valueQuantity": {"unit": "mg/dL"}},
        "flag": {"valueBoolean": True},
    }
    source = FhirSource(write(tmp_path, PATIENT, *(observation(n, **v) for n, v in kinds.items())))
    found = source.records("measurement", codes("LOINC:2345-7"))
    assert np.array_equal(found.value, [5.5, 6, 4, 7, np.nan, np.nan, 1], equal_nan=True)
    assert found.unit.tolist() == ["mmol/L", "mg/dL", "mg/dL", None, None, "mg/dL", None]
    assert source.notes == ("glucose: 1 values such as '< 5' are read as the number",)


def test_coded_values_get_the_first_word_that_has_them(tmp_path):
    never, now, other = (
        observation(n, "72166-2", valueCodeableConcept=concept((SNOMED, code), (LOINC, "LA1")))
        for n, code in (("a", "266919005"), ("b", "77176002"), ("c", "1"))
    )
    values = (codes("SNOMED:266919005", name="never"), codes("SNOMED:77176002", "SNOMED:266919005", name="smoker"))
    found = read(tmp_path, never, now, other, wanted=("LOINC:72166-2",), values=values, domain="observation")
    assert found.word.tolist() == ["never", "smoker", None]


def test_components_of_a_panel_are_records_of_their_own(tmp_path):
    parts = [
        {"code": concept((LOINC, code)), "valueQuantity": {"value": value, "code": "mm[Hg]"}}
        for code, value in (("8480-6", 120), ("8462-4", 80))
    ]
    panel = observation("bp", "85354-9", component=parts)
    found = read(tmp_path, panel, wanted=("LOINC:8462-4",))
    assert found.value.tolist() == [80] and found.time.astype(str).tolist() == ["2020-01-02T08:00:00"]
    assert len(read(tmp_path, panel, wanted=("LOINC:85354-9", "LOINC:8480-6"))) == 2


def test_the_time_of_an_observation_is_when_it_is_known(tmp_path):
    def timed(name: str, **time) -> dict:
        plain = observation(name, **time)
        return plain if "effectiveDateTime" in time else {k: v for k, v in plain.items() if k != "effectiveDateTime"}

    cases = [
        timed("a", effectiveDateTime="2020-01-02"),
        timed("b", effectiveInstant="2020-01-02T09:00:00.5+05:30", issued="2020-01-09T00:00:00Z"),
        timed("c", effectivePeriod={"start": "2020-01-02T01:00:00Z", "end": "2020-01-03T01:00:00Z"}),
        timed("d", effectivePeriod={"start": "2020-01-02T01:00:00Z"}),
        timed("e", issued="2020-01-04T01:00:00Z"),
        timed("f", encounter={"reference": "Encounter/e1"}),
        timed("g"),
    ]
    source = FhirSource(write(tmp_path, PATIENT, encounter(), *cases))
    found = source.records("measurement", codes("LOINC:2345-7")).time.astype(str).tolist()
    assert found == [
        "2020-01-02T00:00:00", "2020-01-02T09:00:00", "2020-01-03T01:00:00", "2020-01-02T01:00:00", "2020-01-04T01:00:00",
        "2020-01-05T12:00:00", "NaT",
    ]  # fmt: skip
    assert source.notes == (
        "glucose: 1 records have no time, so that of the end of their encounter counts",
        "glucose: 1 records without a time left out",
    )


def test_records_that_never_happened_are_left_out(tmp_path):
    observations = [observation(s, status=s) for s in ("final", "amended", "entered-in-error", "cancelled")]
    assert len(read(tmp_path, *observations)) == 2
    statuses = ("confirmed", "provisional", "refuted", "entered-in-error")
    conditions = [condition(s, verificationStatus=concept(("ver", s))) for s in statuses]
    found = read(tmp_path, *conditions, domain="condition", wanted=("SNOMED:44054006",))
    assert len(found) == 2 and found.time.astype(str).tolist() == ["2020-01-01T00:00:00"] * 2
    procedure = {"resourceType": "Procedure", "subject": ONE, "code": concept((SNOMED, "1"))}
    procedures = [
        procedure | {"id": s, "status": s, "performedPeriod": {"start": "2020-02-01T03:00:00Z"}}
        for s in ("completed", "in-progress", "not-done", "preparation", "entered-in-error")
    ]
    assert len(read(tmp_path, *procedures, domain="procedure", wanted=("SNOMED:1",))) == 2


def test_conditions_are_known_when_recorded_not_since_they_began(tmp_path):
    began = {"onsetDateTime": "2015-01-01"}
    unrecorded = {k: v for k, v in condition("b", **began).items() if k != "recordedDate"}
    found = read(tmp_path, condition("a", **began), unrecorded, domain="condition", wanted=("SNOMED:44054006",))
    assert found.time.astype(str).tolist() == ["2020-01-01T00:00:00", "2015-01-01T00:00:00"]


def test_medications_by_code_by_reference_and_contained(tmp_path):
    atc = concept(("http://www.whocc.no/atc", "A10BA02"))
    order = {
        "resourceType": "MedicationRequest", "status": "active", "intent": "order", "subject": ONE,
        "authoredOn": "2020-01-01",
    }  # fmt: skip
    medication = {"resourceType": "Medication", "id": "m1", "code": atc}
    requests = [
        order | {"id": "code", "medicationCodeableConcept": atc},
        order | {"id": "reference", "medicationReference": {"reference": "Medication/m1"}},
        order | {"id": "inside", "medicationReference": {"reference": "#x"}, "contained": [medication | {"id": "x"}]},
        order | {"id": "away", "medicationReference": {"reference": "Medication/m2"}},
        order | {"id": "plan", "medicationCodeableConcept": atc, "intent": "plan"},
        order | {"id": "not", "medicationCodeableConcept": atc, "doNotPerform": True},
        order | {"id": "cancelled", "medicationCodeableConcept": atc, "status": "cancelled"},
    ]
    source = FhirSource(write(tmp_path, PATIENT, medication, *requests))
    assert len(source.records("drug", codes("ATC:A10*", name="diabetes drugs"))) == 3
    assert source.notes == ("1 medication requests name a Medication that is not in the export, and are left out",)


@pytest.mark.parametrize(
    "system, vocabulary",
    [
        ("http://loinc.org", "LOINC"),
        ("http://snomed.info/sct/11000274103/version/20240515", "SNOMED"),
        ("http://fhir.de/CodeSystem/bfarm/icd-10-gm", "ICD10GM"),
        ("http://hl7.org/fhir/sid/icd-10-cm", "ICD10CM"),
        ("http://hl7.org/fhir/sid/icd-10|2019", "ICD10"),
        ("urn:oid:2.16.840.1.113883.6.103", "ICD9CM"),
        ("http://www.whocc.no/atc", "ATC"),
        ("http://www.nlm.nih.gov/research/umls/rxnorm", "RxNorm"),
        ("http://unitsofmeasure.org", "UCUM"),
        ("https://hospital.example/codes", None),
    ],
)
def test_systems_of_codes(system, vocabulary):
    assert find_vocabulary(system) == vocabulary


def test_any_coding_matches_with_its_own_system_only(tmp_path):
    gm = "http://fhir.de/CodeSystem/bfarm/icd-10-gm"
    local = ("https://hospital.example/codes", "44054006")
    cases = [
        condition("both", code=concept(local, (gm, "E11.90"))),
        condition("undotted", code=concept((gm, "E1190"))),
        condition("local", code=concept(local)),
        condition("longer", code=concept((gm, "E110"))),
    ]
    read_with = {
        wanted: len(read(tmp_path, *cases, domain="condition", wanted=(wanted,)))
        for wanted in ("ICD10GM:E11.9*", "ICD10GM:E11*", "ICD10GM:E11.90", "ICD10CM:E11*", "SNOMED:44054006")
    }
    assert list(read_with.values()) == [2, 3, 2, 0, 0]


@pytest.mark.parametrize(
    "reference, name",
    [
        ("Patient/p1", "p1"),
        ("urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0", "0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0"),
        ("https://ehr.example/fhir/Patient/p1", "p1"),
        ("https://ehr.example/fhir/Patient/p1/_history/3", "p1"),
        ("Patient?identifier=http://x|7", None),
    ],
)
def test_references(reference, name):
    assert read_reference({"reference": reference}) == name


def test_observations_of_a_device_are_of_no_patient(tmp_path):
    assert len(read(tmp_path, observation(subject={"reference": "Device/p1"}))) == 0


def test_a_resource_that_comes_twice_counts_once_in_its_last_version(tmp_path):
    old, new = (observation(valueQuantity={"value": v}) for v in (1, 2))
    assert read(tmp_path, old, observation("o2"), new).value.tolist()[-1:] == [2]
    assert len(read(tmp_path, old, new, encounter(), encounter())) == 1
    assert len(FhirSource(tmp_path).visits().id) == 1


def test_an_error_entered_later_removes_the_record(tmp_path):
    parts = [{"code": concept((LOINC, "2345-7")), "valueInteger": 1}]
    panel = observation("x", "1", component=parts)
    assert len(read(tmp_path, panel)) == 1
    assert len(read(tmp_path, panel, panel | {"status": "entered-in-error"})) == 0
    assert (
        len(read(tmp_path, panel, {k: v for k, v in panel.items() if k != "component"} | {"code": parts[0]["code"]}))
        == 1
    )


def test_omop_ids_need_a_vocabulary(tmp_path):
    assert refusal(tmp_path, observation(), wanted=(3004501,)) == (
        f"glucose has OMOP concept ids alone (3004501), which the FHIR export {tmp_path} does not have; "
        "add codes such as LOINC:2345-7 to the cohort file, or give the hospital's vocabulary"
    )
    source = FhirSource(tmp_path)
    assert len(source.records("measurement", codes(3004501, "LOINC:2345-7"))) == 1
    assert source.notes == ("glucose: 1 OMOP concept ids match nothing in a FHIR export without a vocabulary",)


def test_concepts_are_counted_by_code(tmp_path):
    two = {"reference": "Patient/p2"}
    named = {"coding": [{"system": "local", "code": "1"}, {"system": LOINC, "code": "2345-7", "display": "Glucose"}]}
    observations = [
        observation("a", code=named, valueQuantity={"value": 1, "code": "mg/dL"}),
        observation("b", valueQuantity={"value": 2, "code": "mmol/L"}, subject=two),
        observation("c", valueQuantity={"value": 2, "code": "mg/dL"}),
        observation("d"),
        observation("e", "72166-2", valueCodeableConcept=concept((SNOMED, "1"))),
        observation("f", code=concept(("local", "2"))),
    ]
    found = FhirSource(write(tmp_path, PATIENT, *observations, condition())).count_concepts()
    assert [(c.domain, c.code, c.name, c.patients, c.records, c.numbers, c.unit) for c in found] == [
        ("condition", "SNOMED:44054006", "", 1, 1, 0, ""),
        ("measurement", "LOINC:2345-7", "Glucose", 2, 4, 3, "mg/dL"),
        ("observation", "LOINC:72166-2", "", 1, 1, 0, ""),
    ]


def test_several_files_gzip_zip_and_other_types(tmp_path):
    folder = tmp_path / "export"
    folder.mkdir()
    write(folder, PATIENT, encounter(), {"resourceType": "Immunization", "id": "i"})
    for i in range(3):
        lines = "".join(json.dumps(observation(f"{i}-{j}")) + "\r\n" for j in range(2))
        (folder / f"MimicLab.{i}.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "log.txt").write_text("exported")
    (folder / "empty.ndjson").write_text("")
    packed = tmp_path / "export.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"export/{path.name}")
    for where in (folder, packed):
        source = FhirSource(where)
        assert len(source.records("measurement", codes("LOINC:2345-7"))) == 6
        assert source.persons().id.tolist() == ["p1"]


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        (
            "Observation.ndjson",
            json.dumps(observation()) + "\n" + json.dumps(observation())[:50],
            "Observation.ndjson line 2 ends in the middle of a resource: the file is cut short; export or copy it again",
        ),
        (
            "Observation.ndjson",
            json.dumps(observation()) + "\nhello\n",
            "Observation.ndjson line 2 is not JSON; a line of ndjson is one resource, so export the file again",
        ),
        (
            "Observation.ndjson",
            json.dumps(observation()) + "\n[1]\n",
            "Observation.ndjson line 2 is no resource but list; a line of ndjson is one JSON object",
        ),
        (
            "Observation.ndjson",
            json.dumps(observation()) + "\n" + json.dumps(condition()) + "\n",
            "Observation.ndjson line 2: resourceType is 'Condition' in a file of Observation resources; "
            "write each type of resource to a file of its own",
        ),
        (
            "export.ndjson",
            json.dumps({"resourceType": "Bundle", "entry": []}),
            "export.ndjson is a Bundle, not ndjson: write each resource of its entries to a line of its own, "
            "or use the server's bulk export ($export)",
        ),
        (
            "export.ndjson",
            json.dumps({"resourceType": "Bundle"}, indent=1),
            "export.ndjson line 1 is a brace alone: the file is indented JSON; write each resource in one line (ndjson)",
        ),
        (
            "export.ndjson",
            '{"a": 1}\n',
            "export.ndjson line 1 has no resourceType: it is no FHIR resource; give the files of a bulk export",
        ),
        (
            "Observation.ndjson",
            json.dumps(observation(effectiveDateTime="2020-13-01")),
            "Observation.ndjson line 1: effectiveDateTime is '2020-13-01'; "
            "write a date such as 2020-12-31, or a time such as 2020-12-31T23:59:00Z",
        ),
        (
            "Observation.ndjson",
            json.dumps(observation(valueQuantity={"value": "5,5"})),
            "Observation.ndjson line 1: valueQuantity.value is '5,5'; write a number",
        ),
        (
            "Observation.ndjson",
            json.dumps(observation("x", "1", component=[{"code": concept((LOINC, "2345-7")), "valueInteger": True}])),
            "Observation.ndjson line 1: component[0].valueInteger is 'true'; write a number",
        ),
        (
            "Observation.ndjson",
            json.dumps(observation(valueQuantity=5)),
            "Observation.ndjson line 1: valueQuantity is '5'; write a value and a unit",
        ),
        (
            "Encounter.ndjson",
            json.dumps(encounter(period={"start": "yesterday"})),
            "Encounter.ndjson line 1: period.start is 'yesterday'; "
            "write a date such as 2020-12-31, or a time such as 2020-12-31T23:59:00Z",
        ),
        (
            "Patient.1.ndjson",
            json.dumps(PATIENT | {"birthDate": "01.02.1950"}),
            "Patient.1.ndjson line 1: birthDate is '01.02.1950'; write a date such as 1950-12-31, or the year",
        ),
        (
            "Patient.1.ndjson",
            json.dumps(PATIENT | {"deceasedDateTime": "2020-01-01T25:00:00Z"}),
            "Patient.1.ndjson line 1: deceasedDateTime is '2020-01-01T25:00:00Z'; "
            "write a date such as 2020-12-31, or a time such as 2020-12-31T23:59:00Z",
        ),
        (
            "Patient.1.ndjson",
            json.dumps({"resourceType": "Patient"}),
            "Patient.1.ndjson line 1: id is missing; a resource of a bulk export has one, so export it again",
        ),
    ],
)
def test_faults_name_file_line_and_element(tmp_path, name, content, sentence):
    write(tmp_path, PATIENT)
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput) as caught:
        source = FhirSource(tmp_path)
        source.persons(), source.visits(), source.records("measurement", codes("LOINC:2345-7"))
    assert str(caught.value) == sentence


def test_a_fault_in_a_record_that_the_cohort_does_not_read_is_no_obstacle(tmp_path):
    assert len(read(tmp_path, observation(), observation("x", "1", effectiveDateTime="soon"))) == 1


def test_folders_without_patients_or_resources_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadInput, match=r"has no FHIR resources: put the ndjson files of a bulk export"):
        FhirSource(tmp_path)
    write(tmp_path, observation(), condition())
    with pytest.raises(BadInput, match=r"has no Patient file \(it has Condition, Observation\); add the export's"):
        FhirSource(tmp_path)
    with pytest.raises(BadInput, match="is not there; give a folder of ndjson files"):
        FhirSource(tmp_path / "away")
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    (bundles / "p1.json").write_text("{}")
    with pytest.raises(BadInput, match=r"has 1 \.json files such as p1\.json and no \.ndjson"):
        FhirSource(bundles)
    with pytest.raises(BadInput, match="is no zip of ndjson files"):
        FhirSource(tmp_path / "notes.txt")


def test_a_damaged_gzip_file_is_refused(tmp_path):
    write(tmp_path, PATIENT)
    rng = np.random.default_rng(0)
    lines = "".join(json.dumps(observation(rng.bytes(8).hex())) + "\n" for _ in range(2000))
    packed = gzip.compress(lines.encode())
    (tmp_path / "Observation.ndjson.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadInput, match=r"Observation\.ndjson\.gz cannot be read after line \d+ .*damaged, cut short"):
        FhirSource(tmp_path).records("measurement", codes("LOINC:2345-7"))


def read_all(folder: Path) -> list[str]:
    """Read everything, and return all words as they would be written to a file."""
    source = FhirSource(folder)
    persons, visits, rows = source.persons(), source.visits(), source.records("measurement", codes("LOINC:2345-7"))
    words = [*persons.id, *visits.id, *rows.unit, *(c.name for c in source.count_concepts())]
    return " ".join(str(word) for word in words).encode().decode().split()


def test_lines_and_files_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    write(tmp_path, PATIENT)
    path = tmp_path / "Observation.ndjson.gz"
    many = (json.dumps(observation()) + "\n").encode() * 300
    path.write_bytes(gzip.compress(many))
    assert read_all(tmp_path)
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "20K")
    with refused("unpacks-too-large"):
        read_all(tmp_path)
    path.unlink()
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("Patient.ndjson", json.dumps(PATIENT))
        archive.writestr("Observation.ndjson", many)
    with refused("unpacks-too-large"):
        read_all(tmp_path / "export.zip")
    monkeypatch.delenv("GRANDROUNDS_LARGEST")
    path.write_bytes(gzip.compress(many + b"x" * (LONGEST_LINE + 1)))
    with refused("line-too-long", match="line 301"):
        read_all(tmp_path)


def nested(depth: int = 900) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "line",
    [
        PATIENT | {"birthDate": "9999-12"},
        PATIENT | {"birthDate": "9999"},
        PATIENT | {"id": "p\ud800"},
        PATIENT | {"gender": nested()},
        encounter(period={"start": "9999-12", "end": "9999-12"}),
        encounter(type=nested()),
        encounter(subject={"reference": "Patient/p1", "type": nested()}),
        observation(code=nested()),
        observation(code={"coding": [{"system": nested(), "code": "x"}]}),
        observation(valueQuantity={"value": 5, "unit": "mg\udc00"}),
        observation(code={"coding": [{"system": LOINC, "code": "2345-7", "display": "Glucose \ud83d"}]}),
    ],
)
def test_odd_records_are_read_and_their_words_can_be_written(tmp_path, line):
    write(tmp_path, *([PATIENT] if line["resourceType"] != "Patient" else []), line)
    assert read_all(tmp_path)


def test_odd_records_that_cannot_be_read_are_one_sentence(tmp_path):
    write(tmp_path, PATIENT, observation(valueQuantity={"value": nested()}))
    with refused("invalid-element", match="line 1"):
        read_all(tmp_path)
    (tmp_path / "Observation.ndjson").write_text(json.dumps(observation()) + "\n" + json.dumps({"resourceType": nested()}))
    with refused("mixed-resources", match="line 2"):
        read_all(tmp_path)


def test_bytes_of_half_a_pair_are_replaced(tmp_path):
    write(tmp_path, PATIENT)
    raw = json.dumps(observation(valueQuantity={"value": 5, "unit": "mg~"})).encode()
    (tmp_path / "Observation.ndjson").write_bytes(raw.replace(b"~", b"\xed\xa0\x80"))
    assert "mg?" in " ".join(read_all(tmp_path))


def damage(packed: bytes, name: str) -> bytes:
    """Change a zip: encrypt its members, name an unknown method, or damage their data."""
    out = bytearray(packed)
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = out.find(mark)
        while place >= 0:
            if name == "encrypted":
                out[place + flags] |= 1
            elif name == "unknown":
                out[place + flags + 2] = 77
            place = out.find(mark, place + 4)
    if name == "lzma":
        start = out.find(b"Patient.ndjson") + len(b"Patient.ndjson") + 9
        out[start : start + 20] = b"\xff" * 20
    return bytes(out)


@pytest.mark.parametrize("name", ["encrypted", "unknown", "lzma"])
def test_zips_that_cannot_be_unpacked_are_refused(tmp_path, name):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("Patient.ndjson", (json.dumps(PATIENT) + "\n") * 50)
    (tmp_path / "export.zip").write_bytes(damage(held.getvalue(), name))
    with refused("truncated-file"):
        read_all(tmp_path / "export.zip")


def load(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@pytest.mark.data("fhir")
def test_synthea_export_gives_the_counts_of_its_lines(data_folder):
    """Counts of a day before each visit, recomputed from the text of the times."""
    folder = data_folder / "fhir"
    cohort = parse_cohort(
        {
            "include": {"visit": ["inpatient", "emergency"]},
            "outcome": {"condition": ["SNOMED:271737000"], "within": "365 days", "complete_follow_up": False},
            "features": {
                "reconciliations": {"procedure": ["SNOMED:430193006"], "take": "count"},
                "lisinopril": {"drug": ["RxNorm:314076"], "take": "count"},
                "sex": True,
            },
        }
    )
    table = extract_table(cohort, FhirSource(folder)).table
    patients = {p["id"]: p for p in load(folder / "Patient.000.ndjson.gz")}
    stays = [
        (e["subject"]["reference"].removeprefix("Patient/"), e["period"]["start"][:19])
        for e in load(folder / "Encounter.000.ndjson.gz")
        if e["class"]["code"] in ("IMP", "EMER")
    ]
    stays.sort()
    events = {
        "reconciliations": [
            (p["subject"]["reference"], p["performedPeriod"]["start"][:10])
            for p in load(folder / "Procedure.000.ndjson.gz")
            if p["code"]["coding"][0]["code"] == "430193006"
        ],
        "lisinopril": [
            (m["subject"]["reference"], m["authoredOn"][:10])
            for m in load(folder / "MedicationRequest.000.ndjson.gz")
            if m.get("medicationCodeableConcept", {}).get("coding", [{}])[0].get("code") == "314076"
        ],
    }
    assert len(stays) == 72
    assert list(zip(table.columns["patient"], table.columns["visit_start"], strict=True)) == stays
    assert table.columns["sex"].tolist() == [patients[p]["gender"] for p, _ in stays]
    for name, found in events.items():
        expected = [sum(who == f"Patient/{p}" and day < start[:10] for who, day in found) for p, start in stays]
        assert sum(expected) > 0 and table.columns[name].tolist() == expected
