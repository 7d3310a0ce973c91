"""Read a plan by attribute, so that a run needs neither pydantic nor TOML: `plan.method.rounds`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput

PlanValues = Mapping[str, Any]
"""Plain values of a plan or an experiment, as in its file."""

class NoSetting(BadInput, AttributeError):
    """Error: the plan lacks a setting; it was written by hand or by another version."""


class Settings:
    """Read-only view of nested plain values, with sections as attributes."""

    _values: dict[str, Any]

    def __init__(self, values: PlanValues) -> None:
        object.__setattr__(self, "_values", dict(values))

    if not TYPE_CHECKING:  # core/plan_types.py says what there is

        def __getattr__(self, name: str) -> Any:
            try:
                value = self._values[name]
            except KeyError:
                sentence = f"the plan has no '{name}': create it with this version's `rounds plan`"
                raise NoSetting(sentence, code="unknown-setting") from None
            return Settings(value) if isinstance(value, dict) else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a plan does not change")

    def plain(self) -> dict[str, Any]:
        """The values themselves."""
        return dict(self._values)
