"""Differential privacy of a method: the run's guarantee, the events of a round, and DP-FedAvg (McMahan et al. 2018).

*Sample level* (`dp-sgd`): sites add noise to their steps (site/dp_sgd.py), so the server's work on their models is
post-processing. *Client level* (`client`): a site's whole update is clipped, at the site and again by the server, and
the noise is added to the weighted sum. The sum is divided by the planned number of sites (`Private.sites`), not by the number
that answered: McMahan et al.'s fixed denominator. So adding or removing a site changes the sum by at most clip / sites, its
sensitivity, which sets the noise. Divided by the number of answers, the sum would change by twice as much when a site leaves,
since all other weights grow. Where row counts are
public, w_k = n_k / n with the counts of those that were *asked*, and w_max * clip is the sensitivity.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.records import Stage
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.select import count_sites
from grandrounds.methods.weigh import data_size
from grandrounds.privacy.clipping import clip_norm
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import ERROR

if TYPE_CHECKING:
    from grandrounds.methods.aggregate import Aggregation
    from grandrounds.methods.base import Method, Server
    from grandrounds.privacy.secagg import Secret

DP_SGD, CLIENT = "dp-sgd", "client"


@dataclass(frozen=True)
class PrivacyTerms:
    """The privacy guarantee of a run, as its method needs it. `secret`: the source of a trusted server's noise."""

    mechanism: str
    epsilon: float | None
    delta: float
    clip: float
    noise: float  # standard deviation in units of the sensitivity; 0 if the method sets it
    sampling_rate: float
    secure: bool
    min_rows: int = 0
    steps: int = 1  # of DP-SGD in a round
    sites: int = 0  # denominator of client-level sums; 0: the number of sites
    secret: Secret | None = field(default=None, compare=False)

    def site_config(self) -> dict[str, Value]:
        """Return the settings that a site needs to train with this guarantee."""
        if self.mechanism == DP_SGD:
            return {"clip": self.clip, "noise": self.noise, "rate": self.sampling_rate, "fewest": self.min_rows}
        return {"longest": self.clip} if self.mechanism == CLIENT else {}

    @property
    def report(self) -> tuple[str, ...]:
        """Return the reports that a site may add: the code of a refusal."""
        return (ERROR,) if self.mechanism == DP_SGD else ()


def round_events(server: Server) -> tuple[Event, ...]:
    """Return the privacy events of one round of local training and averaging under the run's mechanism."""
    p = server.private
    if p is None or p.mechanism not in (DP_SGD, CLIENT):
        return ()
    if p.mechanism == DP_SGD:
        return (Event("sampled_gaussian", "models of the sites", count=p.steps, sigma=p.noise, rate=p.sampling_rate),)
    if not p.secure:
        event = Event("gaussian", "mean update", sigma=p.noise, unit="site", trust="trusted server")
        return (event,)
    return (_skellam_event(server, p),)


def aggregate_dp(server: Server, ask: Ask, method: Method) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
    """Train as asked and sum the clipped updates with noise, added by the server or in shares under a secure sum."""
    from grandrounds.methods.aggregate import Aggregation

    p = server.private
    assert p is not None
    weights = _public_weights(server, ask.to or (), method)
    max_weight = max(weights.values())
    deviation = p.noise * p.clip * max_weight
    if server.secure is None:
        answers: Answers = yield ask
        site_weights = np.array([weights[s] for s in answers.sites])
        updates = clip_norm(np.asarray(answers["model"], float) - server.model, p.clip)
        total = site_weights @ updates + deviation * _draw_noise(server, p)
        noise_text = "the server added noise to the sum"
    else:
        answers, total = yield from _sum_securely(server, ask, weights, deviation)
        site_weights = np.array([weights[s] for s in answers.sites])
        noise_text = "each site added its share of the noise before the sum"
    why = (
        f"updates have weights that do not depend on patients, and are clipped to {p.clip:g}; {noise_text} "
        f"(standard deviation {deviation:.3g}, sensitivity to one site {max_weight * p.clip:.3g})"
    )
    weight_by_site = dict(zip(answers.sites, site_weights.tolist(), strict=True))
    assignment = ModelAssignment(server.model + total)
    return Aggregation(assignment, answers.sites, site_weights, {}, (Stage("weigh", why, weight_by_site),)), answers


def _public_weights(server: Server, sites: Sequence[str], method: Method) -> dict[str, float]:
    """Weigh the asked sites: 1 over the planned number of sites, or by row counts where those are public."""
    rows = np.array([server.rows.get(s, 0) for s in sites], float)
    if method.settings.weigh.rule == "data_size" and rows.any():
        return dict(zip(sites, data_size(rows).tolist(), strict=True))
    return dict.fromkeys(sites, 1 / expected_sites(server, method))


def expected_sites(server: Server, method: Method) -> int:
    """Return the planned number of sites of a round, the denominator of client-level sums."""
    p = server.private
    planned = (p.sites if p is not None else 0) or len(server.sites)
    select = method.settings.select
    return count_sites(select.fraction, planned) if select.rule != "all" else planned


def _draw_noise(server: Server, p: PrivacyTerms) -> Array:
    """Draw standard normal noise (P,) at a trusted server."""
    from grandrounds.privacy.mechanisms import noise_generator

    if p.secret is None:
        raise RunFailed("a trusted server needs its own secret to draw noise", code="missing-secret")
    return noise_generator(p.secret, f"client round {server.round}").standard_normal(len(server.model))


def _sum_securely(
    server: Server, ask: Ask, weights: dict[str, float], deviation: float
) -> Generator[Ask, Answers, tuple[Answers, Array]]:
    from grandrounds.methods.secure import secure_sum

    p, rule = server.private, server.secure
    assert p is not None and rule is not None
    answers = yield replace(ask, report=("update", "count", "steps"), withheld=("update",))
    site_weights = {s: weights[s] for s in answers.sites}
    summed = yield from secure_sum(rule, answers, weights={"update": site_weights}, bound=p.clip, noise=deviation)
    remaining = answers.only([k for k, s in enumerate(answers.sites) if s in summed.sites], summed.missing)
    return remaining, summed.values["update"]


def _skellam_event(server: Server, p: PrivacyTerms) -> Event:
    """Return the event of the mean update under a secure sum: discrete noise, values rounded to the ring."""
    from grandrounds.methods.secure import MODEL_BITS
    from grandrounds.privacy.accounting import skellam_rho
    from grandrounds.privacy.secagg import Scale, Skellam, fewest_honest

    sites = len(server.sites)
    weight = 1 / (p.sites or sites)
    deviation = p.noise * p.clip * weight
    spare = Skellam(deviation, fewest_honest(sites)).room(sites)
    step = Scale(MODEL_BITS, p.clip, sites, weighted=True, spare=spare).step
    rho = skellam_rho(deviation, sensitivity=p.clip * weight, step=step, dimension=len(server.model))
    return Event("skellam", "mean update", sigma=p.noise, rho=rho, unit="site", trust="secure aggregation")
