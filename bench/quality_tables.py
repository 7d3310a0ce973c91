"""Tables of hospitals for `bench/quality.py`: the reference from some hospitals, sites from others, cut from real cohorts.

    python bench/quality_tables.py        # prints the hospitals of each part; needs GRANDROUNDS_DATA

eICU demo: hospitals are the demo's own, of 5 to 17 stays, so a site is 20 of them. Diabetes 130-US does not tell its hospitals
apart: a department is a medical specialty, or where none is known a payer, and a site is three departments. Departments
differ more than hospitals do.

Both sets are in English and have no dates, so two things are made, in the reference and in the sites alike. Words of some
columns are written in French, for accents. Dates: the eICU demo has the year of discharge, the age and the length of the stay
in minutes; the day of the year is drawn. In Diabetes 130-US the encounter number, which grows with time, is spread over
1999 to 2008, and the stay has its real length.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.sets import diabetes, eicu
from grandrounds.data.table import Table, to_text
from smoke import need_data, pick

SETS = pick(("eicu-demo", "diabetes-130"), ("eicu-demo",))
FOLDERS = pick(("eicu_demo", "diabetes130"), ("eicu_demo",))
PARTS = ("reference", "tuning", "report")
"""Half of the hospitals, a quarter, a quarter: thresholds were chosen on "tuning", figures come from "report"."""

_HOSPITAL = "hospital"
_SHARES = (0.5, 0.75)
_HOSPITAL_FACTS = ("silo", "patientunitstayid", "numbedscategory", "teachingstatus", "region")
_SITE_HOSPITALS = 20
_DEPARTMENTS, _DEPARTMENT_ROWS, _FEWEST = 3, 250, 150

_FRENCH = {
    "gender": {"Female": "Féminin", "Male": "Masculin", "Unknown/Invalid": "Indéterminé"},
    "ethnicity": {
        "Caucasian": "Européen", "African American": "Afro-américain", "Asian": "Asiatique", "Hispanic": "Latino-américain",
        "Native American": "Amérindien", "Other/Unknown": "Indéterminé",
    },
    "unitadmitsource": {
        "Emergency Department": "Urgences", "Floor": "Étage", "Operating Room": "Bloc opératoire",
        "Acute Care/Floor": "Étage, soins aigus", "Direct Admit": "Entrée directe", "Recovery Room": "Salle de réveil",
        "Step-Down Unit (SDU)": "Unité intermédiaire", "ICU to SDU": "Réanimation vers unité intermédiaire",
    },
    "race": {
        "Caucasian": "Européen", "AfricanAmerican": "Afro-américain", "Asian": "Asiatique", "Hispanic": "Latino-américain",
        "Other": "Indéterminé",
    },
    **{
        name: {
            "circulatory": "appareil circulatoire", "respiratory": "appareil respiratoire", "digestive": "système digestif",
            "diabetes": "diabète", "injury": "lésion", "musculoskeletal": "système ostéo-articulaire",
            "genitourinary": "génito-urinaire", "neoplasms": "néoplasie", "other": "autre",
        }
        for name in diabetes.DIAGNOSES
    },
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Cohort:
    """One set: its table with a column `hospital`, the hospitals of each part, and the schema of the reference."""

    name: str
    table: Table
    parts: Mapping[str, Array]
    schema: DataSchema

    def site(self, seed: int, part: str) -> Table:
        """Cut one site's table out of the hospitals of a part; rows are in the order of the file."""
        rng = np.random.default_rng([SETS.index(self.name), PARTS.index(part), seed])
        names = self.parts[part]
        hospital = self.table.columns[_HOSPITAL]
        if self.name == "eicu-demo":
            chosen = rng.choice(names, _SITE_HOSPITALS, replace=False)
            rows = np.flatnonzero(np.isin(hospital, chosen))
        else:
            chosen = rng.choice(names, _DEPARTMENTS, replace=False)
            mine = [self._sample(np.flatnonzero(hospital == name), rng) for name in chosen]
            rows = np.sort(np.concatenate(mine))
        names = (*self.schema.names, *self.schema.date_names)
        columns = {name: values for name, values in self.table.take(rows).columns.items() if name in names}
        return Table(columns, f"site-{part}-{seed}.csv")

    def _sample(self, rows: Array, rng: np.random.Generator) -> Array:
        """Draw patients with all their rows, up to a number of rows."""
        assert self.schema.patient is not None
        patient = self.table.columns[self.schema.patient][rows]
        order = {name: i for i, name in enumerate(rng.permutation(np.unique(patient)).tolist())}
        place = np.array([order[name] for name in patient.tolist()])
        return np.asarray(rows[np.argsort(place, kind="stable")][:_DEPARTMENT_ROWS])


@cache
def load_cohort(name: str) -> Cohort:
    """Load a set, deal its hospitals to the three parts, and draft the schema of the reference."""
    table = _load_eicu() if name == "eicu-demo" else _load_diabetes()
    table = _write_french(table)
    names, counts = np.unique(table.columns[_HOSPITAL].astype(str), return_counts=True)
    names = names[counts >= (1 if name == "eicu-demo" else _FEWEST)]
    mixed = np.random.default_rng(34).permutation(names)
    first, second = (int(share * len(mixed)) for share in _SHARES)
    parts = dict(zip(PARTS, (mixed[:first], mixed[first:second], mixed[second:]), strict=True))
    rows = table.take(np.isin(table.columns[_HOSPITAL].astype(str), parts["reference"]))
    label, patient = ("died_in_hospital", "uniquepid") if name == "eicu-demo" else ("readmitted_30", "patient_nbr")
    return Cohort(name, table, parts, _draft(rows, label=label, patient=patient))


def _draft(rows: Table, *, label: str, patient: str) -> DataSchema:
    """Draft the schema with quantiles, and add the units that people would."""
    from dataclasses import replace

    codes = [name for name in diabetes.CODES if name in rows.columns]
    schema = draft_schema(rows, label=label, patient=patient, site=_HOSPITAL, quantiles=True, categories=codes)
    ends = ("_mean", "_min", "_max", "_std")
    unit_by_name = {f"{stem}{end}": unit for unit, stems in eicu.LAB_UNITS.items() for stem in stems for end in ends}
    unit_by_name |= {**eicu.COLUMN_UNITS, "time_in_hospital": "days"}
    columns = tuple(replace(c, unit=unit_by_name.get(c.name, "")) if c.kind == "number" else c for c in schema.columns)
    return replace(schema, columns=columns)


def _load_eicu() -> Table:
    table = eicu.load()
    stays = _read_stays()
    born, admitted, left = [], [], []
    for stay, age in zip(
        table.column("patientunitstayid").astype(int).tolist(), table.column("age").tolist(), strict=True
    ):
        year, start, end = stays[stay]
        rng = np.random.default_rng([stay, year])
        discharge = np.datetime64(f"{year}-01-01") + int(rng.integers(365))
        admission = discharge - max(0, round((end - start) / 1440))
        born.append(None if np.isnan(age) else str(admission - int(age * 365.25) - int(rng.integers(1, 365))))
        admitted.append(str(admission))
        left.append(str(discharge))
    hospital = to_text(table.column("hospitalid"))
    table = table.without((*_HOSPITAL_FACTS, "hospitalid"))
    return table.with_columns({_HOSPITAL: hospital, "born": born, "admitted": admitted, "discharged": left})


def _read_stays() -> dict[int, tuple[int, float, float]]:
    """Read the year of discharge and the minutes of hospital admission and discharge of each stay."""
    import csv

    path = Path(os.environ["GRANDROUNDS_DATA"]) / "eicu_demo" / "patient.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as f:
        return {
            int(row["patientunitstayid"]): (
                int(row["hospitaldischargeyear"]),
                float(row["hospitaladmitoffset"]),
                float(row["hospitaldischargeoffset"]),
            )
            for row in csv.DictReader(f)
        }


def _load_diabetes() -> Table:
    table = diabetes.load()
    specialty, payer = table.column("medical_specialty"), table.column("payer_code")
    hospital = [s if s is not None else f"payer {p}" for s, p in zip(specialty.tolist(), payer.tolist(), strict=True)]
    rank = table.column("encounter_id").argsort().argsort()
    first, days = np.datetime64("1999-01-01"), (np.datetime64("2008-12-31") - np.datetime64("1999-01-01")).astype(int)
    admitted = first + (rank * (int(days) - 14) / len(table)).astype(int)
    left = admitted + table.column("time_in_hospital").astype(int)
    patient = to_text(table.column("patient_nbr"))
    table = table.without(("medical_specialty", "payer_code", "encounter_id", "weight"))
    dates = {"admitted": admitted.astype(str).tolist(), "discharged": left.astype(str).tolist()}
    return table.with_columns({_HOSPITAL: hospital, "patient_nbr": patient.tolist(), **dates})


def _write_french(table: Table) -> Table:
    changed = {
        name: [words.get(cell, cell) for cell in table.columns[name].tolist()]
        for name, words in _FRENCH.items()
        if name in table.columns
    }
    return table.with_columns(changed)


def list_parts(names: Sequence[str] = SETS) -> list[str]:
    """Describe the parts of each set, one line each."""
    out = []
    for name in names:
        cohort = load_cohort(name)
        hospital = cohort.table.columns[_HOSPITAL].astype(str)
        for part, members in cohort.parts.items():
            rows = int(np.isin(hospital, members).sum())
            out.append(
                f"{name}, {part}: {len(members)} {'hospitals' if name == 'eicu-demo' else 'departments'}, {rows} rows"
            )
    return out


if __name__ == "__main__":
    need_data(*FOLDERS)
    print("\n".join(list_parts()))
