"""The tables of every setting in docs/experiments.md, from the classes of the settings.

python docs/settings_table.py            print them
python docs/settings_table.py --write    put them between the two marks in docs/experiments.md
python docs/settings_table.py --check    exit 1 where the page differs
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types as limits
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grandrounds.core import toml
from grandrounds.experiment.engine_sections import AttackSettings
from grandrounds.experiment.experiment import Experiment
from grandrounds.experiment.sections import ReferenceSet, Task

PAGE = Path(__file__).with_name("experiments.md")
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
NAMED: dict[str, type[BaseModel]] = {"reference": ReferenceSet, "tasks": Task, "attacks": AttackSettings}
WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "ranges and lists"}
MOST = 10_000
"""Upper bounds from here on are not shown: they only guard against a slip of the keyboard."""


def kind(annotation: Any) -> str:
    """Describe a type."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{toml.literal(v)}`" for v in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(kind(a) for a in inner if a is not type(None)))
    if origin is tuple:
        if get_origin(inner[0]) is Literal:
            return f"list of {kind(inner[0])}"
        return f"list of {kind(inner[0]).replace('list of', 'lists of')}s".replace("ss", "s")
    if origin is dict:
        return f"table of {kind(inner[1])}"
    if hasattr(annotation, "__metadata__"):  # Annotated: the bounds of an element are checked, not shown
        return kind(inner[0])
    return WORDS.get(annotation, str(annotation))


def bounds(field: FieldInfo) -> str:
    """Describe the bounds that pydantic checks."""
    signs = {limits.Ge: ("ge", ">="), limits.Gt: ("gt", ">"), limits.Le: ("le", "<="), limits.Lt: ("lt", "<")}
    found = [(signs[type(m)][1], getattr(m, signs[type(m)][0])) for m in field.metadata if type(m) in signs]
    shown = ", ".join(f"{sign} {value:g}" for sign, value in found if value < MOST)
    return f" {shown}" if shown else ""


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    return f"`{toml.literal(value)}`".replace("{  }", "{}")


def is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def table(title: str, model: type[BaseModel], lines: list[str]) -> None:
    """Add the table of one section."""
    apart = NAMED if model is Experiment else {}
    plain = {n: f for n, f in model.model_fields.items() if not is_section(f) and n not in apart}
    first = (model.__doc__ or "").splitlines()[0] if title.startswith("`[") else "Settings before the first section."
    lines += [f"### {title}", "", first, "", "| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in plain.items():
        cells = (f"`{name}`", kind(field.annotation) + bounds(field), default(field), field.description or "")
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    lines.append("")


def tables() -> str:
    lines: list[str] = []
    table("top of the file", Experiment, lines)
    for name, field in Experiment.model_fields.items():
        if name in NAMED:
            table("`[[attacks]]`" if name == "attacks" else f"`[{name}.NAME]`", NAMED[name], lines)
        elif is_section(field):
            table(f"`[{name}]`", field.annotation, lines)
            for inner, below in field.annotation.model_fields.items():
                if is_section(below):
                    table(f"`[{name}.{inner}]`", below.annotation, lines)
    return "\n".join(lines)


def main(how: str = "") -> int:
    text = tables()
    if not how:
        print(text)
        return 0
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    wanted = f"{before}{BEGIN}\n\n{text}\n{END}{after}"
    if how == "--write":
        PAGE.write_text(wanted, encoding="utf-8")
    return int(how == "--check" and wanted != page)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
