"""Settings of FedXChain: [method.trust]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from grandrounds.core.section import Section

PRESETS: dict[str, dict[str, float | str | bool]] = {
    "default": {"alpha": 0.5, "beta": 0.3, "gamma": 0.2, "form": "exponential", "signed": False},
    "printed": {"alpha": 0.5, "beta": 0.3, "gamma": 0.2, "form": "printed", "signed": False, "accuracy_at": "site"},
    "robust": {"alpha": 0.89, "beta": 0.07, "gamma": 0.04, "form": "exponential", "signed": True},
}
"""What [method.trust] means by a preset, where a setting is not given."""


class TrustOptions(Section):
    """Method 'fedxchain': what trust is made of, and how it becomes a weight; `trust = "robust"` is short for its preset."""

    preset: Literal["default", "printed", "robust"] = Field(
        "default",
        description="what the settings below are where they are not set; 'printed': the paper's; 'robust': accuracy decides, and "
        "reasons that point the other way have no weight",
    )
    alpha: float | None = Field(None, ge=0, le=1, description="share of accuracy in trust; not set: 0.5, robust 0.89")
    beta: float | None = Field(
        None, ge=0, le=1, description="share of agreement with the consortium's reasons, exp(-NSDS); 0.3, robust 0.07"
    )
    gamma: float | None = Field(None, ge=0, le=1, description="share of consistency; 0.2, robust 0.04")
    tau: float = Field(0.5, ge=0, description="how strongly NSDS lowers a weight")
    kappa: float = Field(0.0, ge=0, le=1, description="power of a site's rows in its weight; 1 lets large sites win")
    form: Literal["exponential", "printed"] | None = Field(
        None, description="exp(-tau NSDS), or eq. 8 as printed, 1 - tau NSDS but at least 0; not set: by the preset"
    )
    signed: bool | None = Field(
        None,
        description="whether SHAP values that point the other way are no agreement and have no weight; not set: preset",
    )
    accuracy_at: Literal["auto", "reference", "site"] = Field(
        "auto",
        description="where accuracy is measured: on reference rows, by the server (with privacy.secure by the site itself), or "
        "on a site's own validation rows; auto: reference where there are labelled rows for it",
    )
    explained: Literal["auto", "own", "reference"] = Field(
        "auto",
        description="whose rows sites are explained on: their own training rows, or reference rows, by the server; auto: own, "
        "and reference while privacy.epsilon is set",
    )
    explainer: Literal["auto", "shap", "integrated_gradients"] = Field(
        "auto", description="auto: shap for tables, integrated_gradients for pictures"
    )
    rows: int = Field(200, ge=2, description="most rows that a site explains itself on")
    top: int = Field(
        0, ge=0, description="features that are told apart after the first round, all others as one; 0: all"
    )
    window: int = Field(3, ge=2, description="rounds whose accuracies consistency goes by")
    alarm: float = Field(1.0, gt=0, description="NSDS above which a site is named in the Decision (tau_max)")
    rewards: bool = Field(
        True, description="work out each site's contribution and reward, where there are labelled reference rows"
    )
    reasons: bool = Field(
        False,
        description="multiply weights by how far a site's sketch is in line with the others' (SSE-AGG; [method.weigh])",
    )

    @model_validator(mode="after")
    def _filled(self) -> TrustOptions:
        shares = [self.alpha, self.beta, self.gamma]
        if any(v is not None for v in shares):
            if None in shares:
                raise ValueError("alpha, beta and gamma are shares of one trust: give all three")
            if abs(sum(v for v in shares if v is not None) - 1) > 1e-6:
                raise ValueError("alpha, beta and gamma must sum to 1, so that trust is between 0 and 1")
        return self

    def resolved(self) -> TrustOptions:
        """Return the options with the values of the preset filled in."""
        meant = PRESETS[self.preset]
        unset = {
            n: v
            for n, v in meant.items()
            if getattr(self, n) is None or (n == "accuracy_at" and self.accuracy_at == "auto")
        }
        return self.model_copy(update=unset)
