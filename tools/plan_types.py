"""Write the typed view of a plan from the sections of an experiment.

    python tools/plan_types.py            # prints src/grandrounds/core/plan_types.py
    python tools/plan_types.py --write    # writes it

Training imports no pydantic, so a plan is read through plain classes that name every setting and its type.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel

from grandrounds.experiment.experiment import Experiment

FILE = Path(__file__).parents[1] / "src" / "grandrounds" / "core" / "plan_types.py"

HEAD = '''"""Every setting of a plan with its type: `plan.method.rounds` is an int.

Written by `python tools/plan_types.py --write` from the sections of an experiment; do not edit it. The classes hold no values of
their own: a plan is read as it was written (`core/plan.py`), and needs no pydantic.
"""

from __future__ import annotations

from typing import Any

from grandrounds.core.plan import Settings
'''


def class_name(section: type[BaseModel]) -> str:
    """Name the plan's class after the section: `Weigh` is read as `WeighSettings`."""
    if section is Experiment:
        return "Plan"
    return section.__name__.removesuffix("Options").removesuffix("Settings") + "Settings"


def sections(section: type[BaseModel], seen: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """List a section after all that it is made of, each once."""
    for field in section.model_fields.values():
        for part in parts(field.annotation):
            if part not in seen and not field.exclude:
                sections(part, seen)
    seen[section] = None
    return seen


def parts(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a field's type names."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in typing.get_args(kind):
        yield from parts(argument)


def written_type(kind: Any) -> str:
    """Write a field's type as a plan has it: JSON knows no tuples, and a table is read as Settings."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return written_type(arguments[0])
    if origin is Literal:
        return " | ".join(dict.fromkeys(type(value).__name__ for value in arguments))
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(written_type(argument) for argument in arguments))
    if origin is tuple:
        if any(parts(kind)):  # tables of a list are plain
            return "list[dict[str, Any]]"
        inner = dict.fromkeys(written_type(argument) for argument in arguments if argument is not Ellipsis)
        return f"list[{' | '.join(inner)}]"
    if origin is dict:
        return "Settings"
    if kind is type(None):
        return "None"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return class_name(kind)
    return str(kind.__name__)


def render() -> str:
    """Write the module."""
    out = [HEAD]
    for section in sections(Experiment, {}):
        first = (section.__doc__ or "").strip().splitlines()[0]
        out += ["", f"class {class_name(section)}(Settings):", f'    """{first}"""', ""]
        fields = section.model_fields.items()
        out += [f"    {name}: {written_type(field.annotation)}" for name, field in fields if not field.exclude]
        out.append("")
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        FILE.write_text(render())
    else:
        print(render(), end="")
