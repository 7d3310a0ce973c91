"""From the folder of the credentialed eICU database to one table: a row a stay, its first day, the outcome.

The columns are called as in the demo's prepared table (`data/eicu.py`), without those known only
later. Beside the table stand the flow of the rules (JSON) and an experiment that runs on it (TOML).
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grandrounds.core import toml
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.data import public_ranges
from grandrounds.data.eicu_cohort import COLUMNS, KEY, OUTCOMES, Step, choose, undecided
from grandrounds.data.eicu_measures import APERIODIC, PERIODIC, Measured
from grandrounds.data.eicu_tables import RawTable, Told, find_table, need_tables, untold

SCHEMA = "grandrounds/eicu-flow/1"
SUFFIXES = (".parquet", ".csv", ".csv.gz")

APACHE = ("intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds", "urine", "wbc", "temperature",
          "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2",
          "pco2", "bun", "glucose", "bilirubin", "fio2")  # fmt: skip
_PERSON = ("age", "gender", "ethnicity", "unittype", "unitadmitsource", "unitstaytype", "unitvisitnumber",
           "admissionheight", "admissionweight", "apacheadmissiondx")  # fmt: skip
_HOSPITAL = ("numbedscategory", "teachingstatus", "region")
_TEACHING = {"t": 1.0, "f": 0.0}


@dataclass(frozen=True)
class Built:
    """The table, and how it came about."""

    table: pd.DataFrame
    steps: tuple[Step, ...]
    flow: dict[str, Any]


def build(folder: Path, *, least_hours: float = 0.0, told: Told = untold) -> Built:
    """Read the database and make the table; every file is looked for before the first is read."""
    raw = need_tables(folder, _NEEDED)
    more = {name: found for name in _OPTIONAL if (found := find_table(folder, name)) is not None}
    patient = raw["patient"].read(COLUMNS, told=told)
    chosen, steps = choose(patient, _recorded(raw["apachePatientResult"], told), least_hours=least_hours)
    chosen = chosen.sort_values(KEY, ignore_index=True)
    measured = Measured.none(chosen[KEY])
    measured.add_vitals(raw["vitalPeriodic"], PERIODIC, told=told)
    measured.add_vitals(raw["vitalAperiodic"], APERIODIC, told=told)
    measured.add_labs(raw["lab"], told=told)
    if "nurseCharting" in more:
        measured.add_nursed(more["nurseCharting"], told=told)
    if "intakeOutput" in more:
        measured.add_urine(more["intakeOutput"], told=told)
    table = _joined(chosen, _hospitals(raw["hospital"], told), measured.table(), _apache(raw["apacheApsVar"], told))
    _check_rows(table, chosen)
    flow = {
        "schema": SCHEMA,
        "steps": [asdict(step) for step in steps],
        "deaths": int(table["died_in_hospital"].sum()),
        "first_stay_undecided": undecided(patient),
        "without_vitals": int((measured.vitals.count.sum(axis=1) == 0).sum()),
        "rows": measured.rows,
        "absent_tables": [name for name in _OPTIONAL if name not in more],
        "least_hours": least_hours,
    }
    return Built(table, tuple(steps), flow)


_NEEDED = ("patient", "hospital", "apachePatientResult", "apacheApsVar", "vitalPeriodic", "vitalAperiodic", "lab")
_OPTIONAL = ("nurseCharting", "intakeOutput")  # temperatures of hospitals without a probe, and urine


def write(built: Built, out: Path) -> tuple[Path, Path, Path]:
    """The table, its flow and an experiment on it, side by side."""
    flow, recipe = check_out(out)
    packed = io.BytesIO()
    if out.name.endswith(".parquet"):
        built.table.to_parquet(packed, index=False)
    else:
        gzipped: Any = {"method": "gzip", "mtime": 0} if out.name.endswith(".gz") else None
        built.table.to_csv(packed, index=False, compression=gzipped)
    write_atomic(flow, (json.dumps(built.flow, indent=2) + "\n").encode())
    write_atomic(recipe, experiment(out.name, built.table).encode())
    write_atomic(out, packed.getvalue())  # last: where the table is, the rest is
    return out, flow, recipe


def check_out(out: Path) -> tuple[Path, Path]:
    """Where the flow and the experiment go; refused before an hour of reading where one of the three cannot be written."""
    suffix = next((s for s in SUFFIXES if out.name.endswith(s)), None)
    if suffix is None or out.name == suffix:
        raise BadInput(f"--out {out}: write the table as one of *{', *'.join(SUFFIXES)}")
    base = out.name.removesuffix(suffix)
    beside = out.with_name(f"{base}.flow.json"), out.with_name(f"{base}.toml")
    for path in (out, *beside):
        if path.exists():
            raise BadInput(f"{path} is there already; remove it, or choose another name (use --out)")
    if not out.absolute().parent.is_dir():
        raise BadInput(f"{out.absolute().parent} is not a folder; make it, or choose another place (use --out)")
    return beside


def experiment(name: str, table: pd.DataFrame) -> str:
    """TOML of an experiment on the table: death in hospital, hospitals as sites, unseen ones as test."""
    numeric = {c: list(r) for c, r in public_ranges.EICU.items() if c in table.columns}
    levels = {c: list(words) for c, words in public_ranges.EICU_LEVELS.items() if c in table.columns}
    return toml.dumps(
        {
            "name": "eicu",
            "data": {
                "table": name,
                "label": "died_in_hospital",
                "site": "hospitalid",
                "patient": "uniquepid",
                "drop": [KEY, "apacheadmissiondx"],
                "kinds": {"numbedscategory": list(public_ranges.EICU_BEDS)},
                "ranges": numeric,
                "levels": levels,
            },
            "split": {"scheme": "group-kfold", "min_rows": 1},
            "method": {"rounds": 30},
            "train": {"epochs": 1, "batch": 64, "lr": 0.1},
            "evaluation": {"threshold": "specificity", "subgroup": "gender"},
        },
        head='# Death in hospital from the first day in the ICU (eICU). Ranges and levels serve data.encoding = "public".',
    )


def _recorded(table: RawTable, told: Told) -> pd.Series:
    """The stays whose length of stay APACHE's results record; the demo's offsets in `patient` are never blank."""
    results = table.read({KEY: "int64", "actualiculos": "float64"}, told=told)
    return results[KEY][results["actualiculos"] >= 0].drop_duplicates()


def _hospitals(table: RawTable, told: Told) -> pd.DataFrame:
    hospitals = table.read({"hospitalid": "int64", **dict.fromkeys(_HOSPITAL, "str")}, told=told)
    _refuse_repeated(hospitals, "hospitalid", table)
    return hospitals.assign(teachingstatus=hospitals["teachingstatus"].map(_TEACHING))


def _apache(table: RawTable, told: Told) -> pd.DataFrame:
    """APACHE's values of the first day; -1 stands for "not known" there."""
    values = table.read({KEY: "int64", **dict.fromkeys(APACHE, "float64")}, told=told)
    _refuse_repeated(values, KEY, table)
    return values.set_index(KEY).replace(-1, np.nan).add_prefix("aps_").reset_index()


def _refuse_repeated(rows: pd.DataFrame, key: str, table: RawTable) -> None:
    repeated = rows[key].duplicated()
    if repeated.any():
        raise BadInput(
            f"{table.path} has two rows for {key} {rows[key][repeated].iloc[0]}, where eICU has one; download it again"
        )


def _joined(
    chosen: pd.DataFrame, hospitals: pd.DataFrame, measured: pd.DataFrame, apache: pd.DataFrame
) -> pd.DataFrame:
    """Each part beside its stay; a join that would repeat a stay is an error of pandas' own."""
    table = chosen[[KEY, "uniquepid", "hospitalid"]].merge(hospitals, on="hospitalid", how="left", validate="m:1")
    table = pd.concat([table, chosen[list(_PERSON)]], axis=1)
    table = table.merge(measured, left_on=KEY, right_index=True, how="left", validate="1:1")
    table = table.merge(apache, on=KEY, how="left", validate="1:1")
    table["died_in_hospital"] = chosen["hospitaldischargestatus"].map(OUTCOMES).to_numpy()
    numbers = table.select_dtypes("float").columns
    return table.assign(**{name: table[name].round(4) for name in numbers})


def _check_rows(table: pd.DataFrame, chosen: pd.DataFrame) -> None:
    """One row a stay, the stays that were chosen: a join that multiplies them is found here at the latest."""
    if not (len(table) == len(chosen) and table[KEY].is_unique and set(table[KEY]) == set(chosen[KEY])):
        raise RunFailed(f"the joined table has {len(table)} rows for {len(chosen)} stays: please report this")


def flow_rows(steps: Sequence[Step]) -> list[tuple[str, str, str, str, str]]:
    """The flow as the cells of a table, one row a rule."""
    return [
        (s.rule, f"-{s.left_out:,}" if i else "", f"{s.stays:,}", f"{s.patients:,}", f"{s.hospitals:,}")
        for i, s in enumerate(steps)
    ]
