"""Experiment files that `rounds init` writes: a short one, and one with every setting and its description."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grandrounds.core import toml
from grandrounds.experiment.engine_sections import AttackSettings
from grandrounds.experiment.experiment import Experiment
from grandrounds.experiment.sections import ReferenceSet, Task

_HEAD = """\
# A Grand Rounds experiment. Every setting is here with its default; delete those that you do not change.
# Run it with:  rounds run experiment.toml        Change one setting:  --set method.rounds=50
"""

_SHORT = """\
# A Grand Rounds experiment. Run it with:  rounds run experiment.toml
# Settings that are not here have their defaults. All of them:  rounds init all.toml --all

seed = 0

[data]
name = "breast-cancer"      # a set of the catalog: rounds list data
# table = "patients.csv"    # or your own table, in place of name
# label = "died"            # the column to predict
# site = "hospital"         # the column that names the hospital

# [model]
# name = "mlp"              # another model than logistic regression: rounds list models

[method]
name = "fedavg"             # rounds list methods
rounds = 20

[train]
lr = {lr}                    # learning rate of local training

[personal]
guard = true                # each hospital keeps the model that is better for its own patients
"""


def short_toml() -> str:
    """Return a short experiment file on the breast-cancer data: the settings that a first experiment changes.

    Returns:
        TOML text that parses to the same experiment as `starter_toml`, with the guard of hospitals switched on.
    """
    defaults = Experiment.parse({"data": {"name": "breast-cancer"}})
    return _SHORT.replace("{lr}", toml.literal(defaults.train.lr))


def starter_toml() -> str:
    """Return an experiment file on the breast-cancer data with every setting.

    Returns:
        TOML text that parses to a default experiment. Settings without a default are comments.
    """
    lines = [_HEAD]
    for name, field in Experiment.model_fields.items():
        if not _is_section(field) and name not in ("reference", "tasks", "attacks", "code"):
            lines.append(_line(name, field))
    for name, field in Experiment.model_fields.items():
        if _is_section(field):
            _section(name, field.annotation, lines)
        elif name == "reference":
            _named(lines, "reference.probe", ReferenceSet)
        elif name == "tasks":
            _named(lines, "tasks.kind", Task)
        elif name == "attacks":
            _named(lines, "[attacks]", AttackSettings)
    return "\n".join(lines) + "\n"


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _section(path: str, model: Any, lines: list[str]) -> None:
    lines += ["", f"# {(model.__doc__ or '').splitlines()[0]}", f"[{path}]"]
    lines += [_line(n, f, path) for n, f in model.model_fields.items() if not _is_section(f)]
    for name, field in model.model_fields.items():
        if _is_section(field):
            _section(f"{path}.{name}", field.annotation, lines)


def _named(lines: list[str], title: str, model: type[BaseModel]) -> None:
    """Write a section that the user names as a comment."""
    lines += ["", f"# {(model.__doc__ or '').splitlines()[0]}", f"# [{title}]"]
    lines += [f"# {_line(n, f)}" for n, f in model.model_fields.items()]


def _line(name: str, field: FieldInfo, path: str = "") -> str:
    """Write a setting with its default, its meaning and its choices; one without a default becomes a comment."""
    choices = [str(c) for c in get_args(field.annotation) if isinstance(c, str)]
    default = choices[0] if field.is_required() else field.get_default(call_default_factory=True)
    note = " | ".join(filter(None, [field.description or "", ", ".join(choices)]))
    comment = f"  # {note}" if note else ""
    if path == "data" and name == "name":
        return f'name = "breast-cancer"{comment}'
    if default is None:
        return f"# {name} ={comment}"
    return f"{name} = {toml.literal(default)}{comment}"
