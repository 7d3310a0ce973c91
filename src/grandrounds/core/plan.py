"""Read a plan by attribute, so that a run needs neither pydantic nor TOML: `plan.method.rounds`.

Settings that were renamed are read under either name: a stored plan keeps the names that it was written, hashed and sent with.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput

PlanValues = Mapping[str, Any]
"""Plain values of a plan or an experiment, as in its file."""

RENAMED = {
    "privacy.range": "secure_range",
    "privacy.rate": "sampling_rate",
    "privacy.fewest_rows": "min_rows",
    "engine.away": "absences",
    "engine.spread": "speed_spread",
    "evaluation.local": "local_models",
    "evaluation.reasons": "rationale_set",
    "method.hold": "anchor_gain",
    "method.contrast": "moon_mu",
    "method.weigh.between": "between_rounds",
    "method.veil.asking": "census_share",
    "method.veil.claims": "claimed_epsilon",
}
"""Settings by their name in version 0.1, with the key that they have now in the same section."""

_EARLIER = {new: old.rpartition(".")[2] for old, new in RENAMED.items()}


class RenamedSetting(FutureWarning):
    """Warning: a setting has its name of version 0.1."""


def rename_settings(values: PlanValues, *, warn: bool = True) -> dict[str, Any]:
    """Rename settings of earlier versions to their current names.

    Args:
        values: An experiment or a plan; it is not changed.
        warn: Warn of each earlier name (`RenamedSetting`).

    Returns:
        The same values; of a setting under both names only that of today, if both agree.

    Raises:
        ValueError: A setting is given under both names with different values.
    """
    out = dict(values)
    for section, old, new in _renames():
        table = _table(out, section)
        if table is None or old not in table:
            continue
        if new in table and table[new] != table[old]:
            raise ValueError(f"{section}.{old} is the earlier name of {section}.{new}, and both are set: remove {section}.{old}")
        if warn:
            warnings.warn(f"{section}.{old} is now called {section}.{new}", RenamedSetting, stacklevel=2)
        _put(out, section, {new if key == old else key: value for key, value in table.items() if key != old or new not in table})
    return out


def restore_names(values: PlanValues, stored: PlanValues) -> dict[str, Any]:
    """Write a plan under the names that a stored plan of the same run uses.

    Args:
        values: A plan under the names of today.
        stored: The plan as the run has it.
    """
    out = dict(values)
    for section, old, new in _renames():
        table, earlier = _table(out, section), _table(stored, section)
        if table is not None and earlier is not None and old in earlier and new not in earlier:
            _put(out, section, {old if key == new else key: value for key, value in table.items()})
    return out


def _renames() -> Iterator[tuple[str, str, str]]:
    """Yield section, earlier key and today's key of each renamed setting."""
    for path, new in RENAMED.items():
        section, _, old = path.rpartition(".")
        yield section, old, new


def _table(values: PlanValues, section: str) -> PlanValues | None:
    """Return a section's table; None where it is not given, or short for something else (`weigh = "uniform"`)."""
    table: Any = values
    for name in section.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else None


def _put(values: dict[str, Any], section: str, table: dict[str, Any]) -> None:
    """Replace a section's table, copying the tables around it."""
    first, _, rest = section.partition(".")
    if rest:
        inner = dict(values[first])
        _put(inner, rest, table)
        table = inner
    values[first] = table


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
                value = self._values[name if name in self._values else _EARLIER.get(name, name)]
            except KeyError:
                sentence = f"the plan has no '{name}': create it with this version's `rounds plan`"
                raise NoSetting(sentence, code="unknown-setting") from None
            return Settings(value) if isinstance(value, dict) else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a plan does not change")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or `default` in a plan of a version that did not have it."""
        try:
            return getattr(self, name)
        except NoSetting:
            return default

    def plain(self) -> dict[str, Any]:
        """The values themselves."""
        return dict(self._values)
