"""Usual ranges and levels of the catalog's clinical sets, for encodings that ask no site (data.encoding = "public").

A range is what most adults in such a study show: about two deviations either way, rounded. Vitals
and laboratory values are of the kind that any handbook of intensive care or of laboratory medicine
has for the acutely ill (wider than the reference range of the healthy, and wider still upwards
where values run into multiples: creatinine, bilirubin, enzymes); those of the heart set are of
stress testing. They were set by hand, from no particular book, and are for scaling, not for care.
None was computed from a set's rows nor tuned on a result, but whoever set them had seen percentiles
of the eICU demo and of diabetes-130, which are public, and the settings of the generated cohort. American units.
"""

from __future__ import annotations

from grandrounds.data.sets import cohort, diabetes, heart

Range = tuple[float, float]

PARTS = ("mean", "min", "max", "std")

# Of a day in the unit: its mean, lowest, highest, and the deviation within it.
VITALS: dict[str, tuple[Range, Range, Range, Range]] = {
    "heart_rate": ((55, 120), (40, 105), (65, 150), (2, 18)),
    "sbp": ((85, 160), (60, 135), (105, 200), (4, 26)),
    "dbp": ((40, 90), (25, 70), (55, 120), (3, 18)),
    "map": ((55, 110), (40, 90), (70, 145), (3, 20)),
    "resp_rate": ((11, 30), (5, 24), (15, 42), (1, 8)),
    "spo2": ((91, 100), (82, 99), (95, 100), (0, 4)),
    "temperature": ((35.5, 38.3), (34.8, 37.6), (36, 39.2), (0, 1)),
}

LABS: dict[str, Range] = {
    "albumin": (1.8, 4.6),
    "alp": (20, 220),
    "alt": (0, 200),
    "ast": (0, 240),
    "bilirubin_total": (0, 3.5),
    "bilirubin_direct": (0, 2),
    "bun": (4, 65),
    "creatinine": (0.3, 3.5),
    "sodium": (128, 148),
    "potassium": (3, 5.5),
    "chloride": (92, 115),
    "bicarbonate": (15, 33),
    "anion_gap": (4, 22),
    "calcium": (7, 10),
    "ionized_calcium": (0.95, 1.3),
    "magnesium": (1.3, 2.7),
    "phosphate": (1.5, 6.5),
    "glucose": (70, 260),
    "glucose_max": (80, 360),
    "hemoglobin": (7, 15.5),
    "hematocrit": (21, 46),
    "platelets": (50, 420),
    "wbc": (3, 24),
    "bands": (0, 30),
    "lymphocytes": (1, 35),
    "neutrophils": (50, 96),
    "inr": (0.8, 2.6),
    "ptt": (20, 70),
    "fibrinogen": (120, 700),
    "crp": (0, 30),  # mg/dL
    "troponin": (0, 4),
    "creatine_kinase": (0, 1500),
    "ph": (7.2, 7.52),
    "pao2": (50, 220),
    "paco2": (25, 62),
    "base_excess": (-12, 10),
    "lactate": (0.5, 6.5),
    "ldh": (100, 850),
    "mcv": (78, 104),
}

_YES_NO: Range = (0, 1)


def _days(names: dict[str, str]) -> dict[str, Range]:
    """Map column to range, for the four figures of each vital; `names` says what a set calls it."""
    return {
        f"{set_name}_{part}": r for name, set_name in names.items() for part, r in zip(PARTS, VITALS[name], strict=True)
    }


COHORT: dict[str, Range] = {
    "age": (30, 90),
    "height_cm": (150, 192),
    "weight_kg": (45, 130),
    "hours_before_icu": (0, 72),
    **dict.fromkeys(("elective_surgery", "diabetes", "heart_failure", "metastatic_cancer", "cirrhosis"), _YES_NO),
    "gcs_min": (3, 15),
    "gcs_motor_min": (1, 6),
    **dict.fromkeys(("ventilation", "vasopressor", "dialysis"), _YES_NO),
    "fio2_max": (0.21, 0.9),
    "urine_output": (0, 4000),
    **_days({name: name for name in VITALS}),
    **LABS,
}
COHORT_LEVELS: dict[str, tuple[str, ...]] = {
    "sex": ("female", "male"),
    "ethnicity": cohort.ETHNICITIES,
    "admission_source": cohort.SOURCES,
    "unit_type": cohort.UNITS,
    "teaching_hospital": ("no", "yes"),
    "region": cohort.REGIONS,
    "died": ("0", "1"),
}

HEART: dict[str, Range] = {
    "age": (35, 75),
    "resting_bp": (95, 170),
    "cholesterol": (130, 360),
    "max_heart_rate": (90, 190),
    "st_depression": (0, 3),
    "vessels": (0, 3),
}
HEART_LEVELS = {name: tuple(dict.fromkeys(words.values())) for name, words in heart.LEVELS.items()}

# Diabetes 130-US hospitals: levels as its code book and Strack et al. (2014) list them; all other levels become `other`.
DIABETES: dict[str, Range] = {
    "time_in_hospital": (1, 14),  # stays that the study includes
    "num_lab_procedures": (1, 90),
    "num_procedures": (0, 6),
    "num_medications": (1, 40),
    "number_outpatient": (0, 4),
    "number_emergency": (0, 4),
    "number_inpatient": (0, 6),
    "number_diagnoses": (1, 9),
}
_DRUGS = (
    "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "acetohexamide", "glipizide", "glyburide",
    "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol", "troglitazone", "tolazamide", "insulin",
    "glyburide-metformin", "glipizide-metformin", "glimepiride-pioglitazone", "metformin-rosiglitazone",
    "metformin-pioglitazone",
)  # fmt: skip
DIABETES_LEVELS: dict[str, tuple[str, ...]] = {
    "race": ("AfricanAmerican", "Asian", "Caucasian", "Hispanic", "Other"),
    "gender": ("Female", "Male"),
    "admission_type_id": tuple(str(k) for k in range(1, 9)),
    "discharge_disposition_id": tuple(str(k) for k in range(1, 31) if str(k) not in diabetes.GONE),
    "admission_source_id": tuple(str(k) for k in range(1, 27)),
    "payer_code": (
        "BC", "CH", "CM", "CP", "DM", "FR", "HM", "MC", "MD", "MP", "OG", "OT", "PO", "SI", "SP", "UN", "WC",
    ),
    "medical_specialty": (
        "Cardiology", "Emergency/Trauma", "Endocrinology", "Family/GeneralPractice", "Gastroenterology", "Hematology/Oncology",
        "InternalMedicine", "Nephrology", "Neurology", "ObstetricsandGynecology", "Oncology", "Orthopedics",
        "Orthopedics-Reconstructive", "Otolaryngology", "Pediatrics", "PhysicalMedicineandRehabilitation", "Psychiatry",
        "Pulmonology", "Radiologist", "Surgery-Cardiovascular/Thoracic", "Surgery-General", "Surgery-Neuro",
        "Surgery-Vascular", "Urology",
    ),
    **dict.fromkeys(diabetes.DIAGNOSES, diabetes.CHAPTERS),
    "max_glu_serum": ("Norm", ">200", ">300", "not measured"),
    "A1Cresult": ("Norm", ">7", ">8", "not measured"),
    **dict.fromkeys(_DRUGS, ("Down", "No", "Steady", "Up")),
    "change": ("Ch", "No"),
    "diabetesMed": ("No", "Yes"),
    "readmitted_30": ("no", "yes"),
    "readmitted": ("NO", ">30", "<30"),
}  # fmt: skip

# eICU's names of the columns above, and the columns that only eICU has.
_EICU_VITALS = {"heart_rate": "hr", "sbp": "sbp", "dbp": "dbp", "map": "map", "resp_rate": "resp", "spo2": "o2sat",
                "temperature": "temp"}  # fmt: skip
_EICU_LABS = {
    "albumin": "alb", "alp": "alp", "alt": "alt", "ast": "ast", "base_excess": "be", "bicarbonate": "bicar",
    "bilirubin_total": "bili", "bilirubin_direct": "bili_dir", "bands": "bnd", "bun": "bun", "calcium": "ca",
    "ionized_calcium": "cai", "creatine_kinase": "ck", "chloride": "cl", "creatinine": "crea", "fibrinogen": "fgn",
    "glucose": "glu", "hemoglobin": "hgb", "inr": "inr_pt", "potassium": "k", "lactate": "lact",
    "lymphocytes": "lymph", "mcv": "mcv", "magnesium": "mg", "sodium": "na", "neutrophils": "neut", "paco2": "pco2",
    "ph": "ph", "phosphate": "phos", "platelets": "plt", "pao2": "po2", "ptt": "ptt", "troponin": "tnt", "wbc": "wbc",
}  # fmt: skip
_EICU_APACHE = {
    "wbc": "wbc", "sodium": "sodium", "ph": "ph", "hematocrit": "hematocrit", "creatinine": "creatinine",
    "albumin": "albumin", "pao2": "pao2", "paco2": "pco2", "bun": "bun", "glucose_max": "glucose",
    "bilirubin_total": "bilirubin",
}  # fmt: skip

EICU: dict[str, Range] = {
    "age": (30, 90),
    "teachingstatus": _YES_NO,
    "unitvisitnumber": (1, 3),
    "admissionheight": (150, 192),
    "admissionweight": (45, 130),
    **_days(_EICU_VITALS),
    **{f"{column}_mean": LABS[name] for name, column in _EICU_LABS.items()},
    "ckmb_mean": (0, 60),
    "crp_mean": (0, 300),  # mg/L
    "fio2_mean": (21, 90),
    "mch_mean": (24, 36),
    "mchc_mean": (30, 36),
    "methb_mean": (0, 2),
    "urine_sum": (0, 4000),
    **{f"aps_{column}": LABS[name] for name, column in _EICU_APACHE.items()},
    **{f"aps_{name}": _YES_NO for name in ("intubated", "vent", "dialysis", "meds")},
    "aps_eyes": (1, 4),
    "aps_motor": (1, 6),
    "aps_verbal": (1, 5),
    "aps_urine": (0, 4000),
    "aps_temperature": (34.5, 39),  # APACHE keeps the value of the day that is furthest from normal
    "aps_respiratoryrate": (4, 50),
    "aps_heartrate": (40, 160),
    "aps_meanbp": (40, 160),
    "aps_fio2": (21, 100),
}
EICU_BEDS = ("<100", "100 - 249", "250 - 499", ">= 500")
# As in the public demo and in open code about the whole database; all other levels become `other`.
EICU_LEVELS: dict[str, tuple[str, ...]] = {
    "gender": ("Female", "Male"),
    "ethnicity": ("African American", "Asian", "Caucasian", "Hispanic", "Native American", "Other/Unknown"),
    "unittype": ("CCU-CTICU", "CSICU", "CTICU", "Cardiac ICU", "MICU", "Med-Surg ICU", "Neuro ICU", "SICU"),
    "unitadmitsource": (
        "Acute Care/Floor", "Chest Pain Center", "Direct Admit", "Emergency Department", "Floor", "ICU", "ICU to SDU",
        "Observation", "Operating Room", "Other Hospital", "Other ICU", "PACU", "Recovery Room",
        "Step-Down Unit (SDU)",
    ),
    "unitstaytype": ("admit", "readmit", "stepdown/other", "transfer"),
    "region": ("Midwest", "Northeast", "South", "West"),
    "died_in_hospital": ("0", "1"),
}  # fmt: skip
