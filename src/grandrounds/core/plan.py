"""A plan's values by attribute, so that a run needs neither pydantic nor TOML: `plan.method.rounds`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput


class NoSetting(BadInput, AttributeError):
    """A plan without a setting that a run asks for: written by hand, or by another version."""


class Settings:
    """A read-only view of nested plain values. Sections are Settings, everything else is as written."""

    _values: dict[str, Any]

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", dict(values))

    if not TYPE_CHECKING:  # core/plan_types.py says what there is

        def __getattr__(self, name: str) -> Any:
            try:
                value = self._values[name]
            except KeyError:
                sentence = f"the plan has no '{name}': write it with this version's `rounds plan`"
                raise NoSetting(sentence, code="unknown-setting") from None
            return Settings(value) if isinstance(value, dict) else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a plan does not change")

    def plain(self) -> dict[str, Any]:
        """The values themselves."""
        return dict(self._values)
