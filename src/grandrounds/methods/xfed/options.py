"""Settings of XFed: [method.xfed]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grandrounds.core.section import Section


class XFedOptions(Section):
    """Method 'xfed': sites that send a model are selected by accuracy and explanations on scoring images."""

    keep: float = Field(0.9, gt=0, le=1, description="share of the sites that send their model; at least one is excluded")
    xai_share: float = Field(0.2, ge=0, le=1, description="share of explanations in the score; 0: accuracy alone (XFed-a)")
    score: Literal["masks", "grid"] = Field(
        "masks", description="score of explanations: XAI accuracy by truth masks; or grid accuracy, scenes of four images whose "
        "warmest cell must be the labelled one (no better than shuffled weights in our studies)"
    )
    measure: Literal["accuracy", "cross-entropy"] = Field("accuracy", description="the other part of the score")
    form: Literal["mass", "pixels", "nonzero"] = Field(
        "mass", description="comparison of heat inside and outside of a mask; 'nonzero': as printed"
    )
    top: float = Field(0.25, gt=0, lt=1, description="share of pixels that are hot, for form 'pixels'")
    grid: int = Field(
        2, ge=0, le=5, description="cells on a side of a scene of grid accuracy, which is reported with masks too; 0: no scenes"
    )
    until: int = Field(0, ge=0, description="last round with selection; 0: all rounds")
    weights: Literal["rows", "rank"] = Field("rows", description="weights of the selected sites")
    score_at: Literal["site", "server"] = Field(
        "site", description="server: it also scores the received models, and reports sites with inflated scores"
    )
    tolerance: float = Field(0.05, ge=0, description="tolerated difference of scores")
    steps: int = Field(5, ge=1, description="points on a path of integrated gradients")
    samples: int = Field(5, ge=1, description="noisy copies of an image (SmoothGrad)")
    sigma: float = Field(0.5, ge=0, description="noise of these copies, in standard deviations of a pixel")
