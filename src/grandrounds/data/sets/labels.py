"""Clinical names and units of columns, for pages that people read.

A plan may state them (`data.names`, `data.units`); a consortium's plans have the units of its agreed schema. Data sets of the
catalog have theirs here. Any other column is shown by its own name, with spaces for underscores, and without a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from grandrounds.data.event import Event
from grandrounds.data.sets.eicu import COLUMN_UNITS, LAB_UNITS


@dataclass(frozen=True)
class ColumnLabel:
    """The clinical name of a column, and the unit of its values; `unit` is empty where there is none."""

    name: str
    unit: str = ""

    def with_unit(self, value: str) -> str:
        """Write a number with its unit.

        Args:
            value: The number as text.

        Returns:
            The number, followed by the unit where the column has one.
        """
        return f"{value} {self.unit}" if self.unit else value


@dataclass(frozen=True)
class ColumnLabels:
    """Clinical names and units of the columns of a table.

    Attributes:
        data: The name of its data set in the catalog; empty, or a file's name, for a table of the user's own.
        names: Names that the plan states, by column.
        units: Units that the plan states, by column.
    """

    data: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, data: Mapping[str, Any]) -> ColumnLabels:
        """Read the labels of a plan.

        Args:
            data: The plan's section `data`; the names and units of columns are optional.

        Returns:
            The labels.
        """
        return cls(str(data.get("name") or ""), data.get("names") or {}, data.get("units") or {})

    @classmethod
    def of_summary(cls, summary: Mapping[str, Any]) -> ColumnLabels:
        """Read the labels of a run's summary, which has the plan's under `labels`."""
        stated = summary.get("labels") or {}
        return cls(str(summary.get("data") or ""), stated.get("names") or {}, stated.get("units") or {})

    def find(self, column: str) -> ColumnLabel:
        """Return the label of a column. Units are never guessed from a name."""
        known = _catalog_labels(self.data).get(column) or ColumnLabel(column.replace("_", " "))
        return ColumnLabel(self.names.get(column, known.name), self.units.get(column, known.unit))

    def name_event(self, column: str, word: str) -> str:
        """Name the event of a label column: "coronary disease" where its name is known, else "died = 1".

        Args:
            column: The label's name in the table.
            word: The class that is the event.
        """
        is_known = column in self.names or column in _catalog_labels(self.data)
        if is_known and word in ("1", "yes", "true"):
            return self.find(column).name
        return _CLASSES.get((self.data, word)) or f"{column} = {word}"

    def describe_event(self, event: Event) -> str:
        """Name an event for people, as `name_event`; a class that says enough by itself, such as "died", has no column's name."""
        name = self.name_event(event.label or "", event.word)
        return event.title if name == f"{event.label or ''} = {event.word}" else name


NO_LABELS = ColumnLabels()
"""Labels of a table about which nothing is known."""

_CLASSES = {
    ("breast-cancer", "malignant"): "malignant tumour",
    ("ham10000-malignant", "malignant"): "malignant lesion",
    ("ham10000-six", "malignant"): "malignant lesion",
    ("ham10000-large", "malignant"): "malignant lesion",
}
"""Names of events by data set and class."""

_HEART = {
    "age": ColumnLabel("age", "years"),
    "chest_pain": ColumnLabel("chest pain"),
    "resting_bp": ColumnLabel("resting blood pressure", "mmHg"),
    "cholesterol": ColumnLabel("serum cholesterol", "mg/dl"),
    "high_fasting_sugar": ColumnLabel("fasting blood sugar above 120 mg/dl"),
    "resting_ecg": ColumnLabel("resting ECG"),
    "max_heart_rate": ColumnLabel("maximum heart rate", "beats/min"),
    "exercise_angina": ColumnLabel("exercise-induced angina"),
    "st_depression": ColumnLabel("ST depression by exercise", "mm"),
    "st_slope": ColumnLabel("slope of the ST segment at peak exercise"),
    "vessels": ColumnLabel("major vessels coloured by fluoroscopy"),
    "thallium_scan": ColumnLabel("thallium scan"),
    "disease": ColumnLabel("coronary disease"),
}
_FED_HEART = {
    **{name: _HEART[name] for name in ("age", "resting_bp", "cholesterol", "high_fasting_sugar", "max_heart_rate")},
    **{name: _HEART[name] for name in ("exercise_angina", "st_depression", "disease")},
    "male": ColumnLabel("male sex"),
    "chest_pain_atypical": ColumnLabel("atypical angina"),
    "chest_pain_non_anginal": ColumnLabel("chest pain, not angina"),
    "chest_pain_asymptomatic": ColumnLabel("no chest pain"),
    "ecg_st_t_abnormality": ColumnLabel("ST-T abnormality in the resting ECG"),
    "ecg_hypertrophy": ColumnLabel("left ventricular hypertrophy in the resting ECG"),
}

_STATISTICS = {"mean": "mean", "min": "lowest", "max": "highest", "std": "spread (SD) of"}
_VITALS = {
    "heart_rate": ColumnLabel("heart rate", "beats/min"),
    "sbp": ColumnLabel("systolic pressure", "mmHg"),
    "dbp": ColumnLabel("diastolic pressure", "mmHg"),
    "map": ColumnLabel("mean arterial pressure", "mmHg"),
    "resp_rate": ColumnLabel("respiratory rate", "breaths/min"),
    "spo2": ColumnLabel("oxygen saturation", "%"),
    "temperature": ColumnLabel("temperature", "°C"),
}
_ICU = {
    "age": ColumnLabel("age", "years"),
    "height_cm": ColumnLabel("height", "cm"),
    "weight_kg": ColumnLabel("weight", "kg"),
    "admission_source": ColumnLabel("admitted from"),
    "unit_type": ColumnLabel("type of unit"),
    "elective_surgery": ColumnLabel("after elective surgery"),
    "hours_before_icu": ColumnLabel("time in hospital before the ICU", "h"),
    "heart_failure": ColumnLabel("heart failure"),
    "metastatic_cancer": ColumnLabel("metastatic cancer"),
    "gcs_min": ColumnLabel("lowest Glasgow Coma Scale"),
    "gcs_motor_min": ColumnLabel("lowest motor response of the Glasgow Coma Scale"),
    "ventilation": ColumnLabel("mechanical ventilation"),
    "fio2_max": ColumnLabel("highest inspired oxygen fraction"),
    "urine_output": ColumnLabel("urine output in 24 h", "ml"),
    **{
        f"{vital}_{short}": ColumnLabel(f"{long} {label.name}", label.unit)
        for vital, label in _VITALS.items()
        for short, long in _STATISTICS.items()
    },
    "map_mean": ColumnLabel("mean arterial pressure", "mmHg"),
    "albumin": ColumnLabel("albumin", "g/dl"),
    "alp": ColumnLabel("alkaline phosphatase", "U/l"),
    "alt": ColumnLabel("ALT", "U/l"),
    "ast": ColumnLabel("AST", "U/l"),
    "bilirubin_total": ColumnLabel("total bilirubin", "mg/dl"),
    "bilirubin_direct": ColumnLabel("direct bilirubin", "mg/dl"),
    "bun": ColumnLabel("blood urea nitrogen", "mg/dl"),
    "creatinine": ColumnLabel("creatinine", "mg/dl"),
    "sodium": ColumnLabel("sodium", "mmol/l"),
    "potassium": ColumnLabel("potassium", "mmol/l"),
    "chloride": ColumnLabel("chloride", "mmol/l"),
    "bicarbonate": ColumnLabel("bicarbonate", "mmol/l"),
    "anion_gap": ColumnLabel("anion gap", "mmol/l"),
    "calcium": ColumnLabel("calcium", "mg/dl"),
    "ionized_calcium": ColumnLabel("ionised calcium", "mmol/l"),
    "magnesium": ColumnLabel("magnesium", "mg/dl"),
    "phosphate": ColumnLabel("phosphate", "mg/dl"),
    "glucose": ColumnLabel("glucose", "mg/dl"),
    "glucose_max": ColumnLabel("highest glucose", "mg/dl"),
    "hemoglobin": ColumnLabel("haemoglobin", "g/dl"),
    "hematocrit": ColumnLabel("haematocrit", "%"),
    "platelets": ColumnLabel("platelets", "10⁹/l"),
    "wbc": ColumnLabel("white cell count", "10⁹/l"),
    "bands": ColumnLabel("band neutrophils", "%"),
    "lymphocytes": ColumnLabel("lymphocytes", "%"),
    "neutrophils": ColumnLabel("neutrophils", "%"),
    "inr": ColumnLabel("INR"),
    "ptt": ColumnLabel("partial thromboplastin time", "s"),
    "fibrinogen": ColumnLabel("fibrinogen", "mg/dl"),
    "crp": ColumnLabel("C-reactive protein"),
    "troponin": ColumnLabel("troponin"),
    "creatine_kinase": ColumnLabel("creatine kinase", "U/l"),
    "ph": ColumnLabel("arterial pH"),
    "pao2": ColumnLabel("arterial oxygen pressure", "mmHg"),
    "paco2": ColumnLabel("arterial carbon dioxide pressure", "mmHg"),
    "base_excess": ColumnLabel("base excess", "mmol/l"),
    "lactate": ColumnLabel("lactate", "mmol/l"),
    "ldh": ColumnLabel("lactate dehydrogenase", "U/l"),
    "mcv": ColumnLabel("mean cell volume", "fl"),
    "died": ColumnLabel("death in hospital"),
}
"""The made-up cohort `icu-cohort`, whose laboratory values are in units of US hospitals. C-reactive protein and troponin have
none here, since assays differ."""

_EICU_MEASURES = {
    "hr": "heart rate", "sbp": "systolic pressure", "dbp": "diastolic pressure", "map": "mean arterial pressure",
    "resp": "respiratory rate", "o2sat": "oxygen saturation", "temp": "temperature", "alb": "albumin",
    "alp": "alkaline phosphatase", "alt": "ALT", "ast": "AST", "be": "base excess", "bicar": "bicarbonate",
    "bili": "total bilirubin", "bili_dir": "direct bilirubin", "bnd": "band neutrophils", "bun": "blood urea nitrogen",
    "ca": "calcium", "cai": "ionised calcium", "ck": "creatine kinase", "ckmb": "creatine kinase MB", "cl": "chloride",
    "crea": "creatinine", "crp": "C-reactive protein", "fgn": "fibrinogen", "fio2": "inspired oxygen", "glu": "glucose",
    "hgb": "haemoglobin", "inr_pt": "INR", "k": "potassium", "lact": "lactate", "lymph": "lymphocytes",
    "mch": "mean cell haemoglobin", "mchc": "mean cell haemoglobin concentration", "mcv": "mean cell volume",
    "methb": "methaemoglobin", "mg": "magnesium", "na": "sodium", "neut": "neutrophils", "pco2": "carbon dioxide pressure",
    "ph": "pH", "phos": "phosphate", "plt": "platelets", "po2": "oxygen pressure", "ptt": "partial thromboplastin time",
    "tnt": "troponin T", "wbc": "white cell count",
}  # fmt: skip
_EICU_OTHERS = {
    "unittype": "type of unit", "unitadmitsource": "admitted from", "unitstaytype": "type of stay",
    "unitvisitnumber": "number of the ICU stay", "admissionheight": "height", "admissionweight": "weight",
    "apacheadmissiondx": "admission diagnosis (APACHE)", "urine_sum": "urine output in 24 h",
    "aps_intubated": "intubated (APACHE)", "aps_vent": "ventilated (APACHE)", "aps_dialysis": "dialysis (APACHE)",
    "aps_eyes": "eye response, Glasgow Coma Scale (APACHE)", "aps_motor": "motor response, Glasgow Coma Scale (APACHE)",
    "aps_verbal": "verbal response, Glasgow Coma Scale (APACHE)", "aps_meds": "Glasgow Coma Scale not assessable (APACHE)",
    "aps_urine": "urine output (APACHE)", "aps_wbc": "white cell count (APACHE)", "aps_temperature": "temperature (APACHE)",
    "aps_respiratoryrate": "respiratory rate (APACHE)", "aps_sodium": "sodium (APACHE)", "aps_heartrate": "heart rate (APACHE)",
    "aps_meanbp": "mean arterial pressure (APACHE)", "aps_ph": "pH (APACHE)", "aps_hematocrit": "haematocrit (APACHE)",
    "aps_creatinine": "creatinine (APACHE)", "aps_albumin": "albumin (APACHE)", "aps_pao2": "oxygen pressure (APACHE)",
    "aps_pco2": "carbon dioxide pressure (APACHE)", "aps_bun": "blood urea nitrogen (APACHE)",
    "aps_glucose": "glucose (APACHE)", "aps_bilirubin": "bilirubin (APACHE)", "aps_fio2": "inspired oxygen (APACHE)",
    "age": "age", "died_in_hospital": "death in hospital",
}  # fmt: skip


def _eicu_labels() -> dict[str, ColumnLabel]:
    """Label the columns of the eICU demo; units are those of `eicu.py`, as they are written on these pages."""
    written = {"C": "°C", "10^9/L": "10⁹/l"}
    by_measure = {measure: unit for unit, measures in LAB_UNITS.items() for measure in measures}
    units = {column: written.get(unit, unit.replace("L", "l")) for column, unit in (by_measure | COLUMN_UNITS).items()}
    units |= {"hr": "beats/min", "resp": "breaths/min"}
    labels = {column: ColumnLabel(name, units.get(column, "")) for column, name in _EICU_OTHERS.items()}
    for measure, name in _EICU_MEASURES.items():
        for short, long in _STATISTICS.items():
            text = name if short == "mean" and name.startswith("mean ") else f"{long} {name}"
            labels[f"{measure}_{short}"] = ColumnLabel(text, units.get(measure, ""))
    return labels


_DIABETES = {
    "time_in_hospital": ColumnLabel("length of stay", "days"),
    "admission_type_id": ColumnLabel("type of admission"),
    "discharge_disposition_id": ColumnLabel("discharged to"),
    "admission_source_id": ColumnLabel("admitted from"),
    "payer_code": ColumnLabel("payer"),
    "medical_specialty": ColumnLabel("specialty of the admitting physician"),
    "num_lab_procedures": ColumnLabel("number of laboratory tests"),
    "num_procedures": ColumnLabel("number of other procedures"),
    "num_medications": ColumnLabel("number of medications"),
    "number_outpatient": ColumnLabel("outpatient visits in the year before"),
    "number_emergency": ColumnLabel("emergency visits in the year before"),
    "number_inpatient": ColumnLabel("inpatient stays in the year before"),
    "diag_1": ColumnLabel("primary diagnosis (ICD-9)"),
    "diag_2": ColumnLabel("second diagnosis (ICD-9)"),
    "diag_3": ColumnLabel("third diagnosis (ICD-9)"),
    "number_diagnoses": ColumnLabel("number of diagnoses"),
    "max_glu_serum": ColumnLabel("highest serum glucose"),
    "A1Cresult": ColumnLabel("HbA1c"),
    "change": ColumnLabel("diabetes medication changed"),
    "diabetesMed": ColumnLabel("diabetes medication prescribed"),
    "readmitted_30": ColumnLabel("readmission within 30 days"),
}
_TCGA = {"age_at_index": ColumnLabel("age at diagnosis", "years"), "days": ColumnLabel("survival", "days")}


@cache
def _catalog_labels(data: str) -> Mapping[str, ColumnLabel]:
    """Return the labels of a data set of the catalog; empty for any other name."""
    if data.startswith("eicu-demo"):
        return _eicu_labels()
    if data.startswith("diabetes-130"):
        return _DIABETES
    return {"heart": _HEART, "fed-heart-disease": _FED_HEART, "icu-cohort": _ICU, "tcga-brca": _TCGA}.get(data, {})
