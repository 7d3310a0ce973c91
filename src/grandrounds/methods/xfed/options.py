"""Settings of XFed: [method.xfed]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grandrounds.core.section import Section


class XFedOptions(Section):
    """Method 'xfed': sites that send a model are selected by accuracy and explanations on scoring images."""

    keep: float = Field(0.9, gt=0, le=1, description="share of the sites that send their model; at least one does not")
    xai_share: float = Field(0.2, ge=0, le=1, description="share of reasons in the score; 0: accuracy alone (XFed-a)")
    score: Literal["grid", "masks"] = Field(
        "grid", description="reasons by scenes of four pictures (the warmest cell is the right one), or by truth masks"
    )
    measure: Literal["accuracy", "cross-entropy"] = Field("accuracy", description="what else is in the score")
    form: Literal["mass", "pixels", "nonzero"] = Field(
        "mass", description="how heat inside and outside of a mask is held against each other; 'nonzero': as printed"
    )
    top: float = Field(0.25, gt=0, lt=1, description="share of pixels that are hot, for form 'pixels'")
    grid: int = Field(2, ge=0, le=5, description="cells on a side of a scene; 0: no scenes")
    until: int = Field(0, ge=0, description="last round with a choice; 0: all rounds")
    weights: Literal["rows", "rank"] = Field("rows", description="how those that are kept are averaged")
    score_at: Literal["site", "server"] = Field(
        "site", description="server: it scores the models that it is sent as well, and names sites that said more"
    )
    tolerance: float = Field(0.05, ge=0, description="by how much that may differ")
    steps: int = Field(5, ge=1, description="points on a path of integrated gradients")
    samples: int = Field(5, ge=1, description="noisy copies of a picture (SmoothGrad)")
    sigma: float = Field(0.5, ge=0, description="their noise, in a pixel's standard deviations")
