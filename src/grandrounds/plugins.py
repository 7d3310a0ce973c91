"""Code of one's own, named by import path in an experiment: `model.name = "mypkg.nets:MyNet"`.

Only the experiment's author names such code, and only the machine the experiment is run on imports it. What comes over
a wire never does: a site builds a model of its own code only if it was started so.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grandrounds.errors import BadInput, nearest
from grandrounds.metrics import Tally


def is_path(name: str) -> bool:
    """Whether a name is an import path, `package.module:name`, and not a name of this package's own."""
    module, colon, thing = name.partition(":")
    words = [*module.split("."), *thing.split(".")]
    return bool(colon) and all(w.isidentifier() for w in words)


def resolve(path: str, *, key: str) -> Any:
    """What an import path names; modules beside the user (the current folder) are found too."""
    module, _, thing = path.partition(":")
    try:
        found = _imported(module)
    except ImportError as e:
        raise BadInput(
            f"{key} is '{path}': cannot import {module} ({e}); is it installed, or in this folder?"
        ) from None
    for name in thing.split("."):
        if not hasattr(found, name):
            known = [n for n in vars(found) if not n.startswith("_")]
            raise BadInput(f"{key} is '{path}': {module} has no '{thing}'; {nearest(name, known)}")
        found = getattr(found, name)
    return found


def _imported(module: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(module)


def path_of(thing: Any) -> str:
    """The import path of a class or function, so that an experiment can name it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or name is None or "<" in name:
        raise ValueError(f"{thing!r} has no import path: define it at the top of a module and pass that")
    return f"{module}:{name}"


def metrics(paths: Sequence[str]) -> dict[str, Callable[[Tally], float]]:
    """Metrics of the experiment's own, by the name of their function."""
    return {path.rpartition(":")[2]: resolve(path, key="evaluation.metrics") for path in paths}
