"""Base class of an experiment's sections. Only modules that declare settings import it: training does not need pydantic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from grandrounds.core import plugins
from grandrounds.core.errors import BadInput, nearest, visible

OwnCode = BeforeValidator(plugins.named)
"""Accept a class or function in place of its name, and replace it by its import path."""

NAMES_SOURCE = "names a file, a folder, an address or a query"
"""Mark of a setting whose value is opened: of a run folder that was made elsewhere it is not (`core.sources.FIELDS`)."""

SourceName = Annotated[str | None, NAMES_SOURCE]


ROUNDS, SEEDS = 1_000_000, 2**63 - 1
"""The largest number of rounds, and the largest seed."""

_UNLIMITED = ("seed", "lr")
"""Numbers without this limit: a seed has its own, and a large learning rate is reported when training diverges."""

_LARGEST = 10**12
"""Largest value of all other numbers; a larger one is a typo, or an attempt to exhaust a machine."""


_LONGEST = 60
"""The most characters of a value that a sentence quotes."""


if TYPE_CHECKING:
    CheckedModel = BaseModel
else:

    class CheckedMeta(type(BaseModel)):
        """Metaclass of sections: a wrong argument of a constructor raises BadInput, with the sentence of the command line.

        Pydantic does not call it for the sections inside a section, so the sentence names the full key.
        """

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as e:
                name = re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()
                raise BadInput(f"{name}: {describe_error(cls, e)}", code=error_code(e)) from None

    class CheckedModel(BaseModel, metaclass=CheckedMeta):
        """A pydantic model whose constructor raises BadInput."""


class Section(CheckedModel):
    """Base class of an experiment's sections: unknown keys are refused, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _within_limits(cls, values: Any) -> Any:
        """Refuse numbers beyond the limit, and text with NUL, which cannot name a file or column."""
        for name, value in values.items() if isinstance(values, dict) else ():
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, int | float) and _LARGEST < abs(one) != inf and name not in _UNLIMITED:
                    raise ValueError(f"{name} is {str(one)[:20]}, and the largest number is {_LARGEST:.0e}")
                if isinstance(one, str) and "\0" in one:
                    raise ValueError(f"{name} has a NUL character: remove it")
        return values


def error_code(error: ValidationError) -> str:
    """Return the error code of the first problem that pydantic found."""
    return {"extra_forbidden": "unknown-setting", "literal_error": "unknown-choice"}.get(
        error.errors()[0]["type"], "bad-setting"
    )


def describe_error(root: type[BaseModel], error: ValidationError) -> str:
    """Describe the first problem that pydantic found in one sentence.

    Args:
        root: The section that was validated.
        error: The error of pydantic.

    Returns:
        The key, its value and the problem; for an unknown key or choice also the nearest known one.
    """
    first = error.errors()[0]
    path = [str(p) for p in first["loc"]]
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        elsewhere = " or ".join(f"'{name}'" for name in called(path[-1], root))
        known = nearest(path[-1], _find_section(root, path[:-1]).model_fields)
        return f"unknown key '{key}'; " + (f"did you mean {elsewhere}?" if elsewhere else known)
    if first["type"] == "literal_error":
        choices = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"{key} is '{visible(str(first['input'])[:_LONGEST])}'; {nearest(str(first['input'])[:_LONGEST], choices)}"
    if first["type"] == "model_type":
        return f"{key} is {quote_value(first['input'])}, but it is a section: write {key} = {{ ... }} or [{key}]"
    if first["type"] == "value_error":
        return ": ".join(filter(None, [key, str(first["ctx"]["error"])]))
    return f"{key} is {quote_value(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"


def walk_settings(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name and the type of every setting of a section and of those in it."""
    for name, field in section.model_fields.items():
        where, kind = f"{path}.{name}" if path else name, field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from walk_settings(kind, where)
        else:
            yield where, kind


def called(word: str, section: type[BaseModel]) -> list[str]:
    """List the settings whose last word is `word`, those in the fewest sections: ["train.lr"] for "lr"."""
    found = [name for name, _ in walk_settings(section) if "." in name and name.rpartition(".")[2] == word]
    return [name for name in found if name.count(".") == min(other.count(".") for other in found)]


def quote_value(value: Any) -> str:
    """Quote a value for a sentence: cut where it is long, with control characters as escapes."""
    text = visible(repr(value)[:200])
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _find_section(root: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    """Find the section class at a path; names of reference sets and numbers of attacks in it have no class of their own."""
    for name in path:
        field = root.model_fields.get(name)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        root = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), root)
    return root
