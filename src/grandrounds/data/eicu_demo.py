"""Build the table of `eicu-demo` from public files: a row a stay of the eICU demo, its first 24 hours, the outcome.

Four tables are PhysioNet's own. Vitals and laboratory values by the hour come from the demo cohort of YAIB
(Yet Another ICU Benchmark), which made them of `vitalPeriodic`, `vitalAperiodic`, `nurseCharting` and `lab`; it
leaves out stays below 6 hours, minors, and stays with hardly any measurement. For tables of your own choice of stays
from the raw files see `eicu_build.py`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput
from grandrounds.data.download import Progress

if TYPE_CHECKING:
    import pandas as pd

KEY = "patientunitstayid"
VITALS = ["hr", "sbp", "dbp", "map", "resp", "o2sat", "temp"]
APACHE = ["intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds", "urine", "wbc", "temperature",
          "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2",
          "pco2", "bun", "glucose", "bilirubin", "fio2"]  # fmt: skip
PERSON = ["gender", "ethnicity", "unittype", "unitadmitsource", "unitstaytype", "unitvisitnumber", "admissionheight",
          "admissionweight", "apacheadmissiondx"]  # fmt: skip
SCORES = {"apachescore": "apache_iva_score", "predictedhospitalmortality": "apache_iva_predicted_mortality"}
OUTCOMES = {"Expired": 1, "Alive": 0}
HOURS = 24
SHA256 = "3cf0a17d5f6f76b31584704a2f36e2905b25947d467f76b53c5a9840cc47f5ff"
"""Of the table that results of version 0.1 were measured on, unpacked."""
KNOWN = "eicu_demo/eicu_24h.csv"
OTHER = "eicu_demo/eicu_24h_rounded.csv"
"""The same table where this machine's pandas rounds a last digit otherwise."""


def convert_eicu_demo(files: Mapping[str, Path], progress: Progress) -> dict[str, bytes]:
    """The table as CSV, from the downloads by name; its path says whether it is the known one to the last digit."""
    by_name = {Path(name).name.split(".")[0]: path for name, path in files.items()}
    table = first_day(by_name)
    progress("stays", len(table), len(table))
    out = io.StringIO()
    table.to_csv(out, index=False, lineterminator="\n")
    data = out.getvalue().encode()
    return {KNOWN if hashlib.sha256(data).hexdigest() == SHA256 else OTHER: data}


def first_day(files: Mapping[str, Path]) -> pd.DataFrame:
    """All stays of the demo; `cohort24` marks those with hourly values, a known outcome and 24 hours in the unit."""
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
    whole = (table["in_hourly"] == 1) & table["died_in_hospital"].notna() & (table["unit_los_hours"] >= HOURS)
    table["cohort24"] = whole.astype(int)
    numbers = table.select_dtypes("number").columns
    table[numbers] = table[numbers].round(4)
    return table.sort_values(KEY)


def _hourly(path: Path) -> pd.DataFrame:
    """The first 24 hours of each stay: vitals by mean, min, max and deviation, laboratory values by mean, urine by sum."""
    import pandas as pd

    try:
        hours = pd.read_parquet(path).rename(columns={"stay_id": KEY})
    except (OSError, ValueError) as e:
        raise BadInput(f"{path} cannot be read: {str(e)[:120]}; remove it and run the command again") from None
    hours = hours[hours["time"] < pd.Timedelta(hours=HOURS)]
    labs = [c for c in hours.columns if c not in (*VITALS, KEY, "time", "urine")]
    by_stay = hours.groupby(KEY)
    vitals = by_stay[VITALS].agg(["mean", "min", "max", "std"])
    vitals.columns = pd.Index([f"{vital}_{part}" for vital, part in vitals.columns])
    out = vitals.join(by_stay[labs].mean().add_suffix("_mean"))
    return out.assign(urine_sum=by_stay["urine"].sum(min_count=1), hours_observed=by_stay.size())


def _apache(path: Path) -> pd.DataFrame:
    """APACHE's values of the first day; -1 stands for "not known" there."""
    import numpy as np

    values = _read(path, [KEY, *APACHE])[[KEY, *APACHE]]
    return values.replace(-1, np.nan).rename(columns={name: f"aps_{name}" for name in APACHE})


def _scores(path: Path) -> pd.DataFrame:
    """APACHE IVa's score and its predicted mortality: a baseline to compare with, never a feature."""
    import numpy as np

    results = _read(path, [KEY, "apacheversion", *SCORES])
    results = results[results["apacheversion"] == "IVa"][[KEY, *SCORES]]
    return results.replace(-1, np.nan).rename(columns=SCORES)


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    """One of PhysioNet's tables, refused where it lacks a column."""
    import pandas as pd

    try:
        table = pd.read_csv(path, compression="gzip")
    except (OSError, EOFError, ValueError) as e:
        raise BadInput(f"{path} cannot be read: {str(e)[:120]}; remove it and run the command again") from None
    absent = [name for name in columns if name not in table.columns]
    if absent:
        raise BadInput(f"{path} has no column '{absent[0]}'; the tables of the eICU demo 2.0.1 are wanted")
    return table
