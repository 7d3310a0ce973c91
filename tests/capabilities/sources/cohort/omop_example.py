"""A small OMOP database whose cohort is computed by hand, written to every kind of source."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path

import pandas as pd

PERSON = [
    "person_id,gender_concept_id,year_of_birth,month_of_birth,day_of_birth,birth_datetime,gender_source_value",
    "1,8507,1950,3,10,,M",
    "2,8532,1960,,,,F",
    "3,8521,1970,6,15,1970-06-15 00:00:00,X",
    "4,0,1980,6,,,F",
    "-775517641933593374,8551,1990,1,1,,",
]
VISIT = [
    "visit_occurrence_id,person_id,visit_concept_id,visit_start_date,visit_start_datetime,visit_end_date,visit_end_datetime",
    "10,1,9201,2020-01-10,2020-01-10 08:00:00,2020-01-15,2020-01-15 12:00:00",
    "11,1,9202,2020-03-01,2020-03-01 09:00:00,2020-03-01,2020-03-01 10:00:00",
    "20,2,262,2020-02-01,2020-02-01 23:30:00,2020-02-03,2020-02-03 01:00:00",
    "30,3,32037,2020-05-05,2020-05-05 00:00:00,2020-05-07,2020-05-07 18:00:00",
    "40,4,581477,2020-06-01,,2020-06-01,",
    "41,4,99999,2020-06-02,,,",
    "50,-775517641933593374,9203,2020-07-01,2020-07-01 10:00:00,2020-07-01,2020-07-01 20:00:00",
]
CONDITION = [
    "condition_occurrence_id,person_id,condition_concept_id,condition_start_date,condition_start_datetime,"
    "visit_occurrence_id,condition_source_value,condition_source_concept_id",
    "1,1,201826,2019-12-01,,,E11.9,45533000",
    "2,2,443731,2018-06-01,2018-06-01 10:00:00,,E11.22,45533001",
    "3,3,0,2020-05-01,,,E119,0",
    "4,3,316139,2020-05-06,2020-05-06 07:00:00,30,I50.9,45567000",
]
MEASUREMENT = [
    "measurement_id,person_id,measurement_concept_id,measurement_date,measurement_datetime,operator_concept_id,"
    "value_as_number,value_as_concept_id,unit_concept_id,visit_occurrence_id,measurement_source_value,"
    "measurement_source_concept_id,unit_source_value,value_source_value",
    "1,1,3004501,2020-01-10,2020-01-10 09:00:00,,180.5,,8840,10,2345-7,3004501,mg/dl,180.5",
    "2,1,3004501,2020-01-10,2020-01-10 20:00:00,,5,,8753,10,2345-7,3004501,mmol/l,5",
    "3,1,3004501,2020-01-12,2020-01-12 08:00:00,,300,,8840,10,2345-7,3004501,mg/dl,300",
    "4,2,3004501,2020-02-02,2020-02-02 02:00:00,4171756,90,,,20,2345-7,3004501,mg/dL,<90",
    "5,3,3004501,2020-05-05,,,120,,8840,30,2345-7,3004501,mg/dl,120",
    "6,2,3013290,2020-02-02,2020-02-02 03:00:00,,,45878583,,20,94500-6,3013290,,pos",
    "7,3,3013290,2020-05-05,2020-05-05 04:00:00,,,45880296,,30,94500-6,3013290,,neg",
]
DRUG = [
    "drug_exposure_id,person_id,drug_concept_id,drug_exposure_start_date,drug_exposure_start_datetime,"
    "visit_occurrence_id,drug_source_value,drug_source_concept_id",
    "1,1,19059796,2019-11-01,2019-11-01 12:00:00,,860975,19059796",
    "2,3,1118084,2020-01-01,,,5640,1118084",
]
PROCEDURE = [
    "procedure_occurrence_id,person_id,procedure_concept_id,procedure_date,procedure_datetime,visit_occurrence_id,"
    "procedure_source_value,procedure_source_concept_id",
    "1,2,4230911,2020-01-31,,,40701008,4230911",
    "2,2,4230911,2020-01-01,,,40701008,4230911",
]
OBSERVATION = [
    "observation_id,person_id,observation_concept_id,observation_date,observation_datetime,value_as_number,value_as_string,"
    "value_as_concept_id,unit_concept_id,visit_occurrence_id,observation_source_value,observation_source_concept_id,"
    "unit_source_value",
    "1,1,40766362,2020-01-10,2020-01-10 08:30:00,20,,,,10,72166-2,40766362,",
    "2,2,40766362,2020-02-02,2020-02-02 00:10:00,,never,4144272,,20,72166-2,40766362,",
]
DEATH = ["person_id,death_date,death_datetime", "1,2020-01-15,2020-01-15 11:00:00", "3,2020-08-01,"]
PERIOD = [
    "observation_period_id,person_id,observation_period_start_date,observation_period_end_date",
    "1,1,2015-01-01,2020-12-31",
    "2,2,2015-01-01,2020-12-31",
    "3,3,2019-01-01,2020-12-31",
    "4,4,2019-01-01,2020-12-31",
]
CDM_SOURCE = ["cdm_source_name,cdm_version", "example,v5.4.0"]
CONCEPT = [
    "concept_id,concept_name,domain_id,vocabulary_id,concept_class_id,standard_concept,concept_code,valid_start_date,"
    "valid_end_date,invalid_reason",
    "201820,Diabetes mellitus,Condition,SNOMED,Disorder,S,73211009,19700101,20991231,",
    "201826,Type 2 diabetes mellitus,Condition,SNOMED,Disorder,S,44054006,19700101,20991231,",
    "443731,Renal disorder due to type 2 diabetes,Condition,SNOMED,Disorder,S,420279001,19700101,20991231,",
    "316139,Heart failure,Condition,SNOMED,Disorder,S,84114007,19700101,20991231,",
    "45533000,Type 2 diabetes without complications,Condition,ICD10CM,Code,,E11.9,19700101,20991231,",
    "45533001,Type 2 diabetes with chronic kidney disease,Condition,ICD10CM,Code,,E11.22,19700101,20991231,",
    "45567000,Heart failure,Condition,ICD10CM,Code,,I50.9,19700101,20991231,",
    "3004501,Glucose in serum,Measurement,LOINC,Lab Test,S,2345-7,19700101,20991231,",
    "3013290,SARS-CoV-2 RNA,Measurement,LOINC,Lab Test,S,94500-6,19700101,20991231,",
    "45878583,Positive,Meas Value,LOINC,Answer,S,LA6576-8,19700101,20991231,",
    "45880296,Not detected,Meas Value,LOINC,Answer,S,LA11883-8,19700101,20991231,",
    "40766362,Tobacco smoking status,Observation,LOINC,Survey,S,72166-2,19700101,20991231,",
    "4144272,Never smoked,Observation,SNOMED,Finding,S,266919005,19700101,20991231,",
    "4230911,Echocardiography,Procedure,SNOMED,Procedure,S,40701008,19700101,20991231,",
    "8840,milligram per deciliter,Unit,UCUM,Unit,S,mg/dL,19700101,20991231,",
    "8753,millimole per liter,Unit,UCUM,Unit,S,mmol/L,19700101,20991231,",
    "21600712,DRUGS USED IN DIABETES,Drug,ATC,ATC 2nd,C,A10,19700101,20991231,",
    "19059796,metformin 500 MG Oral Tablet,Drug,RxNorm,Clinical Drug,S,860975,19700101,20991231,",
    "1118084,ibuprofen,Drug,RxNorm,Ingredient,S,5640,19700101,20991231,",
]
RELATIONSHIP = [
    "concept_id_1,concept_id_2,relationship_id,valid_start_date,valid_end_date,invalid_reason",
    "45533000,201826,Maps to,19700101,20991231,",
    "45533001,443731,Maps to,19700101,20991231,",
    "45533001,316139,Maps to,19700101,20991231,D",
    "45567000,316139,Maps to,19700101,20991231,",
    "201826,45533000,Mapped from,19700101,20991231,",
]
ANCESTOR = [
    "ancestor_concept_id,descendant_concept_id,min_levels_of_separation,max_levels_of_separation",
    "201820,201820,0,0",
    "201820,201826,1,1",
    "201820,443731,2,2",
    "201826,201826,0,0",
    "201826,443731,1,1",
    "21600712,19059796,3,3",
]
TABLES = {
    "PERSON": PERSON, "VISIT_OCCURRENCE": VISIT, "CONDITION_OCCURRENCE": CONDITION, "MEASUREMENT": MEASUREMENT,
    "DRUG_EXPOSURE": DRUG, "PROCEDURE_OCCURRENCE": PROCEDURE, "OBSERVATION": OBSERVATION, "DEATH": DEATH,
    "OBSERVATION_PERIOD": PERIOD, "CDM_SOURCE": CDM_SOURCE, "CONCEPT": CONCEPT, "CONCEPT_RELATIONSHIP": RELATIONSHIP,
    "CONCEPT_ANCESTOR": ANCESTOR,
}  # fmt: skip


def write_folder(folder: Path, **changed: list[str] | None) -> Path:
    """Write the tables as CSV; `changed` replaces tables, or leaves them out with None."""
    folder.mkdir(exist_ok=True)
    for name, lines in {**TABLES, **changed}.items():
        if lines is not None:
            (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_zip(path: Path) -> Path:
    """Write the tables as CSV into a zip, with a folder and the junk that macOS adds."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, lines in TABLES.items():
            archive.writestr(f"export/{name}.csv", "\r\n".join(lines) + "\r\n")
        archive.writestr("__MACOSX/export/._PERSON.csv", b"\0\5\x16\7")
    return path


def read_frames() -> dict[str, pd.DataFrame]:
    """Read the tables with types: ids whole numbers, dates and times as such."""
    frames = {}
    for name, lines in TABLES.items():
        header, *rows = csv.reader(lines)
        frame = pd.DataFrame([[v or None for v in row] for row in rows], columns=header, dtype=object)
        words = ("domain_id", "vocabulary_id", "concept_class_id", "relationship_id")
        for column in frame:
            if column.endswith(("_id", "_of_birth", "_id_1", "_id_2")) and column not in words:
                frame[column] = pd.array([None if v is None else int(v) for v in frame[column]], dtype="Int64")
            elif column == "value_as_number":
                frame[column] = frame[column].astype(float)
            elif column.endswith("_datetime"):
                frame[column] = pd.to_datetime(frame[column])
            elif column.endswith("_date") and not column.startswith("valid"):
                frame[column] = pd.to_datetime(frame[column]).dt.date
        frames[name.lower()] = frame
    return frames


def write_parquet(folder: Path) -> Path:
    """Write the tables as Parquet, measurements in two parts."""
    folder.mkdir()
    for name, frame in read_frames().items():
        if name == "measurement":
            (folder / name).mkdir()
            frame[:3].to_parquet(folder / name / "part-0.parquet")
            frame[3:].to_parquet(folder / name / "part-1.parquet")
        else:
            frame.to_parquet(folder / f"{name}.parquet")
    return folder


def write_database(url: str, schema: str | None = None) -> str:
    """Write the tables into a database."""
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    types = {"Int64": sa.BigInteger(), "float64": sa.Numeric(20, 6) if "postgresql" in url else sa.Float()}
    with engine.begin() as connection:
        if schema:
            connection.execute(sa.schema.CreateSchema(schema))
        for name, frame in read_frames().items():
            kinds = {c: types[str(t)] for c, t in frame.dtypes.items() if str(t) in types}
            kinds |= {c: sa.Date() for c in frame if c.endswith("_date")}
            kinds |= {c: sa.DateTime() for c in frame if c.endswith("_datetime")}
            kinds |= {c: sa.String() for c in frame if c.startswith("valid") or c.endswith(("_value", "_string"))}
            if "sqlite" in url:  # dates are text there
                kinds = {c: k for c, k in kinds.items() if not isinstance(k, sa.Date | sa.DateTime)}
                frame = frame.astype({c: str for c in frame if c.endswith(("_date", "_datetime"))}).replace(
                    {"NaT": None, "None": None, "nan": None}
                )
            frame.to_sql(name, connection, schema=schema, index=False, dtype=kinds)
    engine.dispose()
    return url
