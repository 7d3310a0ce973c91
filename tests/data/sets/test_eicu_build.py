"""One table of the whole eICU database: rules of inclusion and first-day figures, by hand, on made-up rows."""

from __future__ import annotations

import gzip
import hashlib
import json
import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grandrounds as gr
from grandrounds.data.download import Source
from grandrounds.data.sets import eicu, eicu_tables
from grandrounds.data.sets.eicu import LATER
from grandrounds.data.sets.eicu_build import build_table, check_out, write_files
from grandrounds.data.sets.eicu_tables import LABS, VITALS, Sums
from grandrounds.data.sets.public_ranges import EICU, EICU_LEVELS
from grandrounds.experiment.experiment import Experiment
from tests.command import rounds
from tests.data.http_server import Page, serve
from tests.support import refused

# The header lines of eICU 2.0.
HEADERS = {
    "patient": "patientunitstayid,patienthealthsystemstayid,gender,age,ethnicity,hospitalid,wardid,apacheadmissiondx,"
    "admissionheight,hospitaladmittime24,hospitaladmitoffset,hospitaladmitsource,hospitaldischargeyear,"
    "hospitaldischargetime24,hospitaldischargeoffset,hospitaldischargelocation,hospitaldischargestatus,unittype,"
    "unitadmittime24,unitadmitsource,unitvisitnumber,unitstaytype,admissionweight,dischargeweight,"
    "unitdischargetime24,unitdischargeoffset,unitdischargelocation,unitdischargestatus,uniquepid",
    "hospital": "hospitalid,numbedscategory,teachingstatus,region",
    "apachePatientResult": "apachepatientresultsid,patientunitstayid,physicianspeciality,"
    "physicianinterventioncategory,acutephysiologyscore,apachescore,apacheversion,predictedicumortality,"
    "actualicumortality,predictediculos,actualiculos,predictedhospitalmortality,actualhospitalmortality,"
    "predictedhospitallos,actualhospitallos,preopmi,preopcardiaccath,ptcawithin24h,unabridgedunitlos,"
    "unabridgedhosplos,actualventdays,predventdays,unabridgedactualventdays",
    "apacheApsVar": "apacheapsvarid,patientunitstayid,intubated,vent,dialysis,eyes,motor,verbal,meds,urine,wbc,"
    "temperature,respiratoryrate,sodium,heartrate,meanbp,ph,hematocrit,creatinine,albumin,pao2,pco2,bun,glucose,"
    "bilirubin,fio2",
    "vitalPeriodic": "vitalperiodicid,patientunitstayid,observationoffset,temperature,sao2,heartrate,respiration,cvp,"
    "etco2,systemicsystolic,systemicdiastolic,systemicmean,pasystolic,padiastolic,pamean,st1,st2,st3,icp",
    "vitalAperiodic": "vitalaperiodicid,patientunitstayid,observationoffset,noninvasivesystolic,noninvasivediastolic,"
    "noninvasivemean,paop,cardiacoutput,cardiacinput,svr,svri,pvr,pvri",
    "lab": "labid,patientunitstayid,labresultoffset,labtypeid,labname,labresult,labresulttext,labmeasurenamesystem,"
    "labmeasurenameinterface,labresultrevisedoffset",
    "nurseCharting": "nursingchartid,patientunitstayid,nursingchartoffset,nursingchartentryoffset,"
    "nursingchartcelltypecat,nursingchartcelltypevallabel,nursingchartcelltypevalname,nursingchartvalue",
    "intakeOutput": "intakeoutputid,patientunitstayid,intakeoutputoffset,intaketotal,outputtotal,dialysistotal,"
    "nettotal,intakeoutputentryoffset,cellpath,celllabel,cellvaluenumeric,cellvaluetext",
}

# stay, time in hospital, patient, hospital, age, visit, year, outcome, minutes in the unit
STAYS = [
    (101, 1001, "A", 1, "65", 1, 2014, "Alive", 3000),
    (102, 1001, "A", 1, "65", 2, 2014, "Alive", 3000),  # second ICU stay of one time in hospital
    (103, 1002, "A", 1, "66", 1, 2015, "Alive", 3000),  # came back the year after
    (104, 1003, "B", 1, "> 89", 1, 2014, "Expired", 1440),
    (105, 1004, "C", 1, "17", 1, 2014, "Alive", 3000),  # a minor
    (106, 1005, "D", 1, "", 1, 2014, "Alive", 3000),  # nobody knows the age
    (107, 1006, "E", 2, "18", 1, 2015, "Alive", 120),  # two hours only: kept, unless told otherwise
    (108, 1007, "F", 2, "40", 1, 2015, "", 3000),  # nobody knows the outcome
    (109, 1008, "G", 3, "50", 1, 2015, "Alive", 3000),  # hospital 3 records one length of stay of three
    (110, 1009, "H", 3, "50", 1, 2015, "Alive", 3000),
    (111, 1010, "I", 3, "50", 1, 2015, "Alive", 3000),
    (112, 1011, "J", 4, "50", 1, 2015, "Expired", 3000),  # hospital 4 records one of two: just enough
    (113, 1012, "K", 4, "50", 1, 2015, "Alive", 3000),
    (114, 1013, "L", 2, "51", 1, 2015, "Alive", 3000),  # a year older than in 115, so the later of the two
    (115, 1014, "L", 2, "50", 1, 2015, "Alive", 3000),
    (116, 1016, "M", 2, "50", 1, 2015, "Alive", 3000),  # no telling which was first: the lower number, 117
    (117, 1015, "M", 2, "50", 1, 2015, "Alive", 3000),
    (118, 1017, "N", 2, "50", 2, 2015, "Alive", 3000),  # the first ICU stay is not in the database
]
KEPT = [101, 104, 107, 112, 113, 115, 117]
RECORDED = [101, 102, 103, 104, 107, 108, 111, 112, 114, 115, 116, 117]

FLOWSHEET = "flowsheet|Flowsheet Cell Labels|I&O"

ROWS: dict[str, list[dict[str, object]]] = {
    "hospital": [
        {"hospitalid": 1, "numbedscategory": ">= 500", "teachingstatus": "t", "region": "Midwest"},
        {"hospitalid": 2, "numbedscategory": "<100", "teachingstatus": "f", "region": "South"},
        {"hospitalid": 4, "numbedscategory": "", "teachingstatus": "f", "region": ""},
    ],
    "apachePatientResult": [
        {"patientunitstayid": stay, "apacheversion": version, "actualiculos": 1.5}
        for stay in RECORDED
        for version in ("IV", "IVa")  # two rows a stay: what repeats rows in a careless join
    ]
    + [{"patientunitstayid": 109, "apacheversion": "IV", "actualiculos": -1}],
    "apacheApsVar": [
        {"patientunitstayid": 101, "vent": 1, "wbc": 12.5, "ph": -1},
        {"patientunitstayid": 102, "vent": 0},
    ],
    "vitalPeriodic": [
        {"patientunitstayid": 101, "observationoffset": 0, "heartrate": 80, "systemicsystolic": 120},
        {"patientunitstayid": 101, "observationoffset": 1440, "heartrate": 100, "temperature": 37.0},
        {"patientunitstayid": 101, "observationoffset": -1, "heartrate": 60},  # before the unit
        {"patientunitstayid": 101, "observationoffset": 1441, "heartrate": 60},  # the second day
        {
            "patientunitstayid": 101,
            "observationoffset": 10,
            "heartrate": 0,
            "temperature": 98.6,
        },  # artefact; Fahrenheit
        {"patientunitstayid": 104, "observationoffset": 5, "sao2": 91, "respiration": 22},
        {"patientunitstayid": 102, "observationoffset": 5, "heartrate": 150},  # not in the cohort
    ],
    "vitalAperiodic": [
        {"patientunitstayid": 101, "observationoffset": 6, "noninvasivesystolic": 100, "noninvasivemean": 70},
        {"patientunitstayid": 101, "observationoffset": 2000, "noninvasivesystolic": 30},
    ],
    "lab": [
        {"patientunitstayid": 101, "labresultoffset": 3, "labname": "creatinine", "labresult": 1.0},
        {"patientunitstayid": 101, "labresultoffset": 700, "labname": "creatinine", "labresult": 2.0},
        {"patientunitstayid": 101, "labresultoffset": -20, "labname": "creatinine", "labresult": 9.0},
        {"patientunitstayid": 101, "labresultoffset": 3, "labname": "glucose", "labresult": 100},
        {"patientunitstayid": 101, "labresultoffset": 3, "labname": "bedside glucose", "labresult": 140},
        {
            "patientunitstayid": 101,
            "labresultoffset": 3,
            "labname": "CRP",
            "labresult": 5,
            "labmeasurenamesystem": "mg/dL",
        },
        {
            "patientunitstayid": 104,
            "labresultoffset": 3,
            "labname": "CRP",
            "labresult": 5,
            "labmeasurenamesystem": "mg/L",
        },
        {"patientunitstayid": 101, "labresultoffset": 3, "labname": "FiO2", "labresult": 0.4},  # a share, not per cent
        {"patientunitstayid": 101, "labresultoffset": 3, "labname": "Base Excess", "labresult": -5},
        {"patientunitstayid": 101, "labresultoffset": 3, "labname": "sodium", "labresult": ""},
        {"patientunitstayid": 101, "labresultoffset": 3, "labname": "ammonia", "labresult": 7},  # none of ours
    ],
    "nurseCharting": [
        {"nursingchartcelltypevalname": "Temperature (C)", "nursingchartvalue": "38.0"},
        {"nursingchartcelltypevalname": "Temperature (F)", "nursingchartvalue": "99.5"},
        {"nursingchartcelltypevalname": "Temperature (C)", "nursingchartvalue": "refused"},
    ],
    "intakeOutput": [
        {"cellpath": f"{FLOWSHEET}|Output (ml)|Urine", "cellvaluenumeric": 200},
        {"cellpath": f"{FLOWSHEET}|Output (ml)|Indwelling Foley", "cellvaluenumeric": 300},
        {"cellpath": f"{FLOWSHEET}|Output (ml)|Emesis", "cellvaluenumeric": 80},
        {"cellpath": f"{FLOWSHEET}|Intake (ml)|Urine Cup", "cellvaluenumeric": 50},
    ],
}
for chart in ROWS["nurseCharting"]:
    chart |= {"patientunitstayid": 101, "nursingchartoffset": 60}
for cell in ROWS["intakeOutput"]:
    cell |= {"patientunitstayid": 101, "intakeoutputoffset": 600}
ROWS["patient"] = [
    {
        "patientunitstayid": stay, "patienthealthsystemstayid": time, "uniquepid": pid, "hospitalid": hospital,
        "age": age, "unitvisitnumber": visit, "hospitaldischargeyear": year, "hospitaldischargestatus": outcome,
        "unitdischargeoffset": minutes, "gender": "Female", "ethnicity": "Asian", "unittype": "MICU",
        "apacheadmissiondx": "Sepsis, pulmonary", "admissionweight": 70.5,
    }
    for stay, time, pid, hospital, age, visit, year, outcome, minutes in STAYS
]  # fmt: skip


def write_table(folder, name: str, rows, *, header: str | None = None, packed: bool = False) -> None:
    """A table in eICU's layout: every column of its header, blank where a row says nothing."""
    columns = (header or HEADERS[name]).split(",")
    frame = pd.DataFrame([{c: row.get(c, "") for c in columns} for row in rows], columns=columns)
    text = frame.to_csv(index=False).encode()
    (folder / f"{name}.csv{'.gz' if packed else ''}").write_bytes(gzip.compress(text) if packed else text)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "eicu").mkdir()
    for i, name in enumerate(HEADERS):
        write_table(tmp_path / "eicu", name, ROWS[name], packed=i % 2 == 0)
    return tmp_path / "eicu"


def test_each_rule_leaves_out_whom_it_should(folder):
    built = build_table(folder)
    assert built.table["patientunitstayid"].tolist() == KEPT
    assert [(s.rule, s.left_out, s.stays, s.patients, s.hospitals) for s in built.steps] == [
        ("stays in the database", 0, 18, 14, 4),
        ("adults (18 or older)", 2, 16, 12, 4),  # 105, 106
        ("first ICU stay of the patient", 5, 11, 11, 4),  # 102, 103, 114, 116, 118
        ("hospital records half its lengths of stay", 3, 8, 8, 3),  # 109, 110, 111
        ("outcome in hospital known", 1, 7, 7, 3),  # 108
    ]
    assert built.flow["first_stay_undecided"] == 1
    assert built.flow["deaths"] == 2
    assert built.flow["without_vitals"] == 5


def test_short_stays_can_be_left_out(folder):
    built = build_table(folder, least_hours=24)
    assert built.table["patientunitstayid"].tolist() == [stay for stay in KEPT if stay != 107]
    assert ("at least 24 hours in the unit", 1) in [(s.rule, s.left_out) for s in built.steps]


def test_figures_of_the_first_day_by_hand(folder):
    table = build_table(folder).table.set_index("patientunitstayid")
    one = table.loc[101]
    expected = {
        "hr_mean": 90.0, "hr_min": 80.0, "hr_max": 100.0, "hr_std": 14.1421,  # 80 and 100
        "sbp_mean": 110.0, "sbp_min": 100.0, "sbp_max": 120.0, "sbp_std": 14.1421,  # a line and a cuff
        "map_mean": 70.0, "map_min": 70.0, "map_max": 70.0,
        "temp_mean": 37.5, "temp_std": 0.7071,  # a probe and a nurse
        "crea_mean": 1.5, "glu_mean": 120.0, "crp_mean": 50.0, "be_mean": -5.0,
        "urine_sum": 500.0, "aps_vent": 1.0, "aps_wbc": 12.5,
        "age": 65.0, "admissionweight": 70.5, "teachingstatus": 1.0, "died_in_hospital": 0,
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected
    assert all(pd.isna(one[name]) for name in ("map_std", "dbp_mean", "fio2_mean", "na_mean", "aps_ph", "o2sat_mean"))
    assert (one["region"], one["numbedscategory"], one["ethnicity"]) == ("Midwest", ">= 500", "Asian")
    two = table.loc[104]
    assert (two["age"], two["o2sat_mean"], two["resp_max"], two["crp_mean"], two["died_in_hospital"]) == (
        90,
        91,
        22,
        5,
        1,
    )
    assert pd.isna(table.loc[112, "region"])
    assert pd.isna(table.loc[113, "hr_mean"])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_pieces_of_any_size_give_the_same_table(folder, rows, monkeypatch):
    full = build_table(folder)
    monkeypatch.setattr(eicu_tables, "ROWS", rows)
    pieces = build_table(folder)
    pd.testing.assert_frame_equal(pieces.table, full.table)
    assert pieces.flow == full.flow


READINGS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.floats(20, 300)), min_size=1, max_size=80)


@given(READINGS, st.integers(0, 80))
@settings(max_examples=100, deadline=None)
def test_sums_are_what_pandas_finds_in_all_rows_at_once(readings, cut):
    index, measure, value = (np.array(column) for column in zip(*readings, strict=True))
    sums = Sums.empty(4, np.array([100.0, 80.0]))
    for part in (slice(None, cut), slice(cut, None)):
        sums.add(index[part], measure[part], value[part])
    frame = pd.DataFrame({"at": index, "measure": measure, "value": value})
    figures = frame.groupby(["at", "measure"])["value"].agg(["mean", "std", "min", "max"])
    for (stay, j), result in figures.iterrows():
        mine = [sums.mean[stay, j], sums.std[stay, j], sums.least[stay, j], sums.largest[stay, j]]
        np.testing.assert_allclose(mine, result.to_numpy(), rtol=1e-9, atol=1e-5)
    assert np.isnan(sums.mean).sum() == 8 - len(figures)


def test_without_the_optional_tables(folder):
    for name in ("nurseCharting.csv", "intakeOutput.csv.gz", "nurseCharting.csv.gz", "intakeOutput.csv"):
        (folder / name).unlink(missing_ok=True)
    built = build_table(folder)
    assert built.flow["absent_tables"] == ["nurseCharting", "intakeOutput"]
    assert built.table["urine_sum"].isna().all()
    assert built.table["temp_mean"].dropna().tolist() == [37.0]


def test_names_of_files_and_columns_in_any_case(folder):
    result = next(folder.glob("lab.csv*"))
    result.rename(folder / result.name.upper())
    (folder / "hospital.csv").unlink(missing_ok=True)
    write_table(folder, "hospital", [{k.upper(): v for k, v in r.items()} for r in ROWS["hospital"]],
                header=HEADERS["hospital"].upper())  # fmt: skip
    assert build_table(folder).table.loc[0, "crea_mean"] == 1.5


def test_the_command_writes_table_flow_and_experiment(folder, tmp_path):
    process = rounds("data", "build-eicu", folder, "--out", "eicu.parquet", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "outcome in hospital known" in process.stdout
    assert "2 of 7 died in hospital (28.6%)" in process.stdout
    assert "lab.csv" in process.stderr
    flow = json.loads((tmp_path / "eicu.flow.json").read_text())
    assert (flow["schema"], flow["steps"][-1]["stays"]) == ("grandrounds/eicu-flow/1", 7)
    assert flow["rows"][next(folder.glob("lab.csv*")).name] == {"read": 11, "used": 8}
    table = pd.read_parquet(tmp_path / "eicu.parquet")
    pd.testing.assert_frame_equal(table, build_table(folder).table, check_dtype=False)
    again = rounds("data", "build-eicu", folder, "--out", "eicu.parquet", cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "is there already" in again.stderr
    (tmp_path / "eicu.parquet").unlink()
    with refused("file-exists", match="flow.json"):  # nor is an experiment written over
        check_out(tmp_path / "eicu.parquet")


def test_the_tables_of_the_demo_are_downloaded(folder, tmp_path, monkeypatch):
    with serve() as server:
        tables = []
        for path in sorted(folder.iterdir()):
            data = path.read_bytes() if path.suffix == ".gz" else gzip.compress(path.read_bytes())
            name = path.name.removesuffix(".gz") + ".gz"
            server.pages[f"/{name}"] = Page(data)
            sha256 = hashlib.sha256(data).hexdigest()
            tables.append(Source(f"eicu_demo/{name}", (server.at(f"/{name}"),), checksum=f"sha256:{sha256}"))
        assert [t.name for t in tables] == sorted(t.name for t in eicu.EICU_DEMO_TABLES)
        monkeypatch.setattr(eicu, "EICU_DEMO_TABLES", tuple(tables))
        for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        process = rounds("data", "build-eicu", "--demo", "--out", tmp_path / "demo.csv", env=cache)
    assert process.returncode == 0, process.stderr
    assert pd.read_csv(tmp_path / "demo.csv")["patientunitstayid"].tolist() == KEPT
    process = rounds("data", "build-eicu", "--out", tmp_path / "other.csv")
    assert process.returncode == 2 and "give the folder with eICU's .csv.gz files, or --demo" in process.stderr


def damaged(folder, how: str) -> None:
    if how.startswith("missing file"):
        for name in ("lab", "hospital") if how == "missing files" else ("lab",):
            next(folder.glob(f"{name}.csv*")).unlink()
    elif how == "missing column":
        next(folder.glob("lab.csv*")).unlink()
        write_table(folder, "lab", ROWS["lab"], header=HEADERS["lab"].replace("labresult,", "result,"))
    elif how == "cut gzip":
        next(folder.glob("vitalPeriodic.csv*")).unlink()
        noise = [{"patientunitstayid": 101, "observationoffset": i, "heartrate": i % 97 + 30} for i in range(2000)]
        write_table(folder, "vitalPeriodic", noise, packed=True)
        path = folder / "vitalPeriodic.csv.gz"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "no gzip":
        next(folder.glob("lab.csv*")).unlink()
        (folder / "lab.csv.gz").write_text(HEADERS["lab"] + "\n")
    elif how == "empty":
        next(folder.glob("hospital.csv*")).unlink()
        (folder / "hospital.csv").write_text("")
    elif how == "text":
        next(folder.glob("lab.csv*")).unlink()
        write_table(folder, "lab", [{**ROWS["lab"][0], "labresult": "high"}])
    else:
        table = how.removeprefix("repeated ")
        next(folder.glob(f"{table}.csv*")).unlink()
        write_table(folder, table, [*ROWS[table], ROWS[table][0]])


@pytest.mark.parametrize(
    ("how", "code", "value"),
    [
        ("missing file", "file-not-found", "lab.csv.gz"),
        ("missing files", "file-not-found", "hospital.csv.gz.*lab.csv.gz"),
        ("missing column", "missing-columns", "'labresult'"),
        ("cut gzip", "damaged-file", None),
        ("no gzip", "damaged-file", None),
        ("empty", "empty-table", None),
        ("text", "damaged-file", None),
        ("repeated patient", "repeated-ids", "101 is"),
        ("repeated hospital", "repeated-ids", "1"),
        ("repeated apacheApsVar", "repeated-ids", "101"),
    ],
)
def test_damaged_input_is_one_sentence(folder, tmp_path, how, code, value):
    damaged(folder, how)
    with refused(code, match=value):
        build_table(folder)
    if how == "cut gzip":  # and so it is on the command line
        process = rounds("data", "build-eicu", folder, "--out", "x.csv", cwd=tmp_path)
        assert process.returncode == 2
        assert process.stderr.strip().splitlines()[-1].startswith("error: ")
        assert "Traceback" not in process.stderr
        assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize(("out", "said"), [("eicu.xlsx", "write the table as one of"), ("no/eicu.csv", "not a folder")])
def test_a_place_that_cannot_be_written_is_refused_first(folder, tmp_path, out, said):
    process = rounds("data", "build-eicu", folder, "--out", out, cwd=tmp_path)
    assert (process.returncode, said in process.stderr) == (2, True)


def test_a_folder_that_is_none(tmp_path):
    process = rounds("data", "build-eicu", tmp_path / "nowhere", "--out", tmp_path / "x.csv")
    assert (process.returncode, "is not a folder" in process.stderr) == (2, True)


def test_nobody_left(folder):
    next(folder.glob("patient.csv*")).unlink()
    write_table(folder, "patient", [{**ROWS["patient"][0], "age": "3"}])
    with refused("no-rows-left"):
        build_table(folder)


@pytest.fixture(scope="module")
def demo(tmp_path_factory, data_folder):
    """The demo's own tables, as PhysioNet ships them, but for the three that could not be had: their headers only."""
    folder = tmp_path_factory.mktemp("demo")
    for name in ("patient", "hospital", "apachePatientResult", "apacheApsVar", "vitalAperiodic"):
        (folder / f"{name}.csv.gz").symlink_to(data_folder / "eicu_demo" / f"{name}.csv.gz")
    for name in ("vitalPeriodic", "lab"):
        write_table(folder, name, [])
    out = folder / "eicu.parquet"
    write_files(build_table(folder), out)
    return out


@pytest.mark.data("eicu_demo")
def test_the_demo_gives_the_columns_and_values_of_its_prepared_table(demo, data_folder):
    mine = pd.read_parquet(demo).set_index("patientunitstayid")
    theirs = pd.read_csv(data_folder / "eicu_demo" / "eicu_24h.csv.gz").set_index("patientunitstayid")
    assert list(mine.columns) == [name for name in theirs.columns if name not in LATER]
    theirs = theirs.loc[mine.index]
    measured = [f"{v}_{part}" for v in VITALS for part in ("mean", "min", "max", "std")]
    measured += [f"{lab}_mean" for lab in LABS] + ["urine_sum"]
    same = [name for name in mine.columns if name not in measured]
    pd.testing.assert_frame_equal(mine[same], theirs[same], check_dtype=False)


@pytest.mark.data("eicu_demo")
def test_what_the_demo_leaves(demo, data_folder):
    """Counted with other code: one row for each of 1,581 patients."""
    mine = pd.read_parquet(demo)
    patient = pd.read_csv(data_folder / "eicu_demo" / "patient.csv.gz").set_index("patientunitstayid")
    assert mine["uniquepid"].is_unique
    assert len(mine) == 1581
    assert mine["died_in_hospital"].sum() == 147
    chosen = patient.loc[mine["patientunitstayid"]]
    assert (chosen["unitvisitnumber"] == 1).all()
    assert set(chosen["hospitaldischargestatus"]) == {"Alive", "Expired"}
    for pid, stays in list(patient.groupby("uniquepid"))[:300]:
        years = stays["hospitaldischargeyear"]
        mine_of = chosen[chosen["uniquepid"] == pid]
        assert (mine_of["hospitaldischargeyear"] == years.min()).all()


@pytest.mark.data("eicu_demo")
@pytest.mark.parametrize("encoding", ["fitted", "public"])
def test_the_written_experiment_runs(demo, encoding, tmp_path):
    values = tomllib.loads(demo.with_suffix(".toml").read_text())
    assert values["data"]["ranges"]["hr_mean"] == list(EICU["hr_mean"])
    assert set(values["data"]["levels"]) == set(EICU_LEVELS)
    experiment = Experiment.load(demo.with_suffix(".toml"))
    run = gr.run(experiment.with_settings(["method.rounds=2", f"data.encoding={encoding}"]), out=tmp_path / "run")
    assert run.summary["final"]["count"] > 100
    assert run.summary["final"]["auroc"] > 0.55
