"""Sums over patients for VEIL: under masks with one draw of noise for all, or added up from answers that carry their own."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

import numpy as np

from grandrounds.core.errors import RunFailed
from grandrounds.methods.base import Server
from grandrounds.methods.secure import STATISTIC_BITS, Summed, secure_sum
from grandrounds.protocol.messages import Answers, Ask

LARGEST = 2.0**30
"""The largest entry of one site's sum: beyond what its patients can add up to."""


def added_up(server: Server, ask: Ask, name: str, *, noise: float) -> Generator[Ask, Answers, Summed]:
    """The sum of what sites are asked for; `noise`: its least deviation, which a secure sum's sites add in shares."""
    if server.secure is None:
        answers: Answers = yield ask
        if not len(answers):
            raise RunFailed(f"round {server.round}: no site answered")
        return Summed(answers.sites, {name: np.asarray(answers[name], float).sum(axis=0)}, {}, answers.missing)
    held: Answers = yield ask.holding(name)
    summed = yield from secure_sum(server.secure, held, bits=STATISTIC_BITS, bound=LARGEST, noise=noise)
    return summed


def added_noise(noise: float, server: Server, sites: Sequence[str]) -> float:
    """The deviation of the noise that is really in a sum over these sites, each of which added its own or its share."""
    if server.secure is None:
        return noise * math.sqrt(len(sites))
    from grandrounds.privacy.secagg import fewest_honest

    return noise * math.sqrt(max(1.0, len(sites) / fewest_honest(max(1, len(sites)))))
