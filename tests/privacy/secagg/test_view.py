"""What the server sees of one site: uniform bytes, whatever the site's values are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from grandrounds.core.rng import generator
from grandrounds.privacy.secagg import Context, Scale
from tests.privacy.secagg.rehearsal import rehearse

SIZE = 50_000
SURELY = 1e-5
"""A fixed seed makes the tests repeatable; were it drawn anew, one in 100,000 would fail."""


def view(values: np.ndarray, *, bits: int, seed: int, round: int = 1) -> np.ndarray:
    """The masked vector of site a, among two others."""
    seen = {}

    def watch(step, site, said):
        if (step, site) == ("masked", "a"):
            seen["a"] = said["masked"]
        return said

    others = generator(seed, purpose="others").uniform(-1, 1, (2, len(values)))
    rehearse(
        {"a": values, "b": others[0], "c": others[1]},
        scale=Scale(bits, 1.0, 3),
        tamper=watch,
        seed=seed,
        context=Context("view", round, "model"),
    )
    return seen["a"]


def uniform(masked: np.ndarray) -> float:
    """Chi-square p of the bytes being uniform."""
    return float(stats.chisquare(np.bincount(masked.view(np.uint8), minlength=256)).pvalue)


INPUTS = {
    "zeros": np.zeros(SIZE),
    "ones": np.ones(SIZE),
    "alternating": np.where(np.arange(SIZE) % 2, 1.0, -1.0),
    "one patient": np.eye(1, SIZE)[0],
    "normal": np.clip(generator(5, purpose="input").normal(0, 0.1, SIZE), -1, 1),
}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", INPUTS)
def test_bytes_are_uniform_whatever_the_values(kind, bits):
    masked = view(INPUTS[kind], bits=bits, seed=1)
    assert uniform(masked) > SURELY
    ones = np.unpackbits(masked.view(np.uint8)).reshape(-1, bits).mean(axis=0)  # each bit of the word alone
    z = (ones - 0.5) / (0.5 / np.sqrt(SIZE))
    assert np.abs(z).max() < 5.5
    assert abs(np.corrcoef(masked[1:].astype(float), masked[:-1].astype(float))[0, 1]) < 5.5 / np.sqrt(SIZE)


def test_two_very_different_inputs_cannot_be_told_apart():
    """Kolmogorov-Smirnov between the views, and the values' correlation with their view."""
    first, second = view(INPUTS["zeros"], bits=32, seed=2), view(INPUTS["alternating"], bits=32, seed=3)
    assert stats.ks_2samp(first, second).pvalue > SURELY
    assert abs(np.corrcoef(second.astype(float), INPUTS["alternating"])[0, 1]) < 5.5 / np.sqrt(SIZE)


def test_the_best_guess_between_two_inputs_is_a_coin_toss():
    """Over 150 rounds one of two values is masked; where the view falls in the ring says nothing of which."""
    rng = generator(4, purpose="which")
    which = rng.integers(0, 2, 150)
    inputs = (np.full(4, -1.0), np.full(4, 1.0))
    seen = np.array([view(inputs[w], bits=32, seed=6, round=r + 1) for r, w in enumerate(which)])
    for column in seen.T:
        low, high = column[which == 0], column[which == 1]
        assert stats.ks_2samp(low, high).pvalue > SURELY
    guess = (seen.view(np.int32)[:, 0] > 0).astype(int)  # what would be right every time without masks
    assert abs((guess == which).mean() - 0.5) < 5.5 * 0.5 / np.sqrt(150)


def test_the_same_test_catches_values_without_masks():
    assert uniform(Scale(32, 1.0, 3).to_ring(INPUTS["normal"])) < SURELY


def test_the_same_values_look_different_in_every_round():
    views = [view(INPUTS["ones"], bits=32, seed=1, round=r) for r in (1, 2)]
    assert uniform(views[0] - views[1]) > SURELY
