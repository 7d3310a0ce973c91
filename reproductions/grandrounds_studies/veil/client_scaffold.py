"""Client-level DP-SCAFFOLD: a baseline of VEIL's Table 1, for studies only.

The package refuses SCAFFOLD under client-level privacy, since a site answers with the change of its control variate besides its
update. Here both are clipped, averaged over the planned number of sites, and get Gaussian noise at a trusted server. Two
releases with noise sqrt(2) z cost what one with noise z costs (Gaussian mechanisms compose by the sum of 1 / z^2), so each has
sqrt(2) times the noise of DP-FedAvg for the same epsilon. The accountant of the package does not see it, and the noise is drawn
from the run's seed: nobody is protected by this class.
"""

from __future__ import annotations

from collections.abc import Generator
from math import sqrt
from typing import ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.records import Stage
from grandrounds.methods.aggregate import Aggregation
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.privacy.clipping import clip_norm
from grandrounds.protocol.messages import Answers, Ask

SPLIT = sqrt(2)
"""Noise of either release in units of the noise that one release with the same budget needs."""


class ClientScaffold(FedAvg):
    """SCAFFOLD with clipped, noised updates and control variates.

    Options: `clip` and `variate_clip` are the largest norms, `noise` is the deviation of DP-FedAvg's noise in units of its clip.
    """

    title = "client-level DP-SCAFFOLD: clipped and noised updates and control variates (studies only)"
    regularizer_name = "scaffold"
    parts = frozenset({"stability"})
    defaults: ClassVar = {"clip": 1.0, "variate_clip": 1.0, "noise": 0.0}

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        """Release the mean update, and the mean change of the control variates, each clipped and with its own noise."""
        answers: Answers = yield ask
        updates = np.asarray(answers["model"], float) - server.model
        total = self._release(server, updates, self.options["clip"], purpose="update noise")
        changes = np.asarray(answers["variate"], float)
        change = self._release(server, changes, self.options["variate_clip"], purpose="variate noise")
        weights = np.full(len(answers.sites), 1 / len(server.sites))
        by_site = dict(zip(answers.sites, weights.tolist(), strict=True))
        why = f"updates are clipped to {self.options['clip']:g}, variates to {self.options['variate_clip']:g}; both are noised"
        aggregation = Aggregation(
            ModelAssignment(server.model + total), answers.sites, weights, {}, (Stage("weigh", why, by_site),)
        )
        noised = Answers(answers.sites, answers.columns, missing=answers.missing, totals={"variate": change}, id=answers.id)
        return aggregation, noised

    def _release(self, server: Server, vectors: Array, clip: float | str, *, purpose: str) -> Array:
        """Return the clipped sum over the planned number of sites, with noise for a sensitivity of clip / sites."""
        sensitivity = float(clip) / len(server.sites)
        deviation = SPLIT * float(self.options["noise"]) * sensitivity
        noise = deviation * server.rng(purpose).standard_normal(vectors.shape[-1])
        out: Array = clip_norm(vectors, float(clip)).sum(axis=0) / len(server.sites) + noise
        return out
