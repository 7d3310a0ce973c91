"""Hints below an error: the flag or the `--set` that changes the settings which the error names."""

from __future__ import annotations

import re
import types
from typing import Any, Literal, Union, get_args, get_origin

from grandrounds.core.section import called, walk_settings
from grandrounds.experiment.experiment import Experiment

FLAGS = {
    "data.table": "--table FILE",
    "data.label": "--label COLUMN",
    "data.event": "--event CLASS",
    "data.site": "--site COLUMN",
    "data.patient": "--patient COLUMN",
    "data.drop": "--drop COLUMN,COLUMN",
    "evaluation.subgroups": "--subgroups COLUMN,COLUMN",
    "data.duration": "--time COLUMN",
    "data.features": "--features COLUMN,COLUMN",
    "data.query": "--query SELECT",
    "data.decimal": "--decimal MARK",
    "data.text_encoding": "--text-encoding NAME",
    "data.separator": "--separator MARK",
    "data.missing": "--missing WORD",
    "data.sheet": "--sheet NAME",
    "data.censored": "--censored value|half|missing",
    "seed": "--seed N",
}
"""Settings that have a flag of their own."""

CHANGED_FILES = ("code-not-run", "damaged-file")
"""Codes of errors about files that somebody changed: another setting mends none of them."""
_MOST = 3
"""Settings that a hint is given for."""
_CHOICES = 6
"""Values of a setting that a hint lists."""
_NAME = re.compile(r"(?<![\w./:-])[a-z][a-z_]*(?:\.[a-z][a-z_]*)+(?![\w/(:]|\.\w)")
_FLAG = re.compile(r"(?<![\w-])--[a-z]")


def setting_types() -> dict[str, Any]:
    """Return the type of every setting by its name, such as `split.min_rows`."""
    return dict(walk_settings(Experiment))


def option_settings(option: str, value: str) -> list[str]:
    """Return the `--set` of each setting that an unknown option names: `--set method.rounds=5` for `--rounds 5`.

    Args:
        option: The option, with its dashes.
        value: The word that follows it; "" shows the kind of value.
    """
    kinds, word = setting_types(), option.lstrip("-").replace("-", "_")
    found = [word] if word in kinds else called(word, Experiment)
    return [f"--set {name}={value or _placeholder(kinds[name])}" for name in found[:_MOST]]


def named_settings(sentence: str) -> list[str]:
    """List the settings that a sentence names, in its order, each once."""
    known = setting_types()
    return list(dict.fromkeys(name for name in _NAME.findall(sentence) if name in known))


def hint(sentence: str, flags: frozenset[str] = frozenset({"--set"})) -> str:
    """Return the line that tells how to change the settings in an error; "" where none is needed.

    Args:
        sentence: The error. An error that shows a flag or `--set` itself gets no hint.
        flags: The options that the command takes. Without `--set` among them, the hint names `rounds run`.

    Returns:
        One line, such as "change it with --set split.min_rows=N".
    """
    if _FLAG.search(sentence):
        return ""
    settings = named_settings(sentence)[:_MOST]
    if not settings:
        return ""
    kinds = setting_types()
    ways = [_way(name, kinds[name], flags) for name in settings]
    thing = "it" if len(ways) == 1 else "one of them"
    place = "" if "--set" in flags else " where the experiment is run (rounds run ...)"
    return f"change {thing} with {' or '.join(ways)}{place}"


def _way(name: str, kind: Any, flags: frozenset[str]) -> str:
    flag = FLAGS.get(name, "")
    if flag and (flag.split()[0] in flags or "--set" not in flags):
        return flag
    return f"--set {name}={_placeholder(kind)}"


def _placeholder(kind: Any) -> str:
    """Return a word for the values of a type: its choices, true|false, N for a whole number, X for a number."""
    origin = get_origin(kind)
    if origin is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        return "|".join([*choices[:_CHOICES], *(["..."] if len(choices) > _CHOICES else [])])
    if origin in (Union, types.UnionType):
        parts = [_placeholder(part) for part in get_args(kind) if part is not type(None)]
        return next((p for p in parts if p != "VALUE"), "VALUE")
    if hasattr(kind, "__metadata__"):  # Annotated
        return _placeholder(get_args(kind)[0])
    words = {bool: "true|false", int: "N", float: "X"}
    return words.get(kind, "VALUE")
