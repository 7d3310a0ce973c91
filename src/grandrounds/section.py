"""What every section of an experiment is."""

from __future__ import annotations

from pydantic import BaseModel, BeforeValidator, ConfigDict

from grandrounds import plugins

OwnCode = BeforeValidator(plugins.named)
"""Where a name is expected a class or function may be given: it stands for its import path."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
