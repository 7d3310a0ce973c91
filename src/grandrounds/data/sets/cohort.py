"""A made-up cohort of 152 hospitals: ICU stays, 90 first-day features, death in hospital.

The public demos are too small for questions of privacy against accuracy (ten stays a hospital), so
this simulates a large ICU database. A few latent severities (shock, lung, kidney, ...) drive
every feature; hospitals differ in size, case mix, instruments, which tests they order, and baseline
risk. The risk is partly linear in the severities and partly not (U-shaped values, pairs that are
worse together), so that trees find what a linear model cannot: on unseen hospitals logistic
regression reaches an AUC of about .83 and gradient boosting of about .87.
Values and names are plausible; nothing here is evidence about any patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.table import Table

LATENTS = ("shock", "lung", "kidney", "liver", "brain", "inflammation", "heart", "blood", "frailty")


@dataclass(frozen=True)
class Measure:
    """One measured quantity.

    `centre` is its median and `spread` its standard deviation, of the logarithm where `log` is set;
    `loads` says how far a latent moves it, in spreads; `wild` how much severity scatters it to both
    sides; `limits` what an instrument can show; `gaps` the usual share of stays without it.
    """

    centre: float
    spread: float
    loads: Mapping[str, float]
    limits: tuple[float, float]
    log: bool = False
    wild: float = 0.0
    gaps: float = 0.02
    digits: int = 0


# The mean over the day. `SWING` is the median of the standard deviation within the day.
VITALS: dict[str, Measure] = {
    "heart_rate": Measure(86, 15, {"shock": 0.4, "inflammation": 0.25, "frailty": -0.2}, (20, 240), wild=0.2),
    "sbp": Measure(120, 17, {}, (30, 260)),  # from map and pulse pressure, as is dbp
    "dbp": Measure(63, 10, {}, (10, 160)),
    "map": Measure(82, 11.5, {"shock": -0.5}, (20, 190), wild=0.1),
    "resp_rate": Measure(19.5, 4, {"lung": 0.5, "inflammation": 0.15}, (3, 70), wild=0.1, gaps=0.06),
    "spo2": Measure(96.8, 1.9, {"lung": -0.5, "heart": -0.1}, (50, 100)),
    "temperature": Measure(36.9, 0.55, {"inflammation": 0.3, "shock": -0.15}, (29, 42.5), wild=0.25, digits=1),
}
SWING = {
    "heart_rate": 8.5,
    "sbp": 13.0,
    "dbp": 8.5,
    "map": 9.5,
    "resp_rate": 3.8,
    "spo2": 1.6,
    "temperature": 0.4,
}

LABS: dict[str, Measure] = {
    "albumin": Measure(
        3.1, 0.6, {"inflammation": -0.4, "liver": -0.25, "frailty": -0.2}, (0.8, 5.6), gaps=0.45, digits=1
    ),
    "alp": Measure(82, 0.5, {"liver": 0.45}, (15, 2500), log=True, gaps=0.5),
    "alt": Measure(28, 0.85, {"liver": 0.5, "shock": 0.2}, (3, 9000), log=True, gaps=0.5),
    "ast": Measure(34, 0.9, {"liver": 0.5, "shock": 0.3}, (4, 12000), log=True, gaps=0.5),
    "bilirubin_total": Measure(0.7, 0.75, {"liver": 0.6, "shock": 0.1}, (0.1, 50), log=True, gaps=0.5, digits=1),
    "bilirubin_direct": Measure(0.3, 0.8, {}, (0.1, 40), log=True, gaps=0.88, digits=1),
    "bun": Measure(22, 0.62, {"kidney": 0.65, "frailty": 0.25}, (2, 230), log=True, gaps=0.06),
    "creatinine": Measure(1.1, 0.6, {"kidney": 0.7, "shock": 0.1}, (0.2, 22), log=True, gaps=0.06, digits=2),
    "sodium": Measure(138.5, 4.4, {"kidney": -0.05}, (105, 178), wild=0.2, gaps=0.06),
    "potassium": Measure(4.1, 0.5, {"kidney": 0.25}, (1.7, 8.8), wild=0.15, gaps=0.06, digits=1),
    "chloride": Measure(103.5, 5.4, {}, (65, 145), gaps=0.08),
    "bicarbonate": Measure(24.2, 4.2, {"shock": -0.4, "kidney": -0.3, "lung": 0.2}, (3, 52), gaps=0.1, digits=1),
    "anion_gap": Measure(10.8, 0.28, {"shock": 0.35, "kidney": 0.25}, (1, 45), log=True, gaps=0.3),
    "calcium": Measure(8.4, 0.65, {"inflammation": -0.25, "kidney": -0.15}, (4.3, 15), gaps=0.09, digits=1),
    "ionized_calcium": Measure(1.12, 0.09, {"shock": -0.25}, (0.5, 1.9), gaps=0.85, digits=2),
    "magnesium": Measure(1.95, 0.32, {"kidney": 0.2}, (0.5, 6), gaps=0.4, digits=1),
    "phosphate": Measure(3.4, 0.35, {"kidney": 0.45, "shock": 0.15}, (0.5, 16), log=True, gaps=0.55, digits=1),
    "glucose": Measure(135, 0.33, {"inflammation": 0.2}, (20, 1200), log=True, wild=0.2, gaps=0.04),
    "glucose_max": Measure(170, 0.4, {}, (20, 1600), log=True, gaps=0.04),
    "hemoglobin": Measure(10.9, 2.1, {"blood": -0.6, "frailty": -0.15, "kidney": -0.15}, (2.5, 21), gaps=0.1, digits=1),
    "hematocrit": Measure(33, 6.2, {}, (8, 65), gaps=0.1, digits=1),
    "platelets": Measure(198, 0.48, {"blood": -0.35, "liver": -0.3}, (3, 1400), log=True, gaps=0.12),
    "wbc": Measure(10.8, 0.47, {"inflammation": 0.4}, (0.2, 150), log=True, wild=0.15, gaps=0.12, digits=1),
    "bands": Measure(5, 0.9, {"inflammation": 0.5, "shock": 0.2}, (0, 60), log=True, gaps=0.85),
    "lymphocytes": Measure(11, 0.6, {}, (0.2, 95), log=True, gaps=0.42, digits=1),
    "neutrophils": Measure(77, 11, {"inflammation": 0.4}, (3, 99), gaps=0.45, digits=1),
    "inr": Measure(1.25, 0.32, {"liver": 0.45, "shock": 0.15, "blood": 0.15}, (0.8, 14), log=True, gaps=0.5, digits=1),
    "ptt": Measure(33, 0.36, {"liver": 0.3, "blood": 0.2}, (18, 200), log=True, gaps=0.65, digits=1),
    "fibrinogen": Measure(350, 0.42, {"inflammation": 0.4, "liver": -0.4}, (35, 1200), log=True, gaps=0.9),
    "crp": Measure(7, 1.1, {"inflammation": 0.7}, (0.1, 60), log=True, gaps=0.92, digits=1),
    "troponin": Measure(0.08, 1.5, {"heart": 0.6, "shock": 0.2}, (0.01, 120), log=True, gaps=0.6, digits=2),
    "creatine_kinase": Measure(140, 1.1, {"heart": 0.3, "shock": 0.15}, (8, 60000), log=True, gaps=0.82),
    "ph": Measure(7.39, 0.08, {}, (6.75, 7.8), gaps=0.55, digits=2),
    "pao2": Measure(98, 0.42, {"lung": -0.4}, (25, 600), log=True, gaps=0.55),
    "paco2": Measure(41, 0.22, {"lung": 0.3, "shock": -0.15}, (10, 140), log=True, wild=0.15, gaps=0.55),
    "base_excess": Measure(0, 5, {}, (-32, 28), gaps=0.65, digits=1),
    "lactate": Measure(1.8, 0.6, {"shock": 0.65, "liver": 0.15}, (0.3, 30), log=True, gaps=0.45, digits=1),
    "ldh": Measure(260, 0.6, {"liver": 0.3, "inflammation": 0.25, "shock": 0.2}, (70, 9500), log=True, gaps=0.88),
    "mcv": Measure(91, 6.2, {"liver": 0.1, "frailty": 0.1}, (58, 130), gaps=0.15),
}


HOSPITALS = 152
MEDIAN_STAYS = 390
SIZE_SPREAD = 0.775  # of the log of a hospital's stays: mean / median = 1.35, so about 80,000 in all
DEATHS = 0.089
BACK_AGAIN = 0.05  # share of stays that may be a patient's next one at the same hospital

OVERALL = {"shock": 0.55, "lung": 0.5, "kidney": 0.45, "liver": 0.4, "brain": 0.35, "inflammation": 0.5,
           "heart": 0.3, "blood": 0.35, "frailty": 0.2}  # fmt: skip
"""Share of the overall severity in each latent."""

LINEAR = {"shock": 0.25, "lung": 0.23, "kidney": 0.19, "liver": 0.14, "brain": 0.27, "inflammation": 0.14,
          "heart": 0.1, "blood": 0.1, "frailty": 0.27}  # fmt: skip
"""Log-odds of death for one deviation of each latent."""

CURVED = {"temperature": 0.68, "sodium": 0.62, "potassium": 0.62, "glucose": 0.62, "heart_rate": 0.57,
          "map": 0.52, "wbc": 0.52, "resp_rate": 0.52}  # fmt: skip
"""Log-odds for each deviation from the usual value, to either side, past the first 0.8."""

REGIONS = ("Midwest", "South", "West", "Northeast")
BEDS = ("<100", "100-249", "250-499", ">=500")
ETHNICITIES = ("White", "Black", "Hispanic", "Asian", "Native American", "Other")
SOURCES = ("emergency", "floor", "operating room", "other hospital", "direct")
UNITS = ("medical-surgical", "medical", "surgical", "cardiac", "neuro")

Columns = dict[str, Array]


@dataclass(frozen=True)
class Hospitals:
    """The differences between hospitals, one row each."""

    size: Array
    beds: Array  # index into BEDS
    region: Array
    teaching: Array
    mix: Array  # (H, latents): sicker or healthier than average
    risk: Array  # log-odds of death beyond the case mix
    orders: Array  # how sparing it is with tests
    people: Array  # (H, ethnicities): shares


def generate(seed: int = 0) -> Table:
    """Generate the cohort of a seed: `stay_id`, `patient_id`, `hospital`, 90 features, `died` (0 or 1).

    Stays lie hospital by hospital. Exactly 8.9% die: the log-odds carry a hidden intercept, chosen
    as the quantile that leaves that share of (log-odds + logistic noise) above it.
    """
    rng = generator(seed, purpose="icu-cohort")
    hospitals = _hospitals(rng)
    hospital_of_stay = np.repeat(np.arange(HOSPITALS), hospitals.size)
    again = (rng.random(len(hospital_of_stay)) < BACK_AGAIN) & (np.diff(hospital_of_stay, prepend=-1) == 0)
    person = np.cumsum(~again) - 1
    z, severity = _latents(rng, hospitals, hospital=hospital_of_stay, person=person)
    people = _people(rng, hospitals, hospital=hospital_of_stay, person=person, z=z)
    body = _physiology(rng, z, severity)
    care = _care(rng, z, severity)
    log_odds = _log_odds(z, people, body, care) + hospitals.risk[hospital_of_stay]
    felt = log_odds + rng.logistic(size=len(hospital_of_stay))
    died = felt > np.quantile(felt, 1 - DEATHS)
    recorded = _record(
        rng, body, hospitals, hospital=hospital_of_stay, severity=severity, black=people["ethnicity"] == "Black"
    )
    back = again & ~np.roll(died, 1)  # only survivors come back
    return Table(
        {
            "stay_id": np.arange(1.0, len(hospital_of_stay) + 1),
            "patient_id": _name_numbers("patient", np.cumsum(~back)),
            "hospital": _name_numbers("hospital", hospital_of_stay + 1),
            **people,
            "teaching_hospital": _words(("no", "yes"), hospitals.teaching[hospital_of_stay]),
            "hospital_beds": _words(BEDS, hospitals.beds[hospital_of_stay]),
            "region": _words(REGIONS, hospitals.region[hospital_of_stay]),
            **care,
            **recorded,
            "died": died.astype(np.float64),
        },
        "icu-cohort",
    )


def _hospitals(rng: np.random.Generator) -> Hospitals:
    """Draw hospitals; sizes are the lognormal's own quantiles, shuffled: every seed has the same median and total."""
    usual = NormalDist()
    big = rng.permutation([usual.inv_cdf((i + 0.5) / HOSPITALS) for i in range(HOSPITALS)])
    noise = rng.standard_normal((HOSPITALS, 4 + len(LATENTS)))
    return Hospitals(
        size=np.rint(MEDIAN_STAYS * np.exp(SIZE_SPREAD * big)).astype(np.int64),
        beds=np.digitize(big + 0.7 * noise[:, 0], [-1.0, 0.2, 1.1]),
        region=rng.choice(len(REGIONS), size=HOSPITALS, p=[0.34, 0.33, 0.24, 0.09]),
        teaching=(big + 0.8 * noise[:, 1] > 1.2).astype(np.int64),
        mix=0.22 * noise[:, 4:] + 0.1 * big[:, None],
        risk=0.25 * noise[:, 2],
        orders=noise[:, 3],
        people=rng.dirichlet(np.array([14.0, 2.4, 1.2, 0.4, 0.2, 0.8]), size=HOSPITALS),
    )


def _latents(
    rng: np.random.Generator, hospitals: Hospitals, *, hospital: Array, person: Array
) -> tuple[Columns, Array]:
    """Draw each latent by name, and the overall severity; frailty belongs to the person, not the stay."""
    common = rng.standard_normal(len(hospital))
    z = {}
    for i, (name, share) in enumerate(OVERALL.items()):
        personal = rng.standard_normal(len(hospital))
        personal = personal[person] if name == "frailty" else personal
        z[name] = share * common + np.sqrt(1 - share**2) * personal + hospitals.mix[hospital, i]
    return z, sum(share * z[name] for name, share in OVERALL.items()) / 1.8


def _people(rng: np.random.Generator, hospitals: Hospitals, *, hospital: Array, person: Array, z: Columns) -> Columns:
    """Draw who is admitted, from where and to which unit; a person keeps age, sex, height and ethnicity."""
    n = len(hospital)
    first = np.unique(person, return_index=True)[1][person]  # the person's first stay
    age, height, weight = (rng.standard_normal(n)[person] for _ in range(3))
    male = rng.random(n)[person] < 0.54
    ethnicity = (rng.random(n)[person][:, None] > np.cumsum(hospitals.people, axis=1)[hospital, :-1]).sum(axis=1)
    tall = np.where(male, 176.0, 162.5) + 7.2 * height
    heavy = (tall / 100) ** 2 * 27.5 * np.exp(0.24 * weight - 0.05 * z["frailty"])
    septic = 0.2 * z["inflammation"]
    source = _pick(rng, n, [1.1, 0.1 + septic, -0.1 - 0.5 * z["lung"], -0.9, -0.7])
    unit = _pick(rng, n, [1.6, -0.2 + septic, -0.3, 0.5 * z["heart"], 0.5 * z["brain"] - 0.8])
    elective = (source == 2) & (rng.random(n) < 0.6)
    before = np.exp(1.6 + 1.3 * rng.standard_normal(n) + 0.15 * z["frailty"])
    return {
        "age": np.clip(np.rint(64 + 13 * z["frailty"][first] + 8 * age), 18, 90),
        "sex": _words(("female", "male"), male),
        "ethnicity": _words(ETHNICITIES, ethnicity),
        "height_cm": np.round(np.clip(tall, 130, 215), 0),
        "weight_kg": np.round(np.clip(heavy, 30, 280), 1),
        "admission_source": _words(SOURCES, source),
        "unit_type": _words(UNITS, unit),
        "elective_surgery": elective.astype(np.float64),
        "hours_before_icu": np.round(np.minimum(before, 2000), 1),
        "diabetes": _coin(rng, -0.9 + 0.25 * z["frailty"] + 0.2 * z["kidney"]),
        "heart_failure": _coin(rng, -1.8 + 0.7 * z["heart"] + 0.5 * z["frailty"]),
        "metastatic_cancer": _coin(rng, -3.2 + 0.4 * z["frailty"] + 0.4 * z["blood"]),
        "cirrhosis": _coin(rng, -3.6 + 1.2 * z["liver"]),
    }


def _care(rng: np.random.Generator, z: Columns, severity: Array) -> Columns:
    """Consciousness, organ support and urine of the first day."""
    n = len(severity)
    coma = z["brain"] + 0.35 * rng.standard_normal(n)
    ventilated = _coin(rng, -1.2 + 1.2 * z["lung"] + 0.9 * z["brain"])
    oxygen = 0.21 + 0.19 * ventilated + 0.16 * np.maximum(z["lung"] + 0.4 * rng.standard_normal(n), 0)
    urine = 1700 * np.exp(-0.35 * z["kidney"] - 0.2 * z["shock"] + 0.5 * rng.standard_normal(n))
    motor = 6 - 2.2 * np.maximum(coma - 0.6 + 0.2 * rng.standard_normal(n), 0)
    return {
        "gcs_min": np.clip(np.rint(15 - 5.5 * np.maximum(coma - 0.1, 0)), 3, 15),
        "gcs_motor_min": np.clip(np.rint(motor), 1, 6),
        "ventilation": ventilated,
        "vasopressor": _coin(rng, -2.0 + 1.7 * z["shock"]),
        "dialysis": _coin(rng, -4.2 + 1.5 * z["kidney"]),
        "fio2_max": np.round(np.minimum(oxygen, 1), 2),
        "urine_output": np.round(np.minimum(urine, 12000), -1),
    }


def _physiology(rng: np.random.Generator, z: Columns, severity: Array) -> Columns:
    """Draw true vitals (mean, min, max, std of the day) and laboratory values, before anyone measures them."""
    n = len(severity)
    mean = {name: _draw(rng, m, z, severity) for name, m in VITALS.items() if m.loads}
    pulse = 55 * np.exp(0.22 * rng.standard_normal(n) + 0.08 * z["frailty"])
    mean["sbp"] = mean["map"] + pulse * 2 / 3
    mean["dbp"] = mean["map"] - pulse / 3
    body: Columns = {}
    for name in VITALS:
        std = SWING[name] * np.exp(0.3 * rng.standard_normal(n) + 0.12 * severity)
        body[f"{name}_mean"] = mean[name]
        body[f"{name}_min"] = mean[name] - std * np.maximum(1.7 + 0.35 * rng.standard_normal(n), 0.5)
        body[f"{name}_max"] = mean[name] + std * np.maximum(1.7 + 0.35 * rng.standard_normal(n), 0.5)
        body[f"{name}_std"] = std
    lab = {name: _draw(rng, m, z, severity) for name, m in LABS.items() if m.loads}
    lab["hematocrit"] = 3.03 * lab["hemoglobin"] + 0.8 * rng.standard_normal(n)
    lab["lymphocytes"] = np.maximum(99 - lab["neutrophils"], 1) * 0.55 * np.exp(0.3 * rng.standard_normal(n))
    lab["glucose_max"] = lab["glucose"] * np.exp(np.abs(0.22 * rng.standard_normal(n)) + 0.08)
    lab["bilirubin_direct"] = lab["bilirubin_total"] * np.clip(0.4 + 0.12 * rng.standard_normal(n), 0.1, 0.9)
    lab["chloride"] = lab["sodium"] - lab["bicarbonate"] - lab["anion_gap"] + rng.standard_normal(n)
    bicarbonate = np.maximum(lab["bicarbonate"], 3)
    lab["ph"] = 6.1 + np.log10(bicarbonate / (0.0307 * lab["paco2"]))  # Henderson and Hasselbalch
    lab["base_excess"] = 0.93 * (bicarbonate - 24.4) + 13.8 * (lab["ph"] - 7.4)
    return body | {name: lab[name] for name in LABS}


def _log_odds(z: Columns, people: Columns, body: Columns, care: Columns) -> Array:
    """Compute the log odds of death, but for the intercept: the linear part, the bowls, and the pairs."""
    linear = (
        sum(weight * z[name] for name, weight in LINEAR.items())
        + 0.30 * people["metastatic_cancer"]
        + 0.15 * people["cirrhosis"]
        - 0.30 * people["elective_surgery"]
    )
    dev = {name: _deviation(body, name) for name in (*CURVED, "lactate", "creatinine", "bun")}
    bowls = sum(weight * np.clip(np.abs(dev[name]) - 0.8, 0, 2.2) for name, weight in CURVED.items())
    low_pressure = np.clip(-dev["map"], -1.5, 2.5)
    pairs = (
        0.24 * np.clip(dev["lactate"], -1, 2.5) * low_pressure
        + 0.24 * (people["age"] - 64) / 16 * np.clip(dev["creatinine"], -1.5, 2.5)
        + 0.20 * np.clip(dev["heart_rate"], -1.5, 2.5) * low_pressure
        + 0.20 * np.clip(dev["bun"], -1.5, 2.5) * np.clip(-dev["temperature"], -2, 2)
        + 0.30 * (care["gcs_min"] < 9) * care["ventilation"]
    )
    return np.asarray(linear + bowls + pairs)


def _record(
    rng: np.random.Generator, body: Columns, hospitals: Hospitals, *, hospital: Array, severity: Array, black: Array
) -> Columns:
    """Record measurements: each hospital's instruments are a little off, and not all is measured.

    Hospitals differ in what they order, and the sicker are tested more. Pulse oximeters read too
    high on dark skin, as real ones do.
    """
    recorded: Columns = {}
    for name, m in {**VITALS, **LABS}.items():
        off = 0.15 * m.spread * rng.standard_normal(HOSPITALS)[hospital]
        habit = (0.5 * hospitals.orders + 0.7 * rng.standard_normal(HOSPITALS))[hospital] - 0.25 * severity
        rate = np.log(m.gaps / (1 - m.gaps)) + (habit if m.gaps > 0.03 else 0)
        gap = rate + rng.logistic(size=len(hospital)) > 0
        for key in [f"{name}_{part}" for part in ("mean", "min", "max")] if name in VITALS else [name]:
            value = body[key] * np.exp(off) if m.log else body[key] + off
            value = value + 0.6 * black if name == "spo2" else value
            recorded[key] = _round_values(np.clip(value, *m.limits), digits=m.digits, part=key.rpartition("_")[2])
            recorded[key][gap] = np.nan
        if name in VITALS:
            recorded[f"{name}_std"] = np.where(gap, np.nan, np.round(body[f"{name}_std"], 2))
    recorded["glucose_max"] = np.maximum(recorded["glucose_max"], np.nan_to_num(recorded["glucose"]))
    return recorded


def _round_values(values: Array, *, digits: int, part: str) -> Array:
    """Round as a chart shows it; a mean with one digit more, extremes rounded away from it."""
    if part == "mean":
        return np.round(values, digits + 1)
    if part in ("min", "max"):
        outward = np.floor if part == "min" else np.ceil
        return np.asarray(outward(values * 10**digits) / 10**digits)
    return np.round(values, digits)


def _draw(rng: np.random.Generator, m: Measure, z: Mapping[str, Array], severity: Array) -> Array:
    """Draw true values of one measure: moved by its latents, the rest noise, wilder in the sick."""
    noise = rng.standard_normal(len(severity)) * np.sqrt(1 - sum(load**2 for load in m.loads.values()))
    if m.wild:
        noise = noise * np.exp(m.wild * severity)
    x = m.spread * (sum(load * z[name] for name, load in m.loads.items()) + noise)
    return np.asarray(m.centre * np.exp(x) if m.log else m.centre + x)


def _deviation(body: Columns, name: str) -> Array:
    """Express a true value in spreads from its centre."""
    m = VITALS[name] if name in VITALS else LABS[name]
    value = body[f"{name}_mean"] if name in VITALS else body[name]
    return np.asarray((np.log(value / m.centre) if m.log else value - m.centre) / m.spread)


def _coin(rng: np.random.Generator, log_odds: Array) -> Array:
    return (log_odds + rng.logistic(size=len(log_odds)) > 0).astype(np.float64)


def _pick(rng: np.random.Generator, n: int, log_weights: Sequence[Array | float]) -> Array:
    """Pick an index a stay, with probability proportional to exp(log weight) (Gumbel's trick)."""
    return np.asarray(np.argmax([weight + rng.gumbel(size=n) for weight in log_weights], axis=0))


def _words(levels: tuple[str, ...], index: Array) -> Array:
    return np.take(np.array(levels, dtype=object), index.astype(np.int64))


def _name_numbers(prefix: str, numbers: Array) -> Array:
    """Name numbers "hospital-007" and the like, one string object for each distinct number."""
    width = len(str(int(numbers.max())))
    names = np.array([f"{prefix}-{i:0{width}d}" for i in range(int(numbers.max()) + 1)], dtype=object)
    return np.take(names, numbers)
