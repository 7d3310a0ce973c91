"""The server's half of the guard and of personal parts: estimate the spread of intercepts, let sites choose, count harmed sites.

The server sees sums over sites, the name of each site's choice and whether a site was harmed; under a privacy budget neither.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.capability import load
from grandrounds.core.outcome import SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.methods import is_variant_of, method_class
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.guard.candidates import (
    CHOICES,
    COMMON,
    HEAD,
    LINES,
    loss_of,
    refuse_unknown_part,
    trained_parts,
    trains_in_rounds,
)
from grandrounds.methods.guard.choice import LEVEL
from grandrounds.models import Model
from grandrounds.models.losses import SQUARED
from grandrounds.models.protocol import COLUMN_KERNELS
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import ERROR, PERSONAL, PERSONAL_HARM, PERSONAL_SPREAD

if TYPE_CHECKING:
    from grandrounds.site.plugin import SitePlugin

VARIANCES = np.array([0.0, *np.exp(np.linspace(np.log(1e-3), np.log(10.0), 25))])
"""Variances of site intercepts that are tried; for the squared loss in units of the residual variance."""

PRIVATE_SPREAD = 0.5
"""Standard deviation of site intercepts under a privacy budget, where it is not estimated."""

_MEMORISE = frozenset({"trees", "ebm", "boosted", "torch"})


@dataclass(frozen=True)
class PersonalResult:
    """Facts that the server knows about personal models.

    Attributes:
        part: The personal part.
        guard: The guard chose.
        rows: Rows of the guard's comparison.
        spread: Standard deviation of site intercepts; 0: sites do not differ.
        choices: Name of each site's choice; empty if choices stay at the sites.
        harmed: Harmed sites; None where this was not asked or stays at the sites.
        tested: Sites that were tested for harm: those with training and test rows.
        missing: Sites that did not fit a personal model, with the reason; they use the common model.
    """

    part: str
    guard: bool
    rows: str
    spread: float
    choices: Mapping[str, str] = field(default_factory=dict)
    harmed: tuple[str, ...] | None = None
    tested: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def with_part(self) -> tuple[str, ...]:
        """Sites that deploy another model than the common one."""
        return tuple(site for site, choice in self.choices.items() if choice != COMMON)


def settings_in_rounds(plan: Plan) -> dict[str, object]:
    """Return the settings of a personal part that sites train in the rounds, for the model's specification; empty for others."""
    p = plan.personal
    if not trains_in_rounds(p.part):
        return {}
    return {"part": p.part, "epochs": p.epochs, "strength": p.strength, "mixture": p.mixture}


def part_epochs(plan: Plan) -> int:
    """Return the epochs of a personal part that is fitted after the rounds; a head starts untrained and has those of all."""
    return int(plan.personal.epochs * (plan.method.rounds if plan.personal.part == HEAD else 1))


def is_personal(plan: Plan) -> bool:
    """Return True if a plan has personal parts or a guard with something to guard."""
    return plan.personal.part != "none" or bool(plan.personal.guard and not unguarded(plan))


def site_plugins(plan: Plan) -> tuple[type[SitePlugin], ...]:
    """List the site halves of a plan's personal parts: what is trained in rounds, and what is chosen after them.

    A part that is not installed here is refused.
    """
    if not is_personal(plan):
        return ()
    from grandrounds.methods.guard.site import PersonalSite

    refuse_unknown_part(plan.personal.part)
    return (load(trained_parts()[plan.personal.part].site), PersonalSite) if settings_in_rounds(plan) else (PersonalSite,)


def fits_intercepts(plan: Plan) -> bool:
    """Return True if sites fit an intercept: as their part, or for the guard, which has none for a head of a site's own."""
    p = plan.personal
    return p.part in LINES or bool(p.guard and p.part != HEAD)


def unguarded(plan: Plan) -> str:
    """Return the reason why the guard has nothing to choose from in a plan; "" where it has."""
    name, model = plan.method.name, plan.model.name
    if not method_class(name).has_model:
        return f"method '{name}' fits no model"
    if is_variant_of(name, "local") or is_variant_of(name, "pooled"):
        return f"method '{name}' has no common model of sites"
    if plan.data.duration is not None or plan.data.task == SURVIVAL:
        return "a Cox model has no loss of single rows to compare"
    return f"model '{model}' is not one vector of numbers" if model in ("forest", "lightgbm", "ebm") else ""


def guard_rows(plan: Plan, model: Model) -> str:
    """Return the rows on which the guard compares: training rows, unless the model can memorise them."""
    if plan.personal.rows != "auto":
        return plan.personal.rows
    deep = model.kernel == "numpy" and len(getattr(model, "widths", ())) > 2
    return "validation" if deep or model.kernel in _MEMORISE else "train"


def estimate_spread(
    served: ModelAssignment, sites: tuple[str, ...], *, loss: str, rows: str, class_weight: Value | None = None
) -> Generator[Ask, Answers, float]:
    """Estimate the standard deviation of site intercepts from sums over sites (empirical Bayes).

    Args:
        served: The common model, or the model of each site.
        sites: Sites that train.
        loss: The loss of training. For the squared loss the spread is in units of the residual standard deviation.
        rows: "train" or "validation".
        class_weight: Weight of each class.

    Returns:
        The spread; 0 where no variance makes the rows likelier, and `PRIVATE_SPREAD` where no site answered.
    """
    shared: dict[str, Value] = {"model": served.model, "variances": VARIANCES, "rows": rows}
    if class_weight is not None:
        shared["class_weight"] = class_weight
    answers = yield Ask(
        PERSONAL_SPREAD, shared=shared, each=served.payloads(), to=sites, report=("sums",), summed=("sums",)
    )
    if "sums" not in answers.totals:
        return PRIVATE_SPREAD
    return choose_spread(loss, np.asarray(answers.totals["sums"], float))


def choose_spread(loss: str, sums: Array) -> float:
    """Choose the standard deviation of site intercepts with the largest likelihood.

    Args:
        loss: The loss of training.
        sums: Sums over sites for each of `VARIANCES`: the losses, the widths (`parts.spread_sums`), and the number of rows.

    Returns:
        The standard deviation.
    """
    count = len(VARIANCES)
    losses, widths, n = sums[:count], sums[count : 2 * count], float(sums[2 * count])
    if n <= 0:
        return PRIVATE_SPREAD
    if loss == SQUARED:  # the residual variance is estimated with each ratio of variances
        losses = 0.5 * n * np.log(np.maximum(losses, 1e-300))
    return float(np.sqrt(VARIANCES[int(np.argmin(losses + widths))]))


def personalize(
    plan: Plan,
    model: Model,
    served: ModelAssignment,
    sites: tuple[str, ...],
    config: Mapping[str, Value],
    *,
    private: bool,
    testing: tuple[str, ...] = (),
) -> Generator[Ask, Answers, PersonalResult]:
    """Have sites fit and choose their personal models after the last round.

    Args:
        plan: The plan.
        model: The model.
        served: The common model, or the model of each site.
        sites: Sites that train.
        config: Settings of local training, as an Ask carries them.
        private: A privacy budget is set: nothing that depends on rows is asked for.
        testing: Sites with test rows.

    Returns:
        The facts that the server knows about them.
    """
    p = plan.personal
    rows, spread, weights = guard_rows(plan, model), p.spread, config.get("class_weight")
    if spread is None and not fits_intercepts(plan):
        spread = 0.0
    if spread is None:
        estimated = estimate_spread(served, sites, loss=loss_of(model), rows=rows, class_weight=weights)
        spread = PRIVATE_SPREAD if private else (yield from estimated)
    shared: dict[str, Value] = {
        **config,
        "model": served.model,
        "part": p.part,
        "guard": int(p.guard),
        "rows": rows,
        "variance": spread**2,
        "epochs_own_part": part_epochs(plan),
        "epochs_own_model": 1 if model.kernel in COLUMN_KERNELS else plan.train.epochs * plan.method.rounds,
        "strength": p.strength,
        "mixture": p.mixture,
    }
    report = ("fitted",) if private else ("fitted", "choice", ERROR)
    answers = yield Ask(PERSONAL, shared=shared, each=served.payloads(), to=sites, report=report)
    known = PersonalResult(p.part, p.guard, rows, spread, missing=dict(answers.missing))
    if private or not len(answers):  # sites that refused keep the common model
        return known
    choices = {site: CHOICES[int(c)] for site, c in zip(answers.sites, answers["choice"], strict=True)}
    if not p.guard:
        return replace(known, choices=choices)
    harmed, tested = yield from find_harmed(tuple(s for s in answers.sites if s in testing), seed=plan.seed)
    return replace(known, choices=choices, harmed=harmed if tested else None, tested=tested)


def find_harmed(
    sites: tuple[str, ...], *, seed: int
) -> Generator[Ask, Answers, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Find the harmed sites by Holm's rule; sites answer yes or no at each level, never with a p-value.

    Args:
        sites: Sites that are tested.
        seed: The run's seed.

    Returns:
        Sites where the deployed model is clearly worse than the better of own model and majority class; and the sites that
        were tested: not those that refused, or whose test rows cannot show harm.
    """
    harmed: set[str] = set()
    while len(harmed) < len(sites):
        shared: dict[str, Value] = {"level": LEVEL / (len(sites) - len(harmed)), "seed": seed}
        answers = yield Ask(PERSONAL_HARM, shared=shared, to=sites, report=("harmed",))
        reported = answers.by_site("harmed") if len(answers) else {}
        tested = tuple(site for site in sites if site in harmed or not np.isnan(reported.get(site, np.nan)))
        found = {site for site, yes in reported.items() if yes == 1}
        if found <= harmed and tested == sites:
            break
        harmed, sites = harmed | found, tested
    return tuple(site for site in sites if site in harmed), sites
