"""Harm on reference rows: when a site with outlying explanations may lose more than its least share, and when not.

Harm is the rise of the log loss on labelled reference rows if the site takes part, in standard errors above MATERIAL_HARM. It is
confirmed if it shows with either half of the site's own patients alone, for which the site trains on halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import WeighSettings
from grandrounds.methods.site_state import PerSiteState
from grandrounds.methods.sse_agg.agreement import is_explained_round
from grandrounds.methods.sse_agg.outliers import outlier_weight, read_column
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.protocol.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

STANDING, HARMS = "standing", "harm"
"""State of a site from round to round: its outlier ratio, and its harm."""

HARM_BY_HALF = ("harm_first_half", "harm_second_half")
"""The harm of a site's model when it last trained on either half of its own patients."""

DEFAULT_LEAST_SHARE = 0.5
"""Default share of its rows' weight that a site keeps unless it harms the model."""

MATERIAL_HARM = 0.05
"""Relative increase of the log loss on reference rows above which a site does harm."""

HARM = 2.0
"""Standard errors above MATERIAL_HARM, over the rounds, from which an outlier may lose more than its least share."""

HARM_ALONE = 5.0
"""Standard errors from which harm alone lowers the weight, also without outlying explanations, by a power of the excess."""

HARM_MEMORY = 0.8
"""Share of earlier rounds in harm, which starts at 0: in the first rounds barely trained models harm one another."""

MIN_ROWS_TO_HALVE = 20
"""Fewest training rows of a site whose harm is confirmed on halves of its patients; a smaller site is evaluated on all of
them."""

_HALF = {1: "first", 2: "second"}


@dataclass(frozen=True)
class Harm:
    """Harm of the sites that answered: over the rounds (K,), by half of their patients (2, K), and if it is confirmed (K,)."""

    remembered: Array
    by_half: Array
    confirmed: Array


def measure_harm(settings: WeighSettings, answers: Answers, state: PerSiteState, halves: Mapping[str, int]) -> Harm:
    """Mix this round's harm with that of earlier rounds; `halves`: sites that trained on one half of their patients."""
    now = read_column(answers, "sketch.harm", np.nan)
    half_of_site = np.array([halves.get(s, 0) for s in answers.sites])
    by_half = np.stack(
        [
            np.where((half_of_site == k) & np.isfinite(now), now, state.get(name))
            for k, name in enumerate(HARM_BY_HALF, start=1)
        ]
    )
    confirmed = confirm_harm(settings, by_half, np.asarray(answers["count"], float))
    return Harm(remember_harm(now, state.get(HARMS)), by_half, confirmed)


def retained_share(
    standing: Array, harm: Array, *, least: float, sharpness: float, confirmed: Array | None = None
) -> Array:
    """Compute the share of its rows' weight that each site keeps, (K,), by its outlier ratio and its harm.

    A site keeps at least `least` unless the model is worse with it on reference rows (`harm` above HARM). Harm above HARM_ALONE
    lowers the weight by itself. NaN: there are no labelled reference rows to measure harm, so `least` applies. Harm that is not
    `confirmed` (K,) is capped at HARM, which has no effect.
    """
    finite_harm = np.nan_to_num(harm, nan=0.0)
    if confirmed is not None:
        finite_harm = np.where(confirmed, finite_harm, np.minimum(finite_harm, HARM))
    trust = outlier_weight(standing, sharpness=sharpness)
    trust = np.where(finite_harm > HARM, trust, np.maximum(trust, least))
    out: Array = np.minimum(trust, outlier_weight(finite_harm / HARM_ALONE, sharpness=sharpness))
    return out


def find_suspects(standing: Array, harm: Array, *, least: float) -> Array:
    """Find the sites, (K,) of bool, that would be demoted for harm, which must be confirmed."""
    finite_harm = np.nan_to_num(harm, nan=0.0)
    out: Array = (finite_harm > HARM_ALONE) | (
        (least > 0) & (np.nan_to_num(standing, nan=0.0) > 1) & (finite_harm > HARM)
    )
    return out


def confirm_on_halves(first: Array, second: Array, rows: Array) -> Array:
    """Find the sites, (K,) of bool, whose harm is confirmed: the loss rises by more than MATERIAL_HARM with either half alone.

    An accident of its patients affects one half and not the other; `harm` over the rounds rules out chance in the reference
    rows. Sites with fewer than MIN_ROWS_TO_HALVE rows are not halved. NaN: not tried yet.
    """
    out: Array = ((first > 0) & (second > 0)) | (rows < MIN_ROWS_TO_HALVE)
    return out


def remember_harm(now: Array, before: Array) -> Array:
    """Mix this round's harm with that of the rounds before, in the share HARM_MEMORY; a round without it (NaN) changes
    nothing."""
    mixed = HARM_MEMORY * np.nan_to_num(before) + (1 - HARM_MEMORY) * np.maximum(now, -HARM)  # negative harm does not accumulate
    out: Array = np.where(np.isnan(now), before, mixed)
    return out


def resolve_least_share(settings: WeighSettings) -> float:
    """Return the share of its rows' weight that a site keeps unless it harms the model: as given, or the default."""
    return DEFAULT_LEAST_SHARE if settings.least_share is None else float(settings.least_share)


def confirms_on_halves(settings: WeighSettings) -> bool:
    """Check whether harm must be confirmed on both halves of a site's own patients."""
    return bool(settings.rule == EXPLANATIONS and settings.form == "outlier" and settings.own_halves)


def choose_halves(settings: WeighSettings, server: Server) -> dict[str, int]:
    """Choose the sites that train on one half of their own patients in this round, and which half, 1 or 2.

    These sites would be demoted for harm found in earlier rounds. The halves alternate.
    """
    if (
        not confirms_on_halves(settings)
        or not is_explained_round(settings, server.round)
        or server.private
        or server.secure
    ):
        return {}
    nothing = np.full(len(server.sites), np.nan)
    standing, harm = (server.state.get(name, nothing) for name in (STANDING, HARMS))
    suspects = find_suspects(standing, harm, least=resolve_least_share(settings))
    half = 1 + server.round // settings.every % 2
    return {
        s: half
        for s, is_suspect in zip(server.sites, suspects, strict=True)
        if is_suspect and server.rows.get(s, 0) >= MIN_ROWS_TO_HALVE
    }


def confirm_harm(settings: WeighSettings, halves: Array, rows: Array) -> Array:
    """Find the sites, (K,) of bool, whose harm is confirmed by both halves (2, K); all of them if halves are not used."""
    return confirm_on_halves(halves[0], halves[1], rows) if confirms_on_halves(settings) else np.ones(len(rows), bool)


def describe_demotions(sites: Sequence[str], standing: Array, harm: Array, least: float, confirmed: Array) -> list[str]:
    """Explain for each outlier, and each site that harms the model, why it was demoted or not."""
    out = []
    for site, far, z, is_confirmed in zip(sites, standing.tolist(), harm.tolist(), confirmed.tolist(), strict=True):
        worse = f"with it the model is worse on the reference rows, by {z:.1f} standard errors more than {MATERIAL_HARM:.0%}"
        if z > HARM_ALONE and is_confirmed:
            out.append(f"{site}: {worse}: demoted")
            continue
        if not is_confirmed and z > (HARM if far > 1 and least else HARM_ALONE):
            spared = f"at least {least:.0%} of its weight" if far > 1 else "its weight"
            out.append(f"{site}: {worse}, but not with either half of its own patients: it keeps {spared}")
            continue
        if not far > 1:
            continue
        sentence = f"{site}: its explanations are outliers beyond sampling error, at {far:.2f} times the tolerated distance"
        if not least:
            out.append(f"{sentence}; method.weigh.least_share is 0, so it may lose all of its weight")
        elif z > HARM:
            out.append(f"{sentence}, and {worse}: demoted")
        else:
            why = (
                "no labelled reference rows to measure harm" if np.isnan(z) else f"no harm on the reference rows ({z:.1f})"
            )
            out.append(f"{sentence}; {why}: it keeps at least {least:.0%} of its weight")
    return out


def describe_halves(sites: Sequence[str], halves: Mapping[str, int]) -> list[str]:
    """Name the sites that trained on one half of their own patients."""
    return [
        f"{s}: in this round it trained on the {_HALF[halves[s]]} half of its own patients" for s in sites if s in halves
    ]
