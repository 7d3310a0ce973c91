"""VEIL's proposals under attack: as printed they break their claim at once, drawn with their sign they keep it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grandrounds.methods.veil.extractor import Extractor, printed_weights
from grandrounds.methods.veil.site import PROPOSE
from grandrounds.privacy.attacks.empirical import lower_bound
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.messages import Ask
from grandrounds.site.stack import Part
from tests.support import slow, stack, veil_sites

RUNS = 6000
# Stays of a small hospital, two measurements, all of whom died (y = 1). The printed model starts at zero, where every
# stay pulls its weights by (1 - 1/2) x / n: the first measurement by -1/2 a stay, and by +3/2 for the patient in question.
OTHERS = np.array([[-1.0, 1.0], [-1.0, 1.0]])
PATIENT = np.array([[3.0, 1.0]])
WITH, WITHOUT = np.concatenate([OTHERS, PATIENT]), OTHERS
RULE = Extractor(epochs=1, batch=0, lr=0.1, clip=1.0, l2=0.0)


def proposals(selection, epsilon, **told):
    """What a hospital proposes, in many copies of it side by side, each with a secret of its own."""

    def run(rows, rng, runs):
        n, word = len(rows), int(rng.integers(2**32))
        y = np.ones(runs * n, np.int64)
        part = Part(np.tile(rows, (runs, 1)), y, y[:, None].astype(float), np.zeros_like(y), np.arange(runs + 1) * n)
        site = veil_sites(
            [str(k) for k in range(runs)],
            replace(stack([5, 5]), parts={"train": part}),
            lambda name: Secret.simulated(word, name),
        )
        shared = {"k": 1, "epsilon": epsilon, "selection": selection, "inputs": rows.shape[1], **told}
        votes = site.tasks[PROPOSE](Ask(PROPOSE, shared=shared), np.arange(runs))["votes"]
        return [tuple(v) for v in votes.tolist()]

    return run


def test_one_stay_turns_the_sign():
    rng = np.random.default_rng(0)
    # by hand: (-1/2 - 1/2 + 3/2) / 3 = 1/6 and (3/2) / 3 = 1/2; without the patient -1/2 and 1/2
    bound = 2 * 1 * 1 * 0.1 * 1.0  # eq. 1
    assert printed_weights(RULE, WITH, np.ones(3), rng) == pytest.approx(np.array([1 / 6, 1 / 2]) * 0.1 / bound)
    assert printed_weights(RULE, WITHOUT, np.ones(2), rng) == pytest.approx(np.array([-1 / 2, 1 / 2]) * 0.1 / bound)


@pytest.mark.parametrize("claimed", [slow(1.0), 5.0])
def test_as_printed_the_claim_is_broken(claimed):
    bound = lower_bound(
        proposals("paper", claimed, **RULE.to_values()), WITH, WITHOUT, runs=RUNS, seed=21, at_once=True
    )
    assert bound.refutes(claimed)
    # "first measurement, falling" comes half of the time without the patient and never with: no epsilon would do
    assert bound.unlikely == 0
    assert bound.epsilon > 5


def test_feature_and_sign_in_one_draw_keep_the_claim():
    claimed, runs = 2.0, RUNS // 2
    told = {"value": 1.0, "prior": 0.05}
    bound = lower_bound(proposals("score", claimed, **told), WITH, WITHOUT, runs=runs, seed=21, at_once=True)
    assert bound.epsilon <= claimed
    # a patient whose outcome was least expected moves each utility by .95: close to the most there is
    least = lower_bound(
        proposals("score", claimed, **told), PATIENT, np.empty((0, 2)), runs=runs, seed=21, at_once=True
    )
    assert claimed / 3 < least.epsilon <= claimed
    # epsilon charged for one draw but three times as much put into it
    broken = lower_bound(
        proposals("score", 3 * claimed, **told), PATIENT, np.empty((0, 2)), runs=runs, seed=21, at_once=True
    )
    assert broken.refutes(claimed)
