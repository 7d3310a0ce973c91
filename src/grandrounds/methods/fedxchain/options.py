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
"""Values of unset [method.trust] settings, by preset."""


class TrustOptions(Section):
    """Method 'fedxchain': components of trust, and the weight by trust; `trust = "robust"` is short for the preset."""

    preset: Literal["default", "printed", "robust"] = Field(
        "default",
        description="defaults of the settings below; 'printed': as in the paper; 'robust': accuracy dominates, and "
        "attributions of opposite sign have no weight",
    )
    alpha: float | None = Field(None, ge=0, le=1, description="share of accuracy in trust; not set: 0.5, robust 0.89")
    beta: float | None = Field(
        None, ge=0, le=1, description="share of agreement with the consortium's attributions, exp(-NSDS); not set: 0.3, "
        "robust 0.07"
    )
    gamma: float | None = Field(None, ge=0, le=1, description="share of consistency; not set: 0.2, robust 0.04")
    tau: float = Field(0.5, ge=0, description="strength of the NSDS penalty on a weight")
    kappa: float = Field(0.0, ge=0, le=1, description="exponent of a site's rows in its weight; 1 favours large sites")
    form: Literal["exponential", "printed"] | None = Field(
        None, description="exp(-tau NSDS), or eq. 8 as printed, 1 - tau NSDS but at least 0; not set: by the preset"
    )
    signed: bool | None = Field(
        None,
        description="SHAP values of opposite sign count as no agreement and have no weight; not set: by the preset",
    )
    accuracy_at: Literal["auto", "reference", "site"] = Field(
        "auto",
        description="rows for accuracy: reference rows at the server (with privacy.secure at the site), or a site's own "
        "validation rows; auto: reference if labelled reference rows exist",
    )
    explained: Literal["auto", "own", "reference"] = Field(
        "auto",
        description="rows for explanations: a site's own training rows, or reference rows at the server; auto: own, or "
        "reference if privacy.epsilon is set",
    )
    explainer: Literal["auto", "shap", "integrated_gradients"] = Field(
        "auto", description="explainer; auto: shap for tables, integrated_gradients for images"
    )
    rows: int = Field(200, ge=2, description="maximum number of rows that a site explains")
    top: int = Field(
        0, ge=0, description="features reported separately after the first round, the others as one; 0: all"
    )
    window: int = Field(3, ge=2, description="number of past rounds whose accuracies determine consistency")
    alarm: float = Field(1.0, gt=0, description="NSDS above which the Decision reports a site (tau_max)")
    rewards: bool = Field(
        True, description="compute each site's contribution and reward, if labelled reference rows exist"
    )
    reasons: bool = Field(
        False,
        description="multiply weights by the agreement of a site's sketch with the others' (SSE-AGG; [method.weigh])",
    )

    @model_validator(mode="after")
    def _filled(self) -> TrustOptions:
        shares = [self.alpha, self.beta, self.gamma]
        if any(v is not None for v in shares):
            if None in shares:
                raise ValueError("alpha, beta and gamma are shares of trust: set all three")
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
