"""Named experiments shipped with the package: `rounds run NAME`, `rounds list recipes`.

Those of one paper are in a folder of their own: `rounds run sse-agg/printed` runs it as the paper prints it. The first line of
a file is its title; a second line says where the recipe departs from its paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment

_END = ".toml"
_DEPARTURE = "# Departs from the paper: "


def recipes() -> dict[str, str]:
    """List recipes: name -> its first comment line."""
    firsts = {name: file.read_text(encoding="utf-8").splitlines()[0] for name, file in _files()}
    return {name: firsts[name].removeprefix("# ") for name in sorted(firsts)}


def recipe_departure(name: str) -> str:
    """Return where a recipe departs from its paper; "" for one that does not, and for a name that is no recipe."""
    file = dict(_files()).get(name)
    second = file.read_text(encoding="utf-8").splitlines()[1] if file is not None else ""
    return second.removeprefix(_DEPARTURE) if second.startswith(_DEPARTURE) else ""


def load_recipe(name: str) -> Experiment:
    """Load the experiment of a recipe.

    Raises:
        BadInput: No recipe has this name.
    """
    from grandrounds.experiment.experiment import Experiment

    file_by_name = dict(_files())
    if name not in file_by_name:
        raise BadInput(
            f"no recipe '{name}'; {nearest(name, sorted(file_by_name))} (a file of your own ends in .toml)",
            code="unknown-recipe",
        )
    return Experiment.parse(tomllib.loads(file_by_name[name].read_text(encoding="utf-8")), where=f"recipe {name}")


def _files() -> Iterator[tuple[str, Traversable]]:
    """Yield every recipe's name and file, in this folder and one folder down."""
    for file in files(__package__).iterdir():
        if file.is_dir():
            yield from (
                (f"{file.name}/{f.name.removesuffix(_END)}", f) for f in file.iterdir() if f.name.endswith(_END)
            )
        elif file.name.endswith(_END):
            yield file.name.removesuffix(_END), file
