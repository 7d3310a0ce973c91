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
    k: int = Field(4, ge=1, description="proposals of a site in a round")
    votes: Literal["net", "quorum"] = Field(
        "net", description="how proposals become a step: net votes, or the paper's quorum and mean sign"
    )
    weight: Literal["root", "uniform"] = Field(
        "root", description="how a site's votes count: by the root of its rows, which it says with noise, or alike"
    )
    prior: float | None = Field(
        None, gt=0, lt=1, description="share of patients with the event, as published; not set: asked, with noise"
    )
    claimed_epsilon: float | None = Field(
        None, gt=0, description="the epsilon that 'paper' is printed with, over all rounds; no budget: it keeps none"
    )
    census_share: float = Field(0.05, gt=0, lt=1, description="share of the budget for rows and events, where they are asked")
    quorum: float = Field(
        0.1, ge=0, le=1, description="share of the sites that must propose a feature (tau), for 'quorum'"
    )
    step: float = Field(2.0, gt=0, description="length of the server's step (eta_g)")
    decay: bool = Field(True, description="steps shrink as 2 / (t + 2)")
    value: float | None = Field(
        None,
        gt=0,
        description="standardised values are clipped to this on either side; not set: 1, and 1.5 for 'moments'",
    )
    features: int = Field(
        20,
        ge=0,
        description="features the model ends with ('score': the strongest after half of the rounds); 0, and for 'paper': all",
    )
    stages: int | None = Field(
        None,
        ge=1,
        description="times that 'select_then_fit' selects some and fits; not set: 5, or a third of the rounds if that is fewer",
    )
    norm: float | None = Field(
        None, gt=0, description="longest vector of one patient in a sum (R); not set: 3, and 6 for 'moments'"
    )
    lr: float = Field(4.0, gt=0, description="learning rate of the steps of 'select_then_fit'")
    selecting: float = Field(0.25, gt=0, lt=1, description="share of the budget for selecting, where steps follow")
    outcome: float = Field(2.0, gt=0, description="how much the outcome's part of 'moments' counts, in units of norm")
    l2: float = Field(1.0, gt=0, description="of 'strongly_convex'")
    percentiles: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the budget for noised percentiles on patients' pages, of the columns that weigh most; 0: none",
    )
