"""Warnings before figures mislead: too few events, thresholds that flag nobody, an AUROC that is too good."""

from __future__ import annotations

import pytest

from grandrounds.data.warnings import few_events_warnings, threshold_warnings, too_good_warnings


def test_an_auroc_that_is_rarely_possible_is_pointed_out():
    (message,) = too_good_warnings({"auroc": 0.991})
    assert message.startswith("AUROC 0.991 is rarely possible before an outcome")
    assert (
        too_good_warnings({"auroc": 0.979})
        == too_good_warnings({"auroc": None})
        == too_good_warnings({})
        == too_good_warnings({"auroc": float("nan")})
        == []
    )


def test_nine_events_are_too_few_and_ten_are_not():
    (message,) = few_events_warnings({"survived": 90, "died": 9}, ("survived", "died"))
    assert message.startswith("9 events ('died') among 99 test rows")
    assert few_events_warnings({"survived": 90, "died": 10}, ("survived", "died")) == []
    assert few_events_warnings({"a": 1, "b": 1, "c": 1}, ("a", "b", "c")) == []


@pytest.mark.parametrize(
    ("sensitivity", "specificity", "words"),
    [
        (0.0, 1.0, "nobody (0.0%"),
        (0.05, 0.999, "hardly anybody"),
        (1.0, 0.0, "everybody (100.0%"),
        (1.0, 0.01, "nearly everybody"),
        (0.8, 0.7, ""),
    ],
)
def test_a_threshold_that_flags_nobody_or_everybody_is_pointed_out(sensitivity, specificity, words):
    message = threshold_warnings({"sensitivity": sensitivity, "specificity": specificity}, 0.5, 0.1)
    assert (words in message[0]) if words else message == []
