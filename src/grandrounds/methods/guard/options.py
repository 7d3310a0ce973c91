"""Define the section [personal] of an experiment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grandrounds.core.section import Section


class PersonalOptions(Section):
    """Parts of the model that each site has for itself. They are never sent."""

    part: Literal["none", "intercept", "recalibration", "head", "ditto", "apfl", "finetune"] = Field(
        "none",
        description="part that each site fits to its own training rows and keeps: 'intercept', shrunk towards the common model; "
        "'recalibration' (slope and intercept); 'head' (last layer, FedRep); 'ditto' and 'apfl' (a model of its own, pulled "
        "towards or mixed with the common one); 'finetune' (training continued at the site)",
    )
    guard: bool = Field(
        False,
        description="each site compares the common model, the shrunk intercept, the personal part, a model of its own and its "
        "majority class, and keeps the shrunk intercept unless another is better by two standard errors",
    )
    rows: Literal["auto", "train", "validation"] = Field(
        "auto",
        description="rows on which the guard compares: training rows in 5 folds, or validation rows; auto: training rows for "
        "linear models, additive models and risk cards, validation rows for models that can memorise their training rows",
    )
    epochs: int = Field(5, ge=1, le=10_000, description="epochs of 'finetune', and of 'head', 'ditto' and 'apfl' in a round")
    strength: float = Field(0.1, ge=0, description="pull of 'ditto' towards the common model")
    mixture: float = Field(0.5, gt=0, le=1, description="share of the site's own model in 'apfl'")
    spread: float | None = Field(
        None,
        gt=0,
        le=100,
        description="standard deviation of site intercepts (log-odds), which shrinks them; not set: estimated from sums over "
        "sites, 0.5 under privacy.epsilon",
    )
    differences: bool = Field(
        True, description="test which features a site with a personal part uses differently from the common model"
    )
