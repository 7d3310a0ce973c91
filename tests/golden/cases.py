"""Cases of the corpus: plans, recipes, the life of a run, records and scans, hospitals behind messages, bad input, help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden import hospitals, inputs
from tests.golden.bad_input import BAD_INPUT
from tests.golden.commands import COMMANDS
from tests.golden.given import write_patients, write_tables
from tests.golden.plans import read_plans
from tests.golden.running import Case, Step

QUICK = ("--set", "method.rounds=2", "-q", "--out", "run")
SHOWN: tuple[Step, ...] = (("show", "run"), ("show", "run", "--json"), ("audit", "verify", "run"))

RECIPES: dict[str, tuple[str, ...]] = {
    "breast-cancer": (),
    "digits": ("train.steps=4",),
    "fedxchain": (),
    "fedxchain/printed": (),
    "fedxchain/secure": (),
    "heart": (),
    "heart-unseen": ("split.fold=2",),
    "sse-agg": (),
    "sse-agg/defence": (),
    "sse-agg/digits": ("train.steps=4",),
    "sse-agg/drift": (),
    "sse-agg/printed": ("train.steps=4",),
    "veil": ("split.sites=20",),
    "veil/heart": (),
    "veil/printed": ("split.sites=20",),
    "xfed": ("train.steps=2",),
    "xfed/printed": ("train.steps=2",),
    "fl-xai/printed": ("train.steps=2",),
}
"""Recipes on data in the package, with settings that make them small."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "guard": ("personal.guard=true", "split.val=0.2"),
    "no-guard": ("personal.guard=false",),
    "fine-tuned": ("train.finetune=1", "evaluation.calibrate=platt"),
    "own-parts": ("personal.guard=true", "personal.part=recalibration", "split.val=0.2"),
    "temperature": ("evaluation.calibrate=temperature",),
    "explained-every-round": ("explain.sketch=shap", "explain.every=1"),
    "permutation-at-sites": ("explain.sketch=permutation", "explain.at=site"),
    "groups": ("evaluation.subgroups=['age','sex']", "evaluation.mitigation=thresholds", "evaluation.threshold=youden"),
    "krum": ("method.robust=krum",),
    "trimmed-mean": ("method.robust=trimmed-mean",),
    "selected-by-loss": ("method.select.rule=loss", "method.select.fraction=0.6"),
    "clusters-of-sites": ("method.cohorts=2",),
    "attacked": ("attacks=[{kind='label-flip',count=1}]",),
    "faults": ("engine.faults.drop=0.2", "engine.min_sites=1", "method.rounds=4"),
    "double": ("engine.precision=float64",),
    "wire": ("engine.wire=true",),
    "workers": ("engine.workers=2",),
    "local-models": ("evaluation.local_models=crossed",),
    "anchored": ("method.stability=anchor", "reference.anchor.rows=20"),
    "proximal": ("method.stability=proximal",),
}
"""Settings of `rounds run heart`, beside the plans."""

TEST = {"plan fedavg binary logistic plain none", "option guard", "bad input of settings", "recipe fedxchain/printed"}
"""Cases in `make test`: seconds, and with values that do not hang on a processor."""

COMMIT = {
    *TEST, "recipe sse-agg", "recipe veil/heart", "recipe heart", "option own-parts", "option faults", "life of a run",
    "regressions", "keepers", "keepers with secure sums", "help", "tables of choices", "plans of recipes",
}  # fmt: skip
"""Cases that are checked before a commit, besides every fourth plan."""


@cache
def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    return {case.name: case for case in _cases()}


def find_case(name: str) -> Case:
    return all_cases()[name]


def _cases() -> Iterator[Case]:
    for k, (name, settings) in enumerate(read_plans().items()):
        case = f"plan {name}"
        steps = (partial_named("run_plan", run_plan, settings), *SHOWN)
        yield Case(case, steps, given=write_tables, part=_part(case, every=k % 4 == 0))
    for recipe, settings in RECIPES.items():
        case = f"recipe {recipe}"
        sets = [part for setting in settings for part in ("--set", setting)]
        yield Case(case, (("run", recipe, *QUICK, *sets), *SHOWN), part=_part(case))
    for option, settings in OPTIONS.items():
        case = f"option {option}"
        sets = [part for setting in settings for part in ("--set", setting)]
        yield Case(case, (("run", "heart", *QUICK, *sets), *SHOWN), part=_part(case))
    for name, steps in COMMANDS.items():
        yield Case(name, steps, given=write_patients, part=_part(name))
    for name, (given, steps) in inputs.SOURCES.items():
        yield Case(name, steps, given=given, part=_part(name))
    for name, step in hospitals.STEPS.items():
        yield Case(name, (step,), part=_part(name))
    for name, steps in BAD_INPUT.items():
        yield Case(f"bad input of {name}", steps, given=write_tables, part=_part(f"bad input of {name}"), codes=True)


def _part(name: str, *, every: bool = False) -> str:
    return "test" if name in TEST else "commit" if name in COMMIT or every else "all"


def run_plan(folder: Path, settings: dict[str, Any]) -> Any:
    """Run an experiment from its settings; the plan that they resolve to."""
    import grandrounds as gr

    experiment = gr.Experiment.parse(settings)
    gr.run(experiment, out=folder / "run", progress=False)
    return json.loads(json.dumps(experiment.plan()))


def partial_named(name: str, function: Any, *arguments: Any) -> Step:
    """A step from a function with further arguments, under a name."""

    def step(folder: Path) -> Any:
        return function(folder, *arguments)

    step.__name__ = name
    return step
