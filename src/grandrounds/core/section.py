"""Base class of an experiment's sections. Only modules that declare settings import it: training does not need pydantic."""

from __future__ import annotations

from math import inf
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from grandrounds.core import plugins

OwnCode = BeforeValidator(plugins.named)
"""Where a name is expected a class or function may be given: it stands for its import path."""


ROUNDS, SEEDS = 1_000_000, 2**63 - 1
"""The largest number of rounds, and the largest seed."""

_UNLIMITED = ("seed", "lr")
"""A seed has a limit of its own, and a learning rate that is too large is said when training diverges."""

_LARGEST = 10**12
"""No other number of an experiment is larger: it would be a slip, or meant to exhaust a machine."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _within_limits(cls, values: Any) -> Any:
        """Refuse numbers that no field means, and text with NUL, which is no name of a file or column."""
        for name, value in values.items() if isinstance(values, dict) else ():
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, int | float) and _LARGEST < abs(one) != inf and name not in _UNLIMITED:
                    raise ValueError(f"{name} is {str(one)[:20]}, and the largest number is {_LARGEST:.0e}")
                if isinstance(one, str) and "\0" in one:
                    raise ValueError(f"{name} has a NUL character: take it out")
        return values
