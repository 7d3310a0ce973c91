"""The level of alarms: set by resampling validation patients, and never above the level that the theorem asks for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grandrounds.capabilities.watch.statistics.reference import Evidence, Reference
from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator

PATIENTS, ALARMS = 5000, 0.5
"""Aim: this mean number of false alarms of all checks together in so many patients."""
STREAMS = 50


def guaranteed_limit(reference: Reference, *, alarms: float = ALARMS, patients: int = PATIENTS) -> float:
    """Return the level A at which the theorem alone keeps false alarms to the aim: at most (sum of shares) / A a patient."""
    return sum(check.share for check in reference.checks) * patients / alarms


def calibrate(
    reference: Reference,
    validation: Evidence,
    *,
    seed: int,
    site: str = "",
    alarms: float = ALARMS,
    patients: int = PATIENTS,
    streams: int = STREAMS,
) -> Reference:
    """Return the reference with the level A at which resampled validation patients give the aimed number of alarms.

    Streams of patients are drawn with replacement. A stream of `patients` without an alarm at level A has probability
    exp(-alarms) if alarms are rare and independent; A solves this for the checks with and without labels together, each of which
    begins anew after an alarm. The result is at most `guaranteed_limit`.

    Args:
        reference: Checks of the site.
        validation: Evidence of the validation rows by this reference.
        seed: Seed of the run.
        site: Name of the site, for its own random numbers.
        alarms: Mean number of false alarms aimed at.
        patients: In so many patients.
        streams: Streams that are drawn.
    """
    drawn = generator(seed, purpose="watch limit", site=site)
    first = reference.labels_from
    split = int(np.searchsorted(reference.owner, first))
    last = len(reference.checks)
    parts = ((0, first, slice(0, split), validation.seen), (first, last, slice(split, None), validation.labelled))
    maxima = [
        _maxima(
            reference, validation.log_e[:, tilts][read], range(begin, end), drawn, patients=patients, streams=streams
        )
        for begin, end, tilts, read in parts
        if begin < end and read.any()
    ]
    bound = guaranteed_limit(reference, alarms=alarms, patients=patients)
    low, high = -20.0, float(np.log(bound)) if bound > 0 else 0.0
    if sum(_rate(m, high) for m in maxima) < alarms:
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(_rate(m, middle) for m in maxima) > alarms else (low, middle)
    return replace(reference, limit=float(np.exp(high)))


def _rate(maxima: Array, level: float) -> float:
    """Estimate the mean number of alarms of a stream from the share of streams without one."""
    return -float(np.log((np.sum(maxima < level) + 0.5) / (len(maxima) + 1)))


def _maxima(
    reference: Reference, log_e: Array, checks: range, drawn: np.random.Generator, *, patients: int, streams: int
) -> Array:
    """Return the largest log(SR w) of each stream (streams,) of resampled patients, without restarts."""
    owner = reference.owner[(reference.owner >= checks.start) & (reference.owner < checks.stop)] - checks.start
    sizes = np.bincount(owner, minlength=len(checks))
    shares = np.array([reference.checks[c].share for c in checks])
    weight = np.repeat(shares / sizes, sizes).astype(np.float32)
    known = ~np.isnan(log_e)
    times = np.exp(np.where(known, log_e, 0.0)).astype(np.float32)
    adds = known * weight
    starts = np.cumsum(sizes) - sizes
    statistic = np.zeros((streams, len(owner)), np.float32)
    largest = np.zeros(streams, np.float32)
    everything = known.all()
    with np.errstate(over="ignore"):
        for chosen in drawn.integers(len(log_e), size=(patients, streams)):
            statistic += weight if everything else adds[chosen]
            statistic *= times[chosen]
            np.minimum(statistic, np.float32(1e30), out=statistic)
            np.maximum(largest, np.add.reduceat(statistic, starts, axis=1).max(axis=1), out=largest)
    return np.log(np.maximum(largest, np.float32(1e-30))).astype(np.float64)
