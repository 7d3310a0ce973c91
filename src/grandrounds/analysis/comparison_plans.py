"""Plans of the runs that a comparison needs: every method or model with every seed, and the reference runs."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.analysis.comparison_page import comparison_page
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import AUTO, CLASSIFICATION, SURVIVAL
from grandrounds.core.plan_types import DataSettings, Plan
from grandrounds.core.plugins import last_word
from grandrounds.data.loading import read_data
from grandrounds.data.outcome import settle_task
from grandrounds.data.table import Table
from grandrounds.experiment.checks.explain import needs_reference_rows
from grandrounds.experiment.sections import ReferenceSet
from grandrounds.methods import is_exact
from grandrounds.models import COLUMN_MODELS, TABLES

if TYPE_CHECKING:
    from grandrounds.analysis.compare import Comparison
    from grandrounds.experiment.experiment import Experiment

FILE = "comparison.json"
Plans = dict[str, dict[str, Any]]


def comparison_plans(
    base: Experiment, methods: Sequence[str], *, seeds: int, vary: Sequence[str] = (), references: bool = True
) -> tuple[Plans, dict[str, str]]:
    """Plan the runs that compare methods on one experiment.

    Args:
        base: The experiment that every run starts from.
        methods: Names or import paths of methods.
        seeds: Number of seeds; seeds 0 to N-1 are run.
        vary: Further settings of which every value is run: `split.fold=0,1,2`.
        references: Also plan local training at each site, and training on pooled rows.

    Returns:
        The plan of each run by its folder name; and the arm of each reference run by its folder name.

    Raises:
        BadInput: A value of `vary` is not `section.key=value,value`, or a setting is wrong.
    """
    axes = _axes(seeds, vary)
    base = _with_reference_rows(base, methods)
    plans, _ = _plans(base, {m: [f"method.name={m}"] for m in methods}, axes)
    reference_plans, labels = _plans(base, _references(base, methods) if references else {}, axes)
    return plans | reference_plans, labels


def model_plans(
    base: Experiment, models: Sequence[str], *, seeds: int, vary: Sequence[str] = (), references: bool = True
) -> tuple[Plans, dict[str, str]]:
    """Plan the runs that compare models on one experiment: each is trained across the hospitals, by the method that fits it.

    Additive models, trees and cards are fitted by the method of the same name, a forest in one round, other models by the
    experiment's own method. 'lightgbm' and 'ebm' are trained on pooled rows, for comparison.

    Args:
        base: The experiment that every run starts from.
        models: Names or import paths of models; "all" stands for `usual_models`.
        seeds: Number of seeds; seeds 0 to N-1 are run.
        vary: Further settings of which every value is run: `split.fold=0,1,2`.
        references: Also plan LightGBM and an EBM on pooled rows, where they are installed and the outcome is a class.

    Returns:
        The plan of each run by its folder name, and the arm of each run by its folder name.

    Raises:
        BadInput: A model is unknown or does not fit the data, or a value of `vary` is wrong.
    """
    task = _task(base)
    names = list(dict.fromkeys(n for m in models for n in (usual_models(task) if m == "all" else [m])))
    if references and task == CLASSIFICATION:
        packages = {"lightgbm": "lightgbm", "ebm": "interpret"}
        names += [model for model, package in packages.items() if model not in names and find_spec(package)]
    return _plans(base, {_arm_name(n): _model_settings(base, n) for n in names}, _axes(seeds, vary))


def usual_models(task: str) -> list[str]:
    """List the models of a task that train across hospitals, simple ones first."""
    if task == CLASSIFICATION:
        return ["logistic", "gam", "trees", "card", "forest", "mlp"]
    return ["linear", *([] if task == SURVIVAL else ["gam"]), "trees", "mlp"]


_PLAIN = ["method.select=all", "method.weigh=data_size", "method.robust=none", "method.stability=none"]
_COMMON = ["personal.part=none", "personal.guard=false"]
"""Settings of runs in which no site has a part of its own."""

_NO_STEPS = [
    "train.keep_optimizer=false", "train.finetune=0", "train.early_stop=0", "train.noise=0", "train.class_weights=none",
    "train.augment=none", "engine.kernel=auto",
]  # fmt: skip
"""Settings of models without training steps."""


def _arm_name(model: str) -> str:
    return f"pooled {model}" if model in POOLED_MODELS else model


def _model_settings(base: Experiment, model: str) -> list[str]:
    """Return the settings that train a model across hospitals, or on pooled rows if it has no other way."""
    named = [f"model.name={model}"]
    if model in POOLED_MODELS:
        return [*named, "method.name=pooled", *_PLAIN, "privacy.secure=false", *_COMMON, *_one_fit(model)]
    if model in COLUMN_MODELS:
        return [*named, *_PLAIN, *_NO_STEPS]  # the experiment takes the method of the same name, and its exchanges
    if model == "forest":
        fit_once = ["method.name=fedavg", "method.rounds=1", "evaluation.calibrate=none"]
        return [*named, *fit_once, *_PLAIN, *_NO_STEPS, *_COMMON]
    method = base.method.name
    is_other = is_exact(method) or method in ("pooled", "local")
    return [*named, *(["method.name=fedavg"] if is_other else [])]


def _one_fit(model: str) -> list[str]:
    """Return the settings that fit LightGBM (100 trees, its default) or an EBM once."""
    trees = ["model.trees=100"] if model == "lightgbm" else []
    return [*trees, "method.rounds=1", *_NO_STEPS, "evaluation.calibrate=none"]


POOLED_MODELS = ("lightgbm", "ebm")
"""Models that are trained on pooled rows alone, for comparison."""


def write_comparison(result: Comparison, folder: Path, *, virtual_seconds: float | None) -> Path:
    """Write comparison.json, with the places of its runs relative to the folder, and report.html.

    Args:
        result: The comparison.
        folder: The folder to write to.
        virtual_seconds: The simulated time of the comparison; None compares at the end.

    Returns:
        The path of the report.

    Raises:
        BadInput: The folder cannot be made, or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise BadInput(f"cannot make {folder}: {e.strerror or e}; choose another --out", code="cannot-write") from None
    where, report = folder.resolve(), folder / "report.html"
    places = {
        arm.label: {
            f"seed {s} fold {f}": os.path.relpath(run.folder.resolve(), where) for (s, f), run in arm.runs.items()
        }
        for arm in result.arms
    }
    record = {**result.to_dict(), "at": virtual_seconds, "runs": places}
    write_atomic(folder / FILE, json.dumps(record, indent=1).encode())
    page = comparison_page(record, {arm.label: list(arm.runs.values()) for arm in result.arms}, title=where.name)
    try:
        write_atomic(report, page.encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {report}: {e.strerror or e}", code="cannot-write") from None
    return report


def _axes(seeds: int, vary: Sequence[str]) -> list[list[str]]:
    """List the settings to run every combination of, besides the methods."""
    axes = [[f"seed={s}" for s in range(seeds)]]
    for item in vary:
        key, equals, values = item.partition("=")
        if not equals:
            raise BadInput(f"--vary {item}: write it as section.key=value,value", code="invalid-option")
        axes.append([f"{key}={v}" for v in values.split(",")])
    return axes


def _plans(
    base: Experiment, arms: Mapping[str, Sequence[str]], axes: Sequence[Sequence[str]]
) -> tuple[Plans, dict[str, str]]:
    """Plan every run by name, each arm's settings at every point of the axes; and label the arm of each."""
    plans: Plans = {}
    labels: dict[str, str] = {}
    for arm, point in itertools.product(arms, itertools.product(*axes)):
        words = [p.split("=", 1) for p in point]
        rest = [f"{k.split('.')[-1]}{last_word(v)}" for k, v in words]
        name = "-".join([last_word(arm), *rest]).replace("/", "_").replace(" ", "-")
        if name in plans:  # two import paths that end in the same word
            name = "-".join([arm.replace(":", "."), *rest]).replace("/", "_")
        plans[name] = base.with_settings([*arms[arm], *point]).plan()
        labels[name] = ", ".join([arm, *(p for p in point if not p.startswith(("seed=", "split.fold=")))])
    return plans, labels


def _with_reference_rows(base: Experiment, methods: Sequence[str]) -> Experiment:
    """Set reference rows aside in every arm, where a method needs them and the experiment has none.

    Arms without them would train and be tested on more patients, and could not be paired.
    """
    plans = (Plan(base.with_settings([f"method.name={method}"]).plan()) for method in methods)
    if base.reference or not any(needs_reference_rows(plan) for plan in plans):
        return base
    return base.with_settings([f"reference.rows.rows={ReferenceSet().rows}"])


def _task(base: Experiment) -> str:
    """Return the task of an experiment on a table: as set, or as the label of the user's own table tells."""
    data = base.data
    if data.task != AUTO or data.duration is not None:
        return SURVIVAL if data.duration is not None else data.task
    if data.table is None or data.label is None:  # the catalog's labels are classes
        return CLASSIFICATION
    rows = read_data(DataSettings(data.model_dump(mode="json")))
    return settle_task(rows, data.label) if isinstance(rows, Table) else CLASSIFICATION


def _references(base: Experiment, methods: Sequence[str]) -> dict[str, list[str]]:
    """List the lower and upper reference of a comparison by label, with settings; one that is compared anyway is left out."""
    plain = ["method.select=all", "method.weigh=data_size", "method.robust=none", "method.stability=none"]
    plain += ["privacy.secure=false", *_COMMON]  # a reference run aggregates nothing, and has no common model
    out = {"local": ["method.name=local", *plain], "pooled": ["method.name=pooled", *plain]}
    if base.tasks:
        del out["pooled"]  # sites with different tasks cannot pool their rows
    is_table = base.model.name in TABLES and not base.tasks
    if is_table and find_spec("lightgbm") and _task(base) == CLASSIFICATION:
        trees = ["model.name=lightgbm", "model.trees=100", "method.rounds=1", "train.keep_optimizer=false"]
        off = ["evaluation.calibrate=none", "train.finetune=0", "train.early_stop=0", "engine.kernel=auto"]
        out["pooled lightgbm"] = [*out["pooled"], *trees, *off]
    return {label: changes for label, changes in out.items() if label not in methods}
