"""Settings of VEIL: [method.veil]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grandrounds.core.section import Section


class VeilOptions(Section):
    """Method 'veil': sites propose features or sums of clipped scores, never a model."""

    selection: Literal["auto", "score", "select_then_fit", "moments", "paper", "strongly_convex", "non_expansive"] = (
        Field(
            "auto",
            description="`rounds list proposals`; auto: select_then_fit with privacy.secure, else score; 'paper' is not private",
        )
    )
    k: int = Field(4, ge=1, description="proposals per site and round")
    votes: Literal["net", "quorum"] = Field(
        "net", description="aggregation of proposals: net votes, or the paper's quorum and mean sign"
    )
    weight: Literal["root", "uniform"] = Field(
        "root", description="weight of a site's votes: the square root of its noisy row count, or uniform"
    )
    prior: float | None = Field(
        None, gt=0, lt=1, description="public prevalence of the event; not set: estimated with noise"
    )
    claimed_epsilon: float | None = Field(
        None, gt=0, description="the epsilon that the paper claims for 'paper', over all rounds; it is not a privacy guarantee"
    )
    census_share: float = Field(0.05, gt=0, lt=1, description="share of the budget for row and event counts, if requested")
    quorum: float = Field(
        0.1, ge=0, le=1, description="share of the sites that must propose a feature (tau), for 'quorum'"
    )
    step: float = Field(2.0, gt=0, description="server learning rate (eta_g)")
    decay: bool = Field(True, description="steps shrink as 2 / (t + 2)")
    value: float | None = Field(
        None,
        gt=0,
        description="clipping bound of standardised values; not set: 1, or 1.5 for 'moments'",
    )
    features: int = Field(
        20,
        ge=0,
        description="features of the final model ('score': the strongest after half of the rounds); 0, or with 'paper': all",
    )
    stages: int | None = Field(
        None,
        ge=1,
        description="stages of 'select_then_fit', each with a selection and a fit; not set: 5, or a third of the rounds if fewer",
    )
    norm: float | None = Field(
        None, gt=0, description="norm bound of one patient's vector in a sum (R); not set: 3, or 6 for 'moments'"
    )
    lr: float = Field(4.0, gt=0, description="learning rate of the steps of 'select_then_fit'")
    selecting: float = Field(0.25, gt=0, lt=1, description="share of the budget for feature selection, if steps follow")
    outcome: float = Field(2.0, gt=0, description="scale of the outcome in 'moments', in units of norm")
    l2: float = Field(1.0, gt=0, description="of 'strongly_convex'")
    percentiles: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the budget for noisy percentiles on patient pages, for the columns with the largest weights; "
        "0: none",
    )
