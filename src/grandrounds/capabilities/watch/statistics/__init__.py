"""Watch a model at one hospital: sequential tests of inputs, scores, explanations and labels with a stated false-alarm rate.

    reference = Reference.build(validation, training=training, ranges=ranges, levels=levels, threshold=0.2)
    reference = calibrate(reference, reference.evidence(validation), seed=0, site="North")
    detector = Detector(reference)                        # or Detector(reference, State.from_arrays(arrays, reference))
    for signal in detector.watch(new):                    # Rows of new patients, in order
        print(signal.check.kind, signal.check.column, signal.since, signal.reference, signal.current)
    detector.watch(Rows(score=risks, label=outcomes))     # labels that arrive later, with the risks predicted then
    arrays, meta = reference.to_arrays()                  # baseline; Reference.from_arrays(arrays, meta)
    arrays = detector.state.to_arrays()

`Rows` holds named arrays: numbers (NaN missing), categories (codes, -1 missing, -2 unseen), score, attributions by column, label,
patient. A `Check` has name, kind, column, direction, share and level. A `Signal` is an alarm: the check to name, the patient at
which it came, the patient since when, the number of patients since, and the reference and current mean of the number to show.
After an alarm the checks of that column are quiet until `detector.release(names)`; `detector.silence(names)` turns checks off.
`detector.levels()` is log(SR w / A) of each check, zero being an alarm: for a timeline.

Assumption of the false-alarm rate: new patients are independent draws from the population of the reference rows.
"""

from __future__ import annotations

from grandrounds.capabilities.watch.statistics.checks import (
    CALIBRATION,
    DISCRIMINATION,
    EXPLANATION,
    INPUT_KINDS,
    KINDS,
    LABEL_KINDS,
    MISSING,
    NET_BENEFIT,
    PREVALENCE,
    RANGE,
    SCORE,
    SHIFT,
    UNSEEN,
    Check,
)
from grandrounds.capabilities.watch.statistics.detector import Detector, Signal, State
from grandrounds.capabilities.watch.statistics.reference import Evidence, Reference
from grandrounds.capabilities.watch.statistics.rows import Rows
from grandrounds.capabilities.watch.statistics.threshold import ALARMS, PATIENTS, calibrate, guaranteed_limit

__all__ = [
    "ALARMS", "CALIBRATION", "DISCRIMINATION", "EXPLANATION", "INPUT_KINDS", "KINDS", "LABEL_KINDS", "MISSING", "NET_BENEFIT",
    "PATIENTS", "PREVALENCE", "RANGE", "SCORE", "SHIFT", "UNSEEN", "Check", "Detector", "Evidence", "Reference", "Rows", "Signal",
    "State", "calibrate", "guaranteed_limit",
]  # fmt: skip
