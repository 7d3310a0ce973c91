"""A small table of patients and a run on it, shared by the tests of the Python interface."""

from __future__ import annotations

import pandas as pd
import pytest

import grandrounds as gr
from tests.store import finished
from tests.support import patients


def patient_frame(sizes: list[int], *, seed: int = 0, classes: int = 2) -> pd.DataFrame:
    frame = pd.DataFrame(dict(patients(sizes, seed=seed, classes=classes).columns))
    return frame.astype({"died": int})


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    """Three hospitals: a, b, c."""
    return patient_frame([40, 50, 30])


@pytest.fixture(scope="session")
def run(frame) -> gr.Run:
    """Two rounds of FedAvg on the frame."""
    return gr.load_run(finished(frame, label="died", site="hospital", rounds=2))
