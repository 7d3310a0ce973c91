"""What the made-up cohort measures: vitals and laboratory values with their usual ranges.

Centres, spreads and shares of gaps are those of a mixed adult ICU's first day, rounded; units are
the usual American ones. `LATENTS` are the severities behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
