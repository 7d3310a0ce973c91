"""Search space: settings by their dotted names, each with a range or a list of values.

The space is checked by the experiment's rules before any trial runs.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from grandrounds.core import toml
from grandrounds.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from optuna.trial import Trial

    from grandrounds.experiment.experiment import Experiment

Value = Any
"""A value of a setting in TOML: a number, a string, true or false, or a list of these."""

_KEYS = ("low", "high", "log", "choices")
_DIGITS = 4
_DATA = ("scale", "impute", "clip", "max_categories")
_PRIVACY = ("clip", "sampling_rate", "noise")
_SECTIONS = ("data", "model", "method", "train", "explain", "privacy")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log`: drawn uniformly on a log scale."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[Value, ...]:
        """Return the values at which bounds are checked."""
        return (self.low, self.high)

    def suggest(self, trial: Trial, name: str) -> Value:
        """Draw the value of a trial, rounded to four digits, so that people can read and repeat it."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        drawn = trial.suggest_float(name, self.low, self.high, log=self.log)
        return min(max(float(f"{drawn:.{_DIGITS}g}"), self.low), self.high)

    def stored(self, value: Value) -> Value:
        """Return a value as the study stores it; None where it is not in the range."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if number and self.low <= value <= self.high else None

    def to_dict(self) -> dict[str, Value]:
        return {"low": self.low, "high": self.high, "log": self.log}

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}"


@dataclass(frozen=True)
class Choices:
    """One of these values. The study stores them as TOML text, because a value may be a list."""

    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.values

    def suggest(self, trial: Trial, name: str) -> Value:
        words = [toml.literal(v) for v in self.values]
        return self.values[words.index(trial.suggest_categorical(name, words))]

    def stored(self, value: Value) -> Value:
        word = None if value is None else toml.literal(value)
        return next((w for w in map(toml.literal, self.values) if w == word), None)

    def to_dict(self) -> dict[str, Value]:
        return {"choices": list(self.values)}

    def __str__(self) -> str:
        return ", ".join(toml.literal(v) for v in self.values)


Dimension = Range | Choices
Space = Mapping[str, Dimension]


def read_space(table: Mapping[str, Value], experiment: Experiment, *, where: str = "tune.space") -> dict[str, Dimension]:
    """Read a search space, and check it against its experiment."""
    space: dict[str, Dimension] = {}
    for name, entry in _flatten(table, where):
        place = f"{where}: {name}"
        _check_tunable(name, experiment, place)
        space[name] = _read_dimension(entry, _setting_types(name), place)
        for value in space[name].ends:
            _check(experiment, name, value, place)
    return space


def parse_space(texts: Sequence[str]) -> dict[str, Value]:
    """Parse `train.lr=1e-3..1:log` and `method.mu=0.001,0.01,0.1` into entries as in a file."""
    out: dict[str, Value] = {}
    for text in texts:
        name, equals, text_value = text.partition("=")
        if not (equals and name.strip() and text_value.strip()):
            raise BadInput(
                f"--space {text}: write a range as train.lr=1e-3..1:log, or values as train.batch=16,32",
                code="bad-search-space",
            )
        low, dots, rest = text_value.strip().partition("..")
        if not dots:
            out[name.strip()] = {"choices": _parse_list(text_value)}
            continue
        high, _, how = rest.partition(":")
        ends = [_parse_value(low), _parse_value(high)]
        if not all(_is_number(e) for e in ends) or how not in ("", "log"):
            raise BadInput(
                f"--space {text}: a range is two numbers, low..high or low..high:log", code="bad-search-space"
            )
        out[name.strip()] = {"low": ends[0], "high": ends[1], "log": how == "log"}
    return out


def with_values(experiment: Experiment, settings: Mapping[str, Value]) -> Experiment:
    """Return the experiment with these settings."""
    return experiment.with_settings([f"{name}={toml.literal(value)}" for name, value in settings.items()])


def current_values(space: Space, experiment: Experiment) -> dict[str, Value]:
    """Return the experiment's values of the settings of a space; unset ones are left out."""
    plain = experiment.model_dump(mode="json")
    values = {name: _lookup(plain, name) for name in space}
    return {name: v for name, v in values.items() if v is not None}


def _lookup(values: Any, name: str) -> Any:
    for word in name.split("."):
        values = values.get(word) if isinstance(values, Mapping) else None
    return values


def _flatten(table: Mapping[str, Value], where: str, before: str = "") -> Iterator[tuple[str, Mapping[str, Value]]]:
    """Yield dotted name and entry; TOML makes tables of a dotted key without quotes."""
    for key, entry in table.items():
        name = f"{before}{key}"
        if isinstance(entry, Dimension):
            entry = entry.to_dict()
        if isinstance(entry, list | tuple):
            entry = {"choices": list(entry)}
        if not isinstance(entry, Mapping) or not entry:
            raise BadInput(
                f"{where}: {name} is {json.dumps(entry, default=str)}: write {{ low = 1, high = 8 }} or a list",
                code="bad-search-space",
            )
        if any(isinstance(v, Mapping) for v in entry.values()):
            yield from _flatten(entry, where, f"{name}.")
        else:
            yield name, entry


def _read_dimension(entry: Mapping[str, Value], kinds: set[Any], place: str) -> Dimension:
    for key in entry:
        if key not in _KEYS:
            raise BadInput(f"{place}: unknown key '{key}'; {nearest(key, _KEYS)}", code="unknown-key")
    if "choices" in entry:
        return _read_choices(entry, place)
    if not {"low", "high"} <= set(entry):
        raise BadInput(f"{place}: give low and high, or choices", code="bad-search-space")
    low, high, log = entry["low"], entry["high"], entry.get("log", False)
    if not (_is_number(low) and _is_number(high) and isinstance(log, bool)):
        raise BadInput(f"{place}: low and high are numbers and log is true or false", code="bad-search-space")
    if low >= high:
        raise BadInput(f"{place}: low is {low:g} and high is {high:g}: low must be less", code="bad-search-space")
    if log and low <= 0:
        raise BadInput(f"{place}: low is {low:g}, and a range on a log scale begins above 0", code="bad-search-space")
    if kinds and not kinds & {int, float}:
        raise BadInput(
            f"{place} is not a number: give choices = [...] instead of low and high", code="bad-search-space"
        )
    is_integer = float not in kinds if kinds else isinstance(low, int) and isinstance(high, int)
    if is_integer and not (float(low).is_integer() and float(high).is_integer()):
        raise BadInput(f"{place} is a whole number: low and high must be too", code="bad-search-space")
    return Range(int(low), int(high), log, True) if is_integer else Range(float(low), float(high), log)


def _read_choices(entry: Mapping[str, Value], place: str) -> Choices:
    values = entry["choices"]
    if len(entry) > 1 or not isinstance(values, list | tuple) or not values:
        raise BadInput(
            f"{place}: choices is a list of values without other keys: {{ choices = [16, 32] }}", code="bad-search-space"
        )
    if len({toml.literal(v) for v in values}) < len(values):
        raise BadInput(f"{place}: choices has a value twice: remove one", code="bad-search-space")
    return Choices(tuple(values))


def _check_tunable(name: str, experiment: Experiment, place: str) -> None:
    """Refuse settings that would make trials incomparable: other evaluation rows, or another privacy guarantee."""
    section, _, key = name.partition(".")
    if section in type(experiment).model_fields and section not in _SECTIONS:
        raise BadInput(
            f"{place} cannot be tuned: its trials could not be compared; known: {', '.join(_SECTIONS)}",
            code="untunable-setting",
        )
    if section == "data" and key.split(".")[0] not in _DATA:
        raise BadInput(
            f"{place} cannot be tuned: its trials could not be compared; of [data]: {', '.join(_DATA)}",
            code="untunable-setting",
        )
    if section == "privacy" and key not in _PRIVACY:
        raise BadInput(
            f"{place} cannot be tuned: it sets the privacy guarantee; of [privacy]: {', '.join(_PRIVACY)}",
            code="untunable-setting",
        )
    if name == "privacy.noise" and experiment.privacy.epsilon is None:
        raise BadInput(
            f"{place} cannot be tuned without privacy.epsilon: the least noise would win, at any loss of privacy",
            code="untunable-setting",
        )


def _setting_types(name: str) -> set[Any]:
    """Return the plain types that a setting may have; none where any type is allowed (options of plug-ins)."""
    from pydantic import BaseModel

    from grandrounds.experiment.experiment import Experiment

    annotation: Any = Experiment
    for word in name.split("."):
        if (
            not (isinstance(annotation, type) and issubclass(annotation, BaseModel))
            or word not in annotation.model_fields
        ):
            return set()
        annotation = annotation.model_fields[word].annotation
    return set(get_args(annotation)) or {annotation}


def _check(experiment: Experiment, name: str, value: Value, place: str) -> None:
    try:
        with_values(experiment, {name: value})
    except BadInput as e:
        raise BadInput(f"{place.partition(':')[0]}: {str(e).removeprefix('settings: ')}", code=e.code) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _parse_list(text: str) -> list[Value]:
    """Parse values between commas; a value may be a list."""
    try:
        return list(tomllib.loads(f"v = [{text}]")["v"])
    except tomllib.TOMLDecodeError:
        return [_parse_value(word) for word in text.split(",")]


def _parse_value(text: str) -> Value:
    """Return a TOML value; a bare word is text, and 1e-3 or 1 are numbers."""
    try:
        return tomllib.loads(f"v = {text.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        return text.strip()
