"""Named experiments shipped with the package: `rounds run NAME`, `rounds list recipes`."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from grandrounds.errors import BadInput, nearest

if TYPE_CHECKING:
    from grandrounds.experiment import Experiment


def recipes() -> dict[str, str]:
    """Name -> first comment line of each recipe."""
    out = {}
    for file in sorted(files(__package__).iterdir(), key=lambda f: f.name.removesuffix(".toml")):
        if file.name.endswith(".toml"):
            first = file.read_text(encoding="utf-8").splitlines()[0]
            out[file.name.removesuffix(".toml")] = first.removeprefix("# ")
    return out


def load_recipe(name: str) -> Experiment:
    """The experiment of that name."""
    from grandrounds.experiment import Experiment

    known = recipes()
    if name not in known:
        raise BadInput(f"no recipe '{name}'; {nearest(name, known)} (a file of your own ends in .toml)")
    text = files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return Experiment.parse(tomllib.loads(text), where=f"recipe {name}")
