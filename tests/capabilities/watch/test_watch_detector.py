"""Detectors of a watch: the recursion by hand, the rate of false alarms, blocks, change points and delays."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.watch.statistics import Detector, Reference, Rows, State, calibrate, guaranteed_limit
from grandrounds.capabilities.watch.statistics.detector import choose
from tests.capabilities.watch.test_watch_reference import build, patients
from tests.support import refused


@pytest.fixture(scope="module")
def reference() -> Reference:
    rows = patients(120, 0)
    made = build(rows, training=patients(400, 1))
    return calibrate(made, made.evidence(rows), seed=0, streams=20, patients=2000)


def unlabelled(n: int, seed: int, *, shift: float = 0.0) -> Rows:
    rows = patients(n, seed, shift=shift)
    return Rows(rows.numbers, rows.categories, rows.score, rows.attributions)


def test_recursion_by_hand():
    rows = Rows(numbers={"lab": np.array([np.nan, *np.linspace(1, 2, 24)])})
    reference = Reference.build(rows)
    evidence = reference.evidence(Rows(numbers={"lab": np.array([1.5, np.nan, np.nan])}))
    detector = Detector(reference)
    detector.update(evidence)
    e = np.exp(evidence.log_e)
    c = [check.name for check in reference.checks].index("missing up: lab")
    for tilt in np.flatnonzero(reference.owner == c):
        a, b, d = e[:, tilt]
        assert detector.state.statistic[tilt] == pytest.approx(((1 * a + 1) * b + 1) * d)
        assert detector.state.since[tilt] == 2
        assert detector.state.counts[tilt] == 2
    for tilt in np.flatnonzero(reference.owner == [k.name for k in reference.checks].index("shift up: lab")):
        assert detector.state.statistic[tilt] == pytest.approx(e[0, tilt]), "missing values say nothing about a shift"


def test_blocks_of_any_size_and_a_stored_state_give_the_same_bits(reference):
    rows = patients(200, 5, shift=0.5)
    whole = Detector(reference)
    signals = whole.watch(rows)
    assert signals
    parts, found, state = [1, 6, 50, 51, 200], [], None
    for begin, end in zip([0, *parts], parts, strict=False):
        detector = Detector(Reference.from_arrays(*reference.to_arrays()), state)
        found += detector.watch(rows.take(np.arange(begin, end)))
        state = State.from_arrays(detector.state.to_arrays(), reference)
    assert found == signals
    for name, value in whole.state.to_arrays().items():
        np.testing.assert_array_equal(value, state.to_arrays()[name], err_msg=name)
    with refused("watch-state"):
        State.from_arrays(state.to_arrays(), Reference.build(Rows(numbers={"x": np.arange(30.0)})))


def test_planted_shift_is_named_with_its_change_point(reference):
    detector = Detector(reference)
    assert detector.watch(unlabelled(150, 6)) == []
    found = detector.watch(unlabelled(200, 7, shift=1.0))
    first = found[0]
    assert (first.check.column, first.check.direction) == ("lab", "up")
    assert 150 < first.patient <= 200
    assert abs(first.since - 151) <= 10
    assert first.reference < first.current
    assert [s.check.column for s in found].count("lab") == 1, "a lasting change alarms once, until it is released"
    names = [check.name for check in reference.checks if check.column == "lab"]
    detector.release(names)
    assert "lab" in [s.check.column for s in detector.watch(unlabelled(200, 8, shift=1.0))]


def test_silent_checks_raise_no_alarm(reference):
    detector = Detector(reference)
    detector.silence(check.name for check in reference.checks)
    assert detector.watch(patients(200, 7, shift=1.0)) == []


def test_missing_and_unseen_values_are_named_as_such(reference):
    rows = patients(200, 9, gaps=0.3)
    assert Detector(reference).watch(rows)[0].check.name == "missing up: lab"
    ward = rows.categories["ward"].copy()
    ward[np.random.default_rng(0).random(200) < 0.25] = -2
    recoded = Rows(patients(200, 10).numbers, {"ward": ward})
    assert Detector(reference).watch(recoded)[0].check.name == "unseen up: ward"


def test_labels_that_arrive_later_count_labelled_patients(reference):
    detector = Detector(reference)
    rows = patients(300, 11, odds=1.2)
    detector.watch(Rows(rows.numbers, rows.categories, rows.score, rows.attributions))
    assert detector.state.clocks.tolist() == [300, 0]
    found = detector.watch(Rows(score=rows.score, label=rows.label))
    assert detector.state.clocks.tolist() == [300, 300]
    assert {"prevalence", "calibration"} & {signal.check.kind for signal in found}
    assert all(signal.check.labelled for signal in found)


def test_input_is_named_before_the_explanation_that_follows_from_it(reference):
    checks = reference.checks
    names = [check.name for check in checks]
    levels = np.full(len(checks), -10.0)
    levels[names.index("explanation up: lab")], levels[names.index("shift up: age")] = 1.0, -2.0
    assert checks[choose(checks, levels)].name == "shift up: age"
    levels[names.index("shift up: age")] = -4.0
    assert checks[choose(checks, levels)].name == "explanation up: lab"
    levels[names.index("missing up: lab")] = -1.0
    assert checks[choose(checks, levels)].name == "missing up: lab"


def test_rate_of_false_alarms_is_below_the_bound():
    """With A = 50 the theorem allows one alarm in 50 patients: 4,000 resampled patients have at most 80 in the mean."""
    rows = patients(80, 2)
    reference = build(rows)
    low = Reference(**{**vars(reference), "limit": 50.0})
    evidence = low.evidence(rows)
    found = Detector(low, hold=False).update(evidence.take(np.random.default_rng(0).integers(80, size=4000)))
    inputs = [s for s in found if not s.check.labelled]
    share = sum(check.share for check in low.checks if not check.labelled)
    assert len(inputs) <= 4000 * share / 50
    assert 5 <= len(found) <= 80


def test_resampling_gives_the_rate_that_is_aimed_at():
    rows = patients(100, 3)
    reference = build(rows)
    evidence = reference.evidence(rows)
    aimed = calibrate(reference, evidence, seed=0, alarms=0.5, patients=300, streams=100)
    assert aimed.limit < guaranteed_limit(reference, alarms=0.5, patients=300)
    again = calibrate(reference, evidence, seed=0, alarms=0.5, patients=300, streams=100)
    assert again.limit == aimed.limit
    drawn = np.random.default_rng(1).integers(100, size=6000)
    found = Detector(aimed, hold=False).update(evidence.take(drawn))
    assert 0.2 <= len(found) / 20 <= 0.8


def test_delay_is_near_the_logarithm_of_the_limit_over_the_divergence():
    """Lorden: the mean delay is about log(A / w) / KL, less a constant for the starts that the statistic adds up."""
    rng = np.random.default_rng(0)
    rows = Rows(score=np.full(2000, 0.1), label=(rng.random(2000) < 0.1).astype(float))
    reference = Reference.build(rows)
    c = [check.name for check in reference.checks].index("prevalence up")
    limit = 1e6 * reference.checks[c].share
    reference = Reference(**{**vars(reference), "limit": limit})
    tilts = np.flatnonzero(reference.owner == c)
    delays = []
    for seed in range(20):
        label = (np.random.default_rng(seed).random(800) < 0.25).astype(float)
        delays.append(Detector(reference).watch(Rows(score=np.full(800, 0.1), label=label))[0].patient)
    first = reference.evidence(Rows(score=np.full(2, 0.1), label=np.array([0.0, 1.0]))).log_e[:, tilts]
    growth = (0.75 * first[0] + 0.25 * first[1]).max()
    assert 0.7 * np.log(1e6) / growth < np.mean(delays) < 1.05 * np.log(1e6) / growth
