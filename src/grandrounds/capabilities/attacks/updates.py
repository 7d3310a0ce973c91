"""Reconstruction of rows from model updates: sites of few rows train as in the run, and their updates are inverted.

Sites are made of the run's own training rows: each trains once from the run's starting model with the run's own settings and
code, and the change of its first layer is inverted. Under secure aggregation the server sees the mean update of as many sites
as the run has; under DP-SGD the rows are sampled and clipped and the noise of the run is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.models.dense import Dense
from grandrounds.privacy.attacks.attribute import proportion_interval
from grandrounds.privacy.attacks.reconstruction import REBUILT, invert_dense_gradient, relative_errors
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

SIZES = (1, 2, 4, 8, 32)
"""Training rows of a site whose update is inverted; the run's own smallest site is added."""

_SITES = 40
"""Sites that are drawn for each size."""

_MOST_ROWS = 4000
"""Rows that train for one size, at most."""


@dataclass(frozen=True)
class UpdateAttack:
    """Rows rebuilt from updates of sites with so many rows.

    Attributes:
        rows: Training rows of the site.
        error: Median squared error of a rebuilt row relative to guessing the mean row: 0 is exact, 1 no better than guessing.
        rebuilt: Share of rows rebuilt to within a hundredth of that.
        low: Lower end of its 95% interval.
        high: Upper end.
        tested: Rows that were tried.
        own: The run's smallest site has so many rows.
    """

    rows: int
    error: float
    rebuilt: float
    low: float
    high: float
    tested: int
    own: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class UpdateProtection:
    """Protection of updates in a run: the number of updates in a sum, and the noise of DP.

    Attributes:
        sites: Sites whose mean update the server sees; 1 without secure aggregation.
        clip: Largest norm: of a row's gradient in DP-SGD, of an update at client level; 0 without DP.
        noise: Standard deviation of the noise in units of `clip`.
        rate: Probability that a row joins a step of DP-SGD.
        client: The noise is on the sum of updates, not on gradients.
    """

    sites: int = 1
    clip: float = 0.0
    noise: float = 0.0
    rate: float = 0.0
    client: bool = False

    @classmethod
    def read(cls, plan: Plan, privacy: Mapping[str, Any], sites: int) -> UpdateProtection:
        """Read the protection of a run from its plan and its privacy statement.

        Args:
            plan: The plan.
            privacy: `summary["privacy"]`.
            sites: Sites that train.
        """
        summed = sites if plan.privacy.secure else 1
        clip, noise = float(privacy.get("clip") or 0.0), float(privacy.get("noise") or 0.0)
        if privacy.get("mechanism") == "dp-sgd" and clip:
            return cls(summed, clip, noise, float(privacy.get("rate") or 1.0))
        if privacy.get("mechanism") == "client" and plan.privacy.secure:  # else the server sees updates before it adds noise
            return cls(summed, clip, noise, client=True)
        return cls(summed)

    def describe(self) -> str:
        """Say in a clause what the server sees."""
        seen = f"the mean update of {self.sites} sites" if self.sites > 1 else "each site's update as it is"
        if self.client:
            return f"{seen}, clipped and with the run's noise"
        return f"{seen}, trained by DP-SGD with the run's noise" if self.clip else seen


def attack_updates(
    run: Run, plan: Plan, x: Array, target: Array, *, smallest: int, protection: UpdateProtection, sizes: tuple[int, ...] = SIZES
) -> list[UpdateAttack]:
    """Invert updates of sites with few rows.

    Args:
        run: The run, of a linear model or a dense net.
        plan: Its plan.
        x: Encoded training rows, (n, d).
        target: Their targets, (n, C).
        smallest: Rows of the run's smallest site.
        protection: The protection of updates.
        sizes: Rows of a site.

    Returns:
        One attack for each size.
    """
    net = run.model.net
    assert isinstance(net, Dense)
    start = replace(net, weights=plan.model.weights).init(int(plan.seed), run.model.theta.dtype)
    method = build_method(plan.method, plan.train)
    config = TrainConfig.from_values(method.train_config(Server(1, start, ("site",), int(plan.seed))))
    config = replace(config, keep_optimizer=False, augment="none")
    if protection.clip and not protection.client:
        config = replace(config, clip=protection.clip, noise=protection.noise, rate=protection.rate, fewest=1)
    guess = x.mean(axis=0)
    out = []
    for rows in dict.fromkeys([*(s for s in sizes if s < min(smallest, len(x))), min(smallest, len(x))]):
        found = _attack_size(net, start, x, target, config, rows, guess, protection)
        out.append(replace(found, own=rows == smallest))
    return out


def _attack_size(
    net: Dense, start: Array, x: Array, target: Array, config: TrainConfig, rows: int, guess: Array, protection: UpdateProtection
) -> UpdateAttack:
    sums = max(4, min(_SITES, _MOST_ROWS // (rows * protection.sites)))
    rng = generator(config.seed, purpose="update inversion", round=rows)
    sites = sums * protection.sites
    chosen = np.concatenate([rng.choice(len(x), rows, replace=False) for _ in range(sites)])
    updates = train_sites(net, start, x[chosen], target[chosen], rows, config)
    mean = updates.reshape(sums, protection.sites, -1)
    if protection.client:
        length = np.linalg.norm(mean, axis=2, keepdims=True)
        mean = mean * np.minimum(1.0, protection.clip / np.maximum(length, 1e-300))
    mean = mean.mean(axis=1)
    if protection.client:
        mean = mean + rng.normal(0, protection.noise * protection.clip / protection.sites, mean.shape)
    errors, site = [], []
    for k in range(sums):
        weight, bias = net.layers(mean[k])[0]
        truth = x[chosen[k * protection.sites * rows : (k * protection.sites + 1) * rows]]
        errors.append(relative_errors(invert_dense_gradient(weight, bias), truth, guess))
        site.append(np.full(len(truth), k))
    error = np.concatenate(errors)
    share, low, high = proportion_interval(error <= REBUILT, np.concatenate(site))
    return UpdateAttack(rows, float(np.median(error)), share, low, high, len(error))


def train_sites(net: Dense, start: Array, x: Array, target: Array, rows: int, config: TrainConfig) -> Array:
    """Train sites of equally many rows from one model by the code of the sites.

    Args:
        net: The model.
        start: Its starting parameters, (P,).
        x: Rows of all sites, site after site, (sites * rows, d).
        target: Their targets.
        rows: Rows of each site.
        config: Settings of the round; with a rate above 0 the sites train by DP-SGD.

    Returns:
        (sites, P) trained parameters minus the starting ones.
    """
    from grandrounds.site.batches import BatchPlan
    from grandrounds.site.numpy_train import train

    sites = len(x) // rows
    none = np.zeros(len(x), np.int64)
    part = Part(np.asarray(x, start.dtype), none, np.asarray(target, start.dtype), none, np.arange(sites + 1) * rows)
    names, members = tuple(f"site {k}" for k in range(sites)), np.arange(sites)
    job = TrainJob(net, part, members, start, config, names)
    if not config.rate:
        trained = train(job, BatchPlan.draw(part, members, names=names, config=config)).theta
        return np.asarray(trained, float) - start
    from grandrounds.privacy.secagg import Secret
    from grandrounds.site.dp_sgd import SampledSteps
    from grandrounds.site.dp_sgd import train as train_privately

    secrets = [Secret.simulated(config.seed, name) for name in names]
    steps = SampledSteps.draw(part, members, secrets, config=config, purpose="attack", size=len(start))
    return np.asarray(train_privately(job, steps).theta, float) - start
