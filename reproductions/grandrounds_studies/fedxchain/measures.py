"""Measures of FedXChain and of the methods it is compared with: trust and NSDS by round, cost, fidelity, rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds_studies import detection
from grandrounds_studies.attack_measures import BAD_WEIGHT
from grandrounds_studies.measures import ACCURACY, MACRO_F1, MAJORITY, MEGABYTES
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

CLOSE, NEAR = 0.01, 0.1
"""An accuracy has arrived within one point of its last, an NSDS within a tenth of its last."""

SEVENTH, ENOUGH = 7, 2
"""The paper's "within 6-7 rounds"; and how many rounds it takes to speak of a course."""


def signal(entry: Mapping[str, Any], name: str) -> dict[str, float]:
    """A signal of a round's Decision by site, where trust is FedXChain's: FLTrust calls another thing so."""
    signals = entry["decision"]["signals"]
    held = signals.get(name, {}) if "nsds" in signals else {}
    return {site: float(value) for site, value in held.items() if value is not None}


def by_round(run: Run, name: str) -> list[float]:
    """A signal's mean over sites, round by round; NaN where no site has it."""
    told = [list(signal(entry, name).values()) for entry in run.rounds]
    return [float(np.mean(values)) if values else nan for values in told]


def accuracies(run: Run) -> list[float]:
    """Test accuracy round by round."""
    return [float(entry["test"]["accuracy"]) for entry in run.rounds if "test" in entry]


def arrived(course: Sequence[float], *, within: float) -> float:
    """The first round from which on a course stays this close to its end; NaN for one round, which is no course."""
    if len(course) < ENOUGH or not np.isfinite(course).all():
        return nan
    off = np.flatnonzero(np.abs(np.asarray(course) - course[-1]) > within)
    return 1.0 if not len(off) else float(off[-1] + 2)


def rises(course: Sequence[float]) -> float:
    """1 where no round is below the one before, else 0."""
    if len(course) < ENOUGH or not np.isfinite(course).all():
        return nan
    return float(np.all(np.diff(course) >= 0))


def _settles(run: Run) -> float:
    course = by_round(run, "nsds")
    return arrived(course, within=NEAR * abs(course[-1]))


def _after_seven(run: Run) -> float:
    course = accuracies(run)
    return course[min(SEVENTH, len(course)) - 1]


def courses(run: Run) -> dict[str, Any]:
    """Accuracy, NSDS and trust by round, for figures."""
    return {"accuracy": accuracies(run), "nsds": by_round(run, "nsds"), "trust": by_round(run, "trust")}


def _last(name: str) -> Any:
    return lambda run: by_round(run, name)[-1]


NSDS = Measure("nsds", "NSDS", _last("nsds"), lower=True, digits=4)
TRUST = Measure("trust", "trust", _last("trust"), lower=False)
TESTED = Measure("tested", "test rows", lambda run: float(run.summary["final"]["count"]), digits=0)
CONVERGED = Measure(
    "converged", "round of convergence", lambda run: arrived(accuracies(run), within=CLOSE), lower=True, digits=1
)
STEADY = Measure("steady", "round of a steady NSDS", _settles, lower=True, digits=1)
RISES = Measure("rises", "trust never falls", lambda run: rises(by_round(run, "trust")), lower=False, digits=1)
AFTER_SEVEN = Measure("after_seven", "accuracy after round 7", _after_seven, lower=False)


def _fidelity(run: Run) -> float:
    value = run.summary["explanation"].get("training", {}).get("fidelity")
    return nan if value is None else float(value)


FIDELITY = Measure("fidelity", "fidelity", _fidelity, lower=False)
"""Rank correlation of local models' SHAP importances with coefficients (linear) or permutation importances (others)."""


def _payload(run: Run) -> float:
    return float(run.summary["cost"]["payload_down"] + run.summary["cost"]["payload_up"]) / 1e3


PAYLOAD = Measure("payload", "payload, kB", _payload, lower=True, digits=1)
SECONDS = Measure("seconds", "seconds", lambda run: float(run.summary["cost"]["seconds"]), lower=True, digits=2)

RUN = (ACCURACY, MAJORITY, MACRO_F1, NSDS, TRUST, FIDELITY, TESTED)
COURSE = tuple(replace(m, shown=False) for m in (CONVERGED, STEADY, RISES, AFTER_SEVEN))
COST = (PAYLOAD, MEGABYTES, SECONDS)


def means(run: Run, name: str) -> dict[str, float]:
    """A signal by site, as its mean over rounds."""
    told: dict[str, list[float]] = {}
    for entry in run.rounds:
        for site, value in signal(entry, name).items():
            told.setdefault(site, []).append(value)
    return {site: float(np.mean(values)) for site, values in told.items()}


def rewards(run: Run) -> dict[str, Any]:
    """Trust, reward and contribution of each site, as means over rounds, and which sites attack."""
    names = ("trust", "reward", "contribution")
    return {**{name: means(run, name) for name in names}, "bad": sorted(run.summary["attacks"].get("sites", {}))}


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's r; NaN where one of the two does not vary."""
    if len(x) < ENOUGH or not np.ptp(x) or not np.ptp(y):
        return nan
    return float(np.corrcoef(x, y)[0, 1])


def _correlation(name: str) -> Any:
    def read(run: Run) -> float:
        trust, other = means(run, "trust"), means(run, name)
        shared = [site for site in trust if site in other]
        return pearson([trust[s] for s in shared], [other[s] for s in shared])

    return read


REWARD_R = Measure("reward_r", "r of trust and reward", _correlation("reward"), lower=False)
CONTRIBUTION_R = Measure("contribution_r", "r of trust and contribution", _correlation("contribution"), lower=False)


def sides(run: Run) -> tuple[list[float], list[float]]:
    """Trust in the last round of the sites that attack, and of the honest ones."""
    return detection.sides(run, signal(run.rounds[-1], "trust"))


def _mean_of(side: int) -> Any:
    return lambda run: float(np.mean(held)) if (held := sides(run)[side]) else nan


def _told_apart(run: Run) -> float:
    """1 where every site that attacks is trusted less than every honest one, else 0."""
    bad, honest = sides(run)
    return float(max(bad) < min(honest)) if bad and honest else nan


FLIPPED_WEIGHT = replace(BAD_WEIGHT, words="weight of flipped sites", digits=3)
FLIPPED_TRUST = Measure("flipped_trust", "trust of flipped sites", _mean_of(0), lower=True)
HONEST_TRUST = Measure("honest_trust", "trust of honest sites", _mean_of(1), lower=False)
TOLD_APART = Measure("told_apart", "flipped below all honest", _told_apart, lower=False, digits=1)
