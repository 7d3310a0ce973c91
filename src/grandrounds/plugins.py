"""Code of one's own, named by import path in an experiment: `model.name = "mypkg.nets:MyNet"`.

Only the experiment's author names such code, and only the machine the experiment is run on imports it. What comes over
a wire never does: a site builds a model of its own code only if it was started so.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.errors import BadInput, GrandRoundsError, RunFailed, nearest

if TYPE_CHECKING:
    from grandrounds.metrics import Tally

_SCRIPT = "__main__"
_MOST = 300  # characters of an error's own words


def is_path(name: str) -> bool:
    """Whether a name is an import path, `package.module:name`, and not a name of this package's own."""
    module, colon, thing = name.partition(":")
    words = [*module.split("."), *thing.split(".")]
    return bool(colon) and all(w.isidentifier() for w in words)


def last_word(name: str) -> str:
    """What a name is called where a path cannot stand, in file names and labels: the last word of an import path."""
    return name.replace(":", ".").rpartition(".")[2] if is_path(name) else name


def resolve(path: str, *, key: str) -> Any:
    """What an import path names; modules beside the user (the current folder) are found too."""
    module, _, thing = path.partition(":")
    try:
        found = _imported(module)
    except ImportError as e:
        raise BadInput(f"{key} is '{path}': cannot import {module} ({e}); is it installed, or in this folder?") from e
    except Exception as e:
        raise BadInput(f"{key} is '{path}': cannot import {module} ({said(e, path)})") from e
    for name in thing.split("."):
        if not hasattr(found, name):
            if module == _SCRIPT:
                raise BadInput(
                    f"{key} is '{path}': it was defined in a script and is known only while that script runs; "
                    "define it in a module and name that"
                )
            known = [n for n in vars(found) if not n.startswith("_")]
            raise BadInput(f"{key} is '{path}': {module} has no '{thing}'; {nearest(name, known)}")
        found = getattr(found, name)
    return found


def _imported(module: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that no file here stands in for an installed module
    return importlib.import_module(module)


def call(path: str, *given: Any, key: str, **named: Any) -> Any:
    """What the function or class of an import path gives; where it fails, the sentence says where."""
    work = resolve(path, key=key)
    if not callable(work):
        raise BadInput(f"{key} is '{path}': that is of type {type(work).__name__}, not a function or class")
    try:
        return work(*given, **named)
    except GrandRoundsError:
        raise
    except Exception as e:
        raise BadInput(f"{key} is '{path}': it failed with {said(e, path)}") from e


def failure(error: Exception, names: Iterable[str]) -> str:
    """A failure inside code that these names name, in words; "" where it arose elsewhere."""
    for name in names:
        if is_path(name) and _frames(error, name):
            return f"'{name}' failed with {said(error, name)}"
    return ""


def said(error: Exception, path: str) -> str:
    """An error in one line, with the last place in the path's module that it passed through."""
    words = " ".join(str(error).split())
    words = words if len(words) <= _MOST else words[:_MOST] + " ..."
    at = _frames(error, path)
    where = f", {Path(at[-1][0]).name} line {at[-1][1]}" if at else ""
    return f"{type(error).__name__}: {words}{where}"


def _frames(error: Exception, path: str) -> list[tuple[str, int]]:
    walked, module = traceback.walk_tb(error.__traceback__), path.partition(":")[0]
    return [(f.f_code.co_filename, line) for f, line in walked if f.f_globals.get("__name__") == module]


def path_of(thing: Any) -> str:
    """The import path of a class or function, so that an experiment can name it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or name is None or "<" in name:
        what = name or f"an object of type {type(thing).__name__}"
        raise ValueError(f"{what} has no import path: define a class or function at the top of a module and give that")
    return f"{module}:{name}"


def named(value: Any) -> Any:
    """A class or function given in place of its name becomes its import path; in a list, each."""
    if isinstance(value, (list, tuple)):
        return [named(v) for v in value]
    return path_of(value) if callable(value) else value


def metrics(paths: Sequence[str]) -> dict[str, Callable[[Tally], float]]:
    """Metrics of the experiment's own, by the name of their function."""
    from grandrounds.metrics import DESCRIPTIONS

    out: dict[str, Callable[[Tally], float]] = {}
    for path in paths:
        name = last_word(path)
        if name in DESCRIPTIONS or name in out:
            raise BadInput(f"evaluation.metrics names '{path}', but there is a metric '{name}' already: rename it")
        if not callable(resolve(path, key="evaluation.metrics")):
            raise BadInput(f"evaluation.metrics names '{path}', which is not a function")
        out[name] = _metric(path)
    return out


def _metric(path: str) -> Callable[[Tally], float]:
    """The metric, checked each time: a figure that is no number must not reach a record."""

    def measure(tally: Tally) -> float:
        try:
            value = call(path, tally, key="evaluation.metrics")
        except BadInput as e:
            raise RunFailed(str(e)) from e.__cause__
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise RunFailed(
                f"evaluation.metrics names '{path}', which gave a value of type {type(value).__name__}: return one number"
            )
        return float(value)

    return measure
