"""The eICU demo, one row a stay: death in hospital from the first 24 hours.

The demo has 2 to 17 such stays a hospital, too few to train on, so hospitals are gathered into silos by region; a
hospital without a known region goes to the silo "unknown". For methods that ask many small sites there are the
hospitals themselves, those with at least `FEWEST` stays.

The table is built from public files. Four tables are PhysioNet's own, with the checksums of its SHA256SUMS.txt. Vitals and
laboratory values by the hour come from the demo cohort of YAIB (Yet Another ICU Benchmark), which made them of
`vitalPeriodic`, `vitalAperiodic`, `nurseCharting` and `lab`; it leaves out stays below 6 hours, minors, and stays with hardly
any measurement. YAIB states no checksum: its file is known by the SHA-256 of our copy. `eicu_build.py` builds tables of
another choice of stays from the raw files.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.data.download import Progress, Source
from grandrounds.data.formats import PLAIN
from grandrounds.data.readers import read_table
from grandrounds.data.store import Build, DataFile, locate_file
from grandrounds.data.table import Table

if TYPE_CHECKING:
    import pandas as pd

KEY = "patientunitstayid"
VITALS = ["hr", "sbp", "dbp", "map", "resp", "o2sat", "temp"]
APACHE = ["intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds", "urine", "wbc", "temperature",
          "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2",
          "pco2", "bun", "glucose", "bilirubin", "fio2"]  # fmt: skip
LAB_UNITS = {
    "mg/dL": ("bili", "bili_dir", "bun", "ca", "crea", "fgn", "glu", "mg", "phos"),
    "g/dL": ("alb", "hgb", "mchc"),
    "mmol/L": ("cai", "lact"),
    "mg/L": ("crp",),
    "10^9/L": ("plt", "wbc"),
    "ng/mL": ("tnt",),
    "C": ("temp",),
    "mmHg": ("sbp", "dbp", "map", "pco2", "po2"),
    "U/L": ("alt", "ast", "alp", "ck"),
    "%": ("o2sat", "fio2", "lymph", "neut"),
}
"""Vital signs and laboratory values by unit; columns are their summaries, such as `glu_mean`."""

COLUMN_UNITS = {
    "admissionheight": "cm", "admissionweight": "kg", "age": "years", "urine_sum": "mL", "aps_glucose": "mg/dL",
    "aps_creatinine": "mg/dL", "aps_bun": "mg/dL", "aps_bilirubin": "mg/dL", "aps_albumin": "g/dL",
    "aps_hematocrit": "%", "aps_temperature": "C", "aps_meanbp": "mmHg", "aps_wbc": "10^9/L", "aps_pao2": "mmHg",
    "aps_pco2": "mmHg", "aps_fio2": "%", "aps_urine": "mL",
}  # fmt: skip
"""Units of other columns."""

PERSON = ["gender", "ethnicity", "unittype", "unitadmitsource", "unitstaytype", "unitvisitnumber", "admissionheight",
          "admissionweight", "apacheadmissiondx"]  # fmt: skip
SCORES = {"apachescore": "apache_iva_score", "predictedhospitalmortality": "apache_iva_predicted_mortality"}
OUTCOMES = {"Expired": 1, "Alive": 0}
HOURS = 24
SHA256 = "3cf0a17d5f6f76b31584704a2f36e2905b25947d467f76b53c5a9840cc47f5ff"
"""Of eicu_24h.csv, unpacked."""
KNOWN = "eicu_demo/eicu_24h.csv"
OTHER = "eicu_demo/eicu_24h_rounded.csv"
"""The same table where this machine's pandas rounds a last digit otherwise."""


def convert_eicu_demo(files: Mapping[str, Path], progress: Progress) -> dict[str, bytes]:
    """Convert the downloads to the table as CSV; its path says whether it is the known one to the last digit."""
    by_name = {Path(name).name.split(".")[0]: path for name, path in files.items()}
    table = first_day(by_name)
    progress("stays", len(table), len(table))
    out = io.StringIO()
    table.to_csv(out, index=False, lineterminator="\n")
    data = out.getvalue().encode()
    return {KNOWN if hashlib.sha256(data).hexdigest() == SHA256 else OTHER: data}


def first_day(files: Mapping[str, Path]) -> pd.DataFrame:
    """Build all stays of the demo; `cohort24` marks those with hourly values, a known outcome and 24 hours in the unit."""
    import pandas as pd

    patient = _read(files["patient"], [KEY, "uniquepid", "hospitalid", "age", *PERSON])
    hospital = _read(files["hospital"], ["hospitalid", "numbedscategory", "teachingstatus", "region"])
    table = patient[[KEY, "uniquepid", "hospitalid"]].merge(hospital, on="hospitalid", how="left", validate="m:1")
    table["teachingstatus"] = table["teachingstatus"].map({"t": 1, "f": 0})
    table["age"] = pd.to_numeric(patient["age"].replace("> 89", "90"))
    table = pd.concat([table, patient[PERSON]], axis=1)
    table = table.merge(_hourly(files["hourly"]), left_on=KEY, right_index=True, how="left", validate="1:1")
    table["in_hourly"] = table["hours_observed"].notna().astype(int)
    table = table.merge(_apache(files["apacheApsVar"]), on=KEY, how="left", validate="1:1")
    table = table.merge(_scores(files["apachePatientResult"]), on=KEY, how="left", validate="1:1")
    table["unit_los_hours"] = patient["unitdischargeoffset"] / 60.0
    table["died_in_unit"] = patient["unitdischargestatus"].map(OUTCOMES)
    table["died_in_hospital"] = patient["hospitaldischargestatus"].map(OUTCOMES)
    complete = (table["in_hourly"] == 1) & table["died_in_hospital"].notna() & (table["unit_los_hours"] >= HOURS)
    table["cohort24"] = complete.astype(int)
    numbers = table.select_dtypes("number").columns
    table[numbers] = table[numbers].round(4)
    return table.sort_values(KEY)


def _hourly(path: Path) -> pd.DataFrame:
    """Aggregate the first 24 hours of each stay: vitals by mean, min, max and deviation, laboratory by mean, urine by sum."""
    import pandas as pd

    try:
        hours = pd.read_parquet(path).rename(columns={"stay_id": KEY})
    except (OSError, ValueError) as e:
        raise BadInput(
            f"{path} cannot be read: {str(e)[:120]}; remove it and run the command again", code="damaged-file"
        ) from None
    hours = hours[hours["time"] < pd.Timedelta(hours=HOURS)]
    labs = [c for c in hours.columns if c not in (*VITALS, KEY, "time", "urine")]
    by_stay = hours.groupby(KEY)
    vitals = by_stay[VITALS].agg(["mean", "min", "max", "std"])
    vitals.columns = pd.Index([f"{vital}_{part}" for vital, part in vitals.columns])
    out = vitals.join(by_stay[labs].mean().add_suffix("_mean"))
    return out.assign(urine_sum=by_stay["urine"].sum(min_count=1), hours_observed=by_stay.size())


def _apache(path: Path) -> pd.DataFrame:
    """Read APACHE's values of the first day; -1 stands for "not known" there."""
    import numpy as np

    values = _read(path, [KEY, *APACHE])[[KEY, *APACHE]]
    return values.replace(-1, np.nan).rename(columns={name: f"aps_{name}" for name in APACHE})


def _scores(path: Path) -> pd.DataFrame:
    """Read APACHE IVa's score and its predicted mortality: a baseline to compare with, never a feature."""
    import numpy as np

    results = _read(path, [KEY, "apacheversion", *SCORES])
    results = results[results["apacheversion"] == "IVa"][[KEY, *SCORES]]
    return results.replace(-1, np.nan).rename(columns=SCORES)


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    """Read one of PhysioNet's tables; one that lacks a column is refused."""
    import pandas as pd

    try:
        table = pd.read_csv(path, compression="gzip")
    except (OSError, EOFError, ValueError) as e:
        raise BadInput(
            f"{path} cannot be read: {str(e)[:120]}; remove it and run the command again", code="damaged-file"
        ) from None
    absent = [name for name in columns if name not in table.columns]
    if absent:
        raise BadInput(
            f"{path} has no column '{absent[0]}'; the tables of the eICU demo 2.0.1 are wanted", code="missing-columns"
        )
    return table


_PHYSIONET = "https://physionet.org/files/eicu-crd-demo/2.0.1"
_EICU_TABLES: dict[str, tuple[int | None, str]] = {
    "patient": (136_791, "15e1eb52169828e3cfff3b67132a087298de4d0365bbb31bb294f6043bffd474"),
    "hospital": (759, "4ed356f9c4e7c8ce80e89241697e94b77f21c2f325cd6ad126794b1e92805ef4"),
    "apacheApsVar": (68_194, "2dc6d63f9807c7e663ffa253998691605d527b702ac1db8cc5dda92308061e78"),
    "apachePatientResult": (214_122, "ce799692737f7a712c59aa8fbb9a302cee7c719887f0638caed3ae144b166821"),
}
_EICU_MORE: dict[str, tuple[int | None, str]] = {
    "vitalPeriodic": (None, "04dc093a2e77cd4c52ac7f2a47a8356fbb7456c7f15deb20d5abb1ca4303231d"),
    "vitalAperiodic": (2_619_980, "c294f46647990cb648b3ebfa589e83f330bdc0c2c922b5e8f23aa0ef99954635"),
    "lab": (None, "e06852850abeb65211bc22ac43f17121ba41b14656fac862396449af84d8273a"),
    "nurseCharting": (None, "475000d63d4ef883b2e891d7197997201300bedc13fcf23e67add1abee11dafe"),
    "intakeOutput": (None, "45db8ee0e64a4e3745284bde5828f740175770c45d00ea0c27daff789d18106e"),
}
EICU_DEMO_TABLES = tuple(
    Source(f"eicu_demo/{name}.csv.gz", (f"{_PHYSIONET}/{name}.csv.gz",), size, f"sha256:{sha256}")
    for name, (size, sha256) in {**_EICU_TABLES, **_EICU_MORE}.items()
)
"""The demo's raw tables that `rounds data build-eicu` reads."""

_YAIB = "https://raw.githubusercontent.com/rvandewater/YAIB"
EICU_DEMO = Build(
    (
        *EICU_DEMO_TABLES[: len(_EICU_TABLES)],
        Source(
            "eicu_demo/hourly.parquet",
            (
                f"{_YAIB}/28d57335ff59a5fe84bf04d768c3fb55d186f0e6/demo_data/los/eicu_demo/dyn.parquet",
                f"{_YAIB}/development/demo_data/los/eicu_demo/dyn.parquet",
                f"{_YAIB}/b8d00499dd40874b6ead293bddf27346d1520460/demo_data/sepsis/eicu_demo/dyn.parquet",
                f"{_YAIB}/512bd405c32a68b799a793e620721172f8876c76/demo_data/aki/eicu_demo/dyn.parquet",
            ),
            1_313_278,
            "sha256:347e5058469581bbc03fc3715c02cad103b1420086021a1a44266b618204397c",
        ),
    ),
    convert_eicu_demo,
    notes=(
        "vitals and laboratory values by the hour are YAIB's, made of PhysioNet's raw tables; the other tables are "
        "PhysioNet's own",
        "the first 24 hours count; stays below 24 hours, without hourly values or without an outcome are left out",
        '"> 89" years is 90, and -1 in APACHE\'s table is a gap',
        "eicu_24h.csv is known by its SHA-256 (eicu_24h_rounded.csv where pandas rounds a last digit otherwise)",
    ),
)


NAME = "eicu-demo"
HOSPITALS = "eicu-demo-hospitals"
FILE = DataFile(
    "eicu_demo/eicu_24h.csv.gz",
    "88519975956d50c54612440c90f118d5afee5ca7b6a3e2b14b13b09195542e4a",
    408_883,
    also=(DataFile(KNOWN, SHA256, 1_320_851), DataFile(OTHER, None, 1_320_851)),
    build=EICU_DEMO,
)
LATER = ("apache_iva_score", "apache_iva_predicted_mortality", "unit_los_hours", "hours_observed",
         "in_hourly", "cohort24", "died_in_unit")  # fmt: skip
"""Known only after the first day, or a prediction itself: not in the table at all."""
FEWEST = 8
"""Stays of the smallest hospital in `load_hospitals`."""


def load() -> Table:
    """Load 1,571 stays of at least 24 hours with a known outcome; `died_in_hospital` 1 in 138 of them."""
    table = read_table(locate_file(FILE, name=NAME), form=PLAIN)
    table = table.take(table.column("cohort24") == 1).without(LATER)
    region = table.column("region")
    silo = np.array(["unknown" if r is None else r for r in region], dtype=object)
    return Table({"silo": silo, **table.columns}, NAME)


def load_hospitals() -> Table:
    """Load 1,170 of those stays, at the 117 hospitals that have eight or more; 101 died."""
    table = load().without(("silo",))
    _, hospital, stays = np.unique(table.column("hospitalid"), return_inverse=True, return_counts=True)
    return Table(table.take(stays[hospital] >= FEWEST).columns, HOSPITALS)
