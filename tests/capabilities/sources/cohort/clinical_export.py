"""Writers of OMOP tables and of FHIR resources from one set of clinical events, for tests that read both."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

SYSTEMS = {
    "LOINC": "http://loinc.org",
    "SNOMED": "http://snomed.info/sct",
    "ICD9CM": "http://hl7.org/fhir/sid/icd-9-cm",
    "ICD10CM": "http://hl7.org/fhir/sid/icd-10-cm",
    "RxNorm": "http://www.nlm.nih.gov/research/umls/rxnorm",
    "ATC": "http://www.whocc.no/atc",
}
UNITS = {
    "mg/dL": 8840, "mmol/L": 8753, "umol/L": 8749, "mm[Hg]": 8876, "/min": 8541, "Cel": 586323, "%": 8554,
}  # fmt: skip
VISIT_CONCEPTS = {"inpatient": 9201, "outpatient": 9202, "emergency": 9203, "icu": 32037}
CLASSES = {"inpatient": "IMP", "outpatient": "AMB", "emergency": "EMER", "icu": "ACUTE"}
SEX_CONCEPTS = {"male": 8507, "female": 8532}


@dataclass(frozen=True)
class Patient:
    """A patient; `birth` is "1950", "1950-04" or "1950-04-17", `death` a day or a time."""

    id: int
    birth: str | None = None
    sex: str | None = None
    death: str | None = None


@dataclass(frozen=True)
class Stay:
    """A visit; times are "2020-01-01T08:30:00", or days."""

    id: int
    patient: int
    kind: str
    start: str
    end: str | None
    part_of: int | None = None


@dataclass(frozen=True)
class Event:
    """A condition, measurement, observation, drug or procedure, with one code such as "LOINC:2345-7"."""

    domain: str
    patient: int
    code: str
    time: str
    value: float | None = None
    unit: str | None = None
    word: str | None = None  # a coded value
    stay: int | None = None


@dataclass(frozen=True)
class Hospital:
    """Events of a hospital, and the standard codes and descendants that its vocabulary has."""

    patients: Sequence[Patient]
    stays: Sequence[Stay]
    events: Sequence[Event]
    maps_to: Mapping[str, str] = field(default_factory=dict)  # source code -> standard code
    below: Sequence[tuple[str, str]] = ()  # (ancestor, descendant)


def split(code: str) -> tuple[str, str]:
    """Split "LOINC:2345-7" into vocabulary and code."""
    vocabulary, _, plain = code.partition(":")
    return vocabulary, plain


def number_concepts(hospital: Hospital) -> dict[str, int]:
    """Give every code that the hospital uses a concept id."""
    used = {e.code for e in hospital.events} | {e.word for e in hospital.events if e.word}
    used |= set(hospital.maps_to) | set(hospital.maps_to.values()) | {c for pair in hospital.below for c in pair}
    return {code: 2_000_000_001 + i for i, code in enumerate(sorted(used))}


def write_omop(hospital: Hospital, folder: Path, *, version: str = "5.4", vocabulary: bool = True) -> Path:
    """Write the tables of OMOP CDM 5.3 or 5.4 as CSV; 5.3 with names in capital letters, as older databases export them."""
    concepts = number_concepts(hospital)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "person": [_person_row(p) for p in hospital.patients],
        "visit_occurrence": [_visit_row(s, version) for s in hospital.stays],
        "death": [_death_row(p) for p in hospital.patients if p.death],
        "cdm_source": [{"cdm_source_name": "test", "cdm_version": f"v{version}"}],
    }
    for domain, row in {
        "condition": _condition_row, "measurement": _value_row, "observation": _value_row, "drug": _drug_row,
        "procedure": _procedure_row,
    }.items():  # fmt: skip
        names = {"condition": "condition_occurrence", "drug": "drug_exposure", "procedure": "procedure_occurrence"}
        mine = [e for e in hospital.events if e.domain == domain]
        tables[names.get(domain, domain)] = [row(i, e, concepts, hospital) for i, e in enumerate(mine, start=1)]
    if vocabulary:
        tables |= _vocabulary(hospital, concepts)
    for name, rows in tables.items():
        frame = pd.DataFrame(rows)
        if rows:
            if version == "5.3":
                frame.columns = [c.upper() for c in frame.columns]
            frame.to_csv(folder / f"{name.upper() if version == '5.3' else name}.csv", index=False)
    for name, columns in _EMPTY.items():  # tables without a row have a header
        if not tables[name]:
            (folder / f"{name.upper() if version == '5.3' else name}.csv").write_text(columns + "\n")
    return folder


_EMPTY = {
    "death": "person_id,death_date,death_datetime",
    "condition_occurrence": "condition_occurrence_id,person_id,condition_concept_id,condition_start_date",
    "measurement": "measurement_id,person_id,measurement_concept_id,measurement_date,value_as_number",
    "observation": "observation_id,person_id,observation_concept_id,observation_date,value_as_number",
    "drug_exposure": "drug_exposure_id,person_id,drug_concept_id,drug_exposure_start_date",
    "procedure_occurrence": "procedure_occurrence_id,person_id,procedure_concept_id,procedure_date",
}


def _day(time: str | None) -> str | None:
    return None if time is None else time[:10]


def _moment(time: str | None) -> str | None:
    """Return the time of day in a column of times; None where only the day is known."""
    return time.replace("T", " ") if time is not None and "T" in time else None


def _person_row(p: Patient) -> dict[str, object]:
    year, month, day = ([*(p.birth or "").split("-"), None, None][:3]) if p.birth else (None, None, None)
    return {
        "person_id": p.id, "gender_concept_id": SEX_CONCEPTS.get(p.sex or "", 0), "year_of_birth": year,
        "month_of_birth": month and str(int(month)), "day_of_birth": day and str(int(day)), "race_concept_id": 0,
        "ethnicity_concept_id": 0, "gender_source_value": p.sex,
    }  # fmt: skip


def _visit_row(s: Stay, version: str) -> dict[str, object]:
    source = "admitting_source_concept_id" if version == "5.3" else "admitted_from_concept_id"
    return {
        "visit_occurrence_id": s.id, "person_id": s.patient, "visit_concept_id": VISIT_CONCEPTS.get(s.kind, 0),
        "visit_start_date": _day(s.start), "visit_start_datetime": _moment(s.start), "visit_end_date": _day(s.end),
        "visit_end_datetime": _moment(s.end), "visit_type_concept_id": 32817, source: 0,
    }  # fmt: skip


def _death_row(p: Patient) -> dict[str, object]:
    return {"person_id": p.id, "death_date": _day(p.death), "death_datetime": _moment(p.death)}


def _coded(e: Event, concepts: Mapping[str, int], hospital: Hospital, name: str) -> dict[str, object]:
    """Return the columns of a code: the standard concept, the source concept and the source's word."""
    standard = hospital.maps_to.get(e.code)
    is_source = split(e.code)[0].startswith("ICD")
    return {
        "person_id": e.patient,
        f"{name}_concept_id": concepts[standard] if standard else 0 if is_source else concepts[e.code],
        f"{name}_source_concept_id": concepts[e.code] if is_source else 0,
        f"{name}_source_value": split(e.code)[1],
        "visit_occurrence_id": e.stay,
    }


def _condition_row(i: int, e: Event, concepts: Mapping[str, int], hospital: Hospital) -> dict[str, object]:
    return {
        "condition_occurrence_id": i, **_coded(e, concepts, hospital, "condition"),
        "condition_start_date": _day(e.time), "condition_start_datetime": _moment(e.time),
    }  # fmt: skip


def _drug_row(i: int, e: Event, concepts: Mapping[str, int], hospital: Hospital) -> dict[str, object]:
    return {
        "drug_exposure_id": i, **_coded(e, concepts, hospital, "drug"),
        "drug_exposure_start_date": _day(e.time), "drug_exposure_start_datetime": _moment(e.time),
    }  # fmt: skip


def _procedure_row(i: int, e: Event, concepts: Mapping[str, int], hospital: Hospital) -> dict[str, object]:
    return {
        "procedure_occurrence_id": i, **_coded(e, concepts, hospital, "procedure"),
        "procedure_date": _day(e.time), "procedure_datetime": _moment(e.time),
    }  # fmt: skip


def _value_row(i: int, e: Event, concepts: Mapping[str, int], hospital: Hospital) -> dict[str, object]:
    return {
        f"{e.domain}_id": i, **_coded(e, concepts, hospital, e.domain),
        f"{e.domain}_date": _day(e.time), f"{e.domain}_datetime": _moment(e.time), "value_as_number": e.value,
        "value_as_concept_id": concepts[e.word] if e.word else 0,
        "unit_concept_id": UNITS.get(e.unit or "", 0), "unit_source_value": e.unit,
    }  # fmt: skip


def _vocabulary(hospital: Hospital, concepts: Mapping[str, int]) -> dict[str, list[dict[str, object]]]:
    """Build CONCEPT, CONCEPT_RELATIONSHIP and CONCEPT_ANCESTOR for the codes that are used."""
    rows: list[dict[str, object]] = []
    for code, number in concepts.items():
        vocabulary, plain = split(code)
        standard = None if vocabulary.startswith("ICD") else "S"
        rows.append(_concept(number, plain, vocabulary, standard))
    rows += [_concept(number, unit, "UCUM", "S") for unit, number in UNITS.items()]
    maps = [
        {"concept_id_1": concepts[a], "concept_id_2": concepts[b], "relationship_id": "Maps to", "invalid_reason": None}
        for a, b in hospital.maps_to.items()
    ]
    pairs = {(c, c) for code, c in concepts.items() if not code.startswith("ICD")}
    pairs |= {(concepts[a], concepts[b]) for a, b in hospital.below}
    below = [{"ancestor_concept_id": a, "descendant_concept_id": b} for a, b in sorted(pairs)]
    return {"concept": rows, "concept_relationship": maps, "concept_ancestor": below}


def _concept(number: int, code: str, vocabulary: str, standard: str | None) -> dict[str, object]:
    return {
        "concept_id": number, "concept_name": code, "domain_id": "Test", "vocabulary_id": vocabulary,
        "concept_class_id": "Test", "standard_concept": standard, "concept_code": code, "invalid_reason": None,
    }  # fmt: skip


def write_fhir(hospital: Hospital, folder: Path, *, standard: bool = True, offset: str = "-05:00") -> Path:
    """Write resources as gzip ndjson, with names and addresses as real exports have them.

    Args:
        hospital: The events.
        folder: The folder to write to.
        standard: Codings have the standard code beside the source's.
        offset: The offset from UTC of every time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "Patient.000.ndjson.gz", (_patient(p, offset) for p in hospital.patients))
    _write_lines(folder / "Encounter.000.ndjson.gz", (_encounter(s, offset) for s in hospital.stays))
    maps = hospital.maps_to if standard else {}
    values = [e for e in hospital.events if e.domain in ("measurement", "observation")]
    for part in (0, 1):
        mine = [e for e in values if e.patient % 2 == part]
        _write_lines(folder / f"Observation.00{part}.ndjson.gz", _observations(mine, offset, part))
    for domain, kind in (("condition", "Condition"), ("drug", "MedicationRequest"), ("procedure", "Procedure")):
        mine = [e for e in hospital.events if e.domain == domain]
        _write_lines(
            folder / f"{kind}.000.ndjson.gz", (_clinical(kind, i, e, maps, offset) for i, e in enumerate(mine))
        )
    return folder


def _write_lines(path: Path, resources: Iterable[Mapping[str, object]]) -> None:
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(json.dumps(r) + "\n" for r in resources)


def _stamp(time: str, offset: str) -> str:
    return time + offset if "T" in time else time


def _patient(p: Patient, offset: str) -> dict[str, object]:
    plain: dict[str, object] = {
        "resourceType": "Patient", "id": str(p.id), "name": [{"family": f"Family{p.id}"}], "gender": p.sex or "unknown",
    }  # fmt: skip
    if p.birth:
        plain["birthDate"] = p.birth
    if p.death:
        plain["deceasedDateTime"] = _stamp(p.death, offset)
    return plain


def _encounter(s: Stay, offset: str) -> dict[str, object]:
    period = {"start": _stamp(s.start, offset)} | ({"end": _stamp(s.end, offset)} if s.end else {})
    plain: dict[str, object] = {
        "resourceType": "Encounter", "id": str(s.id), "status": "finished" if s.end else "in-progress",
        "class": {"code": CLASSES.get(s.kind, "FLD")}, "subject": {"reference": f"Patient/{s.patient}"},
        "period": period,
    }  # fmt: skip
    if s.kind == "icu":
        plain["type"] = [_concept_of("SNOMED:305351004")]
    if s.part_of is not None:
        plain["partOf"] = {"reference": f"Encounter/{s.part_of}"}
    return plain


def _concept_of(*codes: str) -> dict[str, object]:
    return {"coding": [{"system": SYSTEMS[split(c)[0]], "code": split(c)[1]} for c in codes]}


def _base(kind: str, name: str, e: Event) -> dict[str, object]:
    plain: dict[str, object] = {
        "resourceType": kind, "id": name, "status": "final" if kind == "Observation" else "completed",
        "subject": {"reference": f"urn:uuid:{e.patient}" if e.patient % 2 else f"https://ehr.example/Patient/{e.patient}"},
    }  # fmt: skip
    if e.stay is not None:
        plain["encounter"] = {"reference": f"Encounter/{e.stay}"}
    return plain


def _observations(events: Sequence[Event], offset: str, part: int) -> Iterable[dict[str, object]]:
    """Write observations; neighbouring ones of one time are components of a panel, as blood pressures are."""
    i = 0
    while i < len(events):
        e = events[i]
        plain = _base("Observation", f"{part}-{i}", e) | {"effectiveDateTime": _stamp(e.time, offset)}
        following = events[i + 1] if i + 1 < len(events) else None
        if following is not None and (e.code, following.code) == ("LOINC:8480-6", "LOINC:8462-4"):
            assert (e.patient, e.time) == (following.patient, following.time)
            parts = [{"code": _concept_of(x.code)} | _value(x) for x in (e, following)]
            yield plain | {"code": _concept_of("LOINC:85354-9"), "component": parts}
            i += 2
        else:
            yield plain | {"code": _concept_of(e.code)} | _value(e)
            i += 1


def _value(e: Event) -> dict[str, object]:
    if e.word:
        return {"valueCodeableConcept": _concept_of(e.word)}
    if e.value is None:
        return {}
    return {"valueQuantity": {"value": e.value} | ({"code": e.unit} if e.unit else {})}


def _clinical(kind: str, i: int, e: Event, maps: Mapping[str, str], offset: str) -> dict[str, object]:
    codes = (e.code, maps[e.code]) if e.code in maps else (e.code,)
    key = {"Condition": "recordedDate", "MedicationRequest": "authoredOn", "Procedure": "performedDateTime"}[kind]
    code = "medicationCodeableConcept" if kind == "MedicationRequest" else "code"
    plain = _base(kind, str(i), e) | {code: _concept_of(*codes), key: _stamp(e.time, offset)}
    if kind == "MedicationRequest":
        plain["intent"] = "order"
    if kind == "Condition":
        del plain["status"]
        plain["verificationStatus"] = {"coding": [{"code": "confirmed"}]}
    return plain
