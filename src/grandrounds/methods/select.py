"""Client selection: the sites that take part in a round. Rules by loss first ask sites for their loss."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.plan_types import SelectSettings
from grandrounds.protocol.messages import Answers, Ask

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

RULES = {
    "all": "every site, every round",
    "random": "a random fraction of the sites in each round",
    "loss": "the fraction of sites with the highest training loss of the global model (Oort')",
    "power-of-choice": "candidates drawn by training rows, then those with the highest loss (Cho et al. 2022)",
}
ASKS_FIRST = ("loss", "power-of-choice")
"""Rules that need an exchange before training."""


@dataclass(frozen=True)
class Selection:
    """The selected sites, in their own order, and the signals they were selected by."""

    sites: tuple[str, ...]
    signals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    why: str = ""


def count_sites(fraction: float, sites: int) -> int:
    """Convert a fraction of sites into a number: rounded up, at least 1."""
    return max(1, math.ceil(fraction * sites))


def choose(server: Server, settings: SelectSettings) -> Generator[Ask, Answers, Selection]:
    """Choose the sites that train in this round, by the rule of [method.select].

    Args:
        server: The state of the round.
        settings: The section [method.select].

    Returns:
        The sites, with the signals and the reason of the selection.
    """
    sites, rule = server.available_sites, settings.rule
    if rule == "all":
        return Selection(sites)
    keep = count_sites(settings.fraction, len(sites))
    if rule == "random":
        drawn = np.sort(server.rng("select").choice(len(sites), keep, replace=False))
        return Selection(tuple(sites[k] for k in drawn), why=f"{keep} of {len(sites)} sites were drawn at random")
    candidates = sites
    if rule == "power-of-choice":
        candidates = _draw_candidates(server, count_sites(max(settings.candidates, settings.fraction), len(sites)))
    answers: Answers = yield Ask("score", shared={"model": server.model}, to=candidates, report=("loss",))
    loss = answers.by_site("loss")
    worst = set(sorted(loss, key=lambda s: (-loss[s], s))[:keep])
    return Selection(
        tuple(s for s in sites if s in worst),
        {"loss": loss},
        f"of {len(loss)} sites that reported their loss, the {len(worst)} with the highest take part",
    )


def _draw_candidates(server: Server, count: int) -> tuple[str, ...]:
    """Draw sites without replacement, with probabilities proportional to their training rows."""
    rows = np.array([server.rows[s] for s in server.available_sites], float)
    drawn = server.rng("candidates").choice(len(rows), count, replace=False, p=rows / rows.sum())
    return tuple(server.available_sites[k] for k in np.sort(drawn))
