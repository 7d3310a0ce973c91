"""What is searched: settings by their dotted names, each with a range or a list of values. All of it is checked before
anything is run, by the experiment's own rules."""

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
"""A value of a setting, as TOML has it: a number, a word, true or false, a list of these."""

_KEYS = ("low", "high", "log", "choices")
_DIGITS = 4
_DATA = ("scale", "impute", "clip", "max_categories")
_PRIVACY = ("clip", "sampling_rate", "noise")
_SECTIONS = ("data", "model", "method", "train", "explain", "privacy")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log`: every power is as likely as every other."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values that stand for all when bounds are checked."""
        return (self.low, self.high)

    def suggest(self, trial: Trial, name: str) -> Value:
        """What a trial takes; numbers are cut to four digits, so that people can read and repeat them."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        drawn = trial.suggest_float(name, self.low, self.high, log=self.log)
        return min(max(float(f"{drawn:.{_DIGITS}g}"), self.low), self.high)

    def stored(self, value: Value) -> Value:
        """A value as the study keeps it; None where it is not in here."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if number and self.low <= value <= self.high else None

    def to_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "log": self.log}

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}"


@dataclass(frozen=True)
class Choices:
    """One of these values. The study keeps them as TOML text, since a value may be a list."""

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

    def to_dict(self) -> dict[str, Any]:
        return {"choices": list(self.values)}

    def __str__(self) -> str:
        return ", ".join(toml.literal(v) for v in self.values)


Dimension = Range | Choices
Space = Mapping[str, Dimension]


def read_space(given: Mapping[str, Any], experiment: Experiment, *, where: str = "tune.space") -> dict[str, Dimension]:
    """The space that a file or a program gives, checked against the experiment it is for."""
    space: dict[str, Dimension] = {}
    for name, entry in _flatten(given, where):
        at = f"{where}: {name}"
        _check_tunable(name, experiment, at)
        space[name] = _read_dimension(entry, _setting_types(name), at)
        for value in space[name].ends:
            _check(experiment, name, value, at)
    return space


def parse_space(texts: Sequence[str]) -> dict[str, Any]:
    """`train.lr=1e-3..1:log` and `method.mu=0.001,0.01,0.1` as a file would have them."""
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, said = text.partition("=")
        if not (equals and name.strip() and said.strip()):
            raise BadInput(
                f"--space {text}: write a range as train.lr=1e-3..1:log, or values as train.batch=16,32",
                code="bad-search-space",
            )
        low, dots, rest = said.strip().partition("..")
        if not dots:
            out[name.strip()] = {"choices": _parse_list(said)}
            continue
        high, _, how = rest.partition(":")
        ends = [_parse_value(low), _parse_value(high)]
        if not all(_is_number(e) for e in ends) or how not in ("", "log"):
            raise BadInput(f"--space {text}: a range is two numbers, low..high or low..high:log", code="bad-search-space")
        out[name.strip()] = {"low": ends[0], "high": ends[1], "log": how == "log"}
    return out


def with_values(experiment: Experiment, settings: Mapping[str, Value]) -> Experiment:
    """The experiment with these settings."""
    return experiment.with_settings([f"{name}={toml.literal(value)}" for name, value in settings.items()])


def current_values(space: Space, experiment: Experiment) -> dict[str, Value]:
    """What the experiment says itself of the settings of a space, in it or not; what it leaves unset is left out."""
    plain = experiment.model_dump(mode="json")
    values = {name: _lookup(plain, name) for name in space}
    return {name: v for name, v in values.items() if v is not None}


def _lookup(values: Any, name: str) -> Any:
    for word in name.split("."):
        values = values.get(word) if isinstance(values, Mapping) else None
    return values


def _flatten(given: Mapping[str, Any], where: str, before: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Dotted name -> entry; TOML makes tables of a dotted key that is not in quotes."""
    for key, entry in given.items():
        name = f"{before}{key}"
        if isinstance(entry, Dimension):
            entry = entry.to_dict()
        if isinstance(entry, list | tuple):
            entry = {"choices": list(entry)}
        if not isinstance(entry, Mapping) or not entry:
            raise BadInput(
                f"{where}: {name} is {json.dumps(entry, default=str)}: write {{ low = 1, high = 8 }} or a list",
                code="bad-search-space"
            )
        if any(isinstance(v, Mapping) for v in entry.values()):
            yield from _flatten(entry, where, f"{name}.")
        else:
            yield name, entry


def _read_dimension(entry: Mapping[str, Any], kinds: set[Any], at: str) -> Dimension:
    for key in entry:
        if key not in _KEYS:
            raise BadInput(f"{at}: unknown key '{key}'; {nearest(key, _KEYS)}", code="unknown-key")
    if "choices" in entry:
        return _read_choices(entry, at)
    if not {"low", "high"} <= set(entry):
        raise BadInput(f"{at}: give low and high, or choices", code="bad-search-space")
    low, high, log = entry["low"], entry["high"], entry.get("log", False)
    if not (_is_number(low) and _is_number(high) and isinstance(log, bool)):
        raise BadInput(f"{at}: low and high are numbers and log is true or false", code="bad-search-space")
    if low >= high:
        raise BadInput(f"{at}: low is {low:g} and high is {high:g}: low must be less", code="bad-search-space")
    if log and low <= 0:
        raise BadInput(f"{at}: low is {low:g}, and a range on a log scale begins above 0", code="bad-search-space")
    if kinds and not kinds & {int, float}:
        raise BadInput(f"{at} is not a number: give choices = [...] instead of low and high", code="bad-search-space")
    whole = float not in kinds if kinds else isinstance(low, int) and isinstance(high, int)
    if whole and not (float(low).is_integer() and float(high).is_integer()):
        raise BadInput(f"{at} is a whole number: low and high must be too", code="bad-search-space")
    return Range(int(low), int(high), log, True) if whole else Range(float(low), float(high), log)


def _read_choices(entry: Mapping[str, Any], at: str) -> Choices:
    values = entry["choices"]
    if len(entry) > 1 or not isinstance(values, list | tuple) or not values:
        raise BadInput(f"{at}: choices is a list of values and stands alone: {{ choices = [16, 32] }}", code="bad-search-space")
    if len({toml.literal(v) for v in values}) < len(values):
        raise BadInput(f"{at}: a value stands twice in choices", code="bad-search-space")
    return Choices(tuple(values))


def _check_tunable(name: str, experiment: Experiment, at: str) -> None:
    """Refuse what would change the question: other rows to be judged on, or another promise to patients."""
    section, _, key = name.partition(".")
    if section in type(experiment).model_fields and section not in _SECTIONS:
        raise BadInput(
            f"{at} cannot be tuned: trials would not be judged alike; known: {', '.join(_SECTIONS)}",
            code="untunable-setting",
        )
    if section == "data" and key.split(".")[0] not in _DATA:
        raise BadInput(
            f"{at} cannot be tuned: trials would not be judged alike; of [data]: {', '.join(_DATA)}",
            code="untunable-setting",
        )
    if section == "privacy" and key not in _PRIVACY:
        raise BadInput(
            f"{at} cannot be tuned: it is what is promised to patients; of [privacy]: {', '.join(_PRIVACY)}",
            code="untunable-setting",
        )
    if name == "privacy.noise" and experiment.privacy.epsilon is None:
        raise BadInput(
            f"{at} cannot be tuned without privacy.epsilon: least noise would win, at any loss of privacy",
            code="untunable-setting",
        )


def _setting_types(name: str) -> set[Any]:
    """The plain types that a setting may have; none where the experiment leaves that open (options of own code)."""
    from pydantic import BaseModel

    from grandrounds.experiment.experiment import Experiment

    at: Any = Experiment
    for word in name.split("."):
        if not (isinstance(at, type) and issubclass(at, BaseModel)) or word not in at.model_fields:
            return set()
        at = at.model_fields[word].annotation
    return set(get_args(at)) or {at}


def _check(experiment: Experiment, name: str, value: Value, at: str) -> None:
    try:
        with_values(experiment, {name: value})
    except BadInput as e:
        raise BadInput(f"{at.partition(':')[0]}: {str(e).removeprefix('settings: ')}", code=e.code) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _parse_list(text: str) -> list[Value]:
    """Values between commas; a list may be one of them."""
    try:
        return list(tomllib.loads(f"v = [{text}]")["v"])
    except tomllib.TOMLDecodeError:
        return [_parse_value(word) for word in text.split(",")]


def _parse_value(text: str) -> Value:
    """A TOML value; a bare word is text, and 1e-3 or 1 are numbers as people write them."""
    try:
        return tomllib.loads(f"v = {text.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        return text.strip()
