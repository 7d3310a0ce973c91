"""The watched model of a run of method 'watch', the new patients of a simulation, and the plan of a watch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.watch.method.bins import agree_edges
from grandrounds.capabilities.watch.method.site import parameters_digest
from grandrounds.core import sources
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.sources import AT_SITES
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.data.new_patients import divide_by_site, plant_shifts, read_alarms, read_new_patients
from grandrounds.data.readers import read_table, table_format
from grandrounds.explain.percentiles import Population, Spread
from grandrounds.runs.setup import EarlierModel
from grandrounds.site.stack import Stack

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

MODEL, PERCENTILES = "model.safetensors", "percentiles.json"


def read_watched(plan: Plan) -> EarlierModel:
    """Read the model that a plan watches.

    Args:
        plan: A plan of method 'watch'.

    Raises:
        BadInput: The plan names no run, or the model there is not the one of its hash.
    """
    watch = plan.method.watch
    if not watch.run:
        raise BadInput(
            "method 'watch' needs the run whose model it watches: make the plan with `rounds watch RUN --plan FILE`, or run "
            "`rounds watch RUN --simulate`",
            code="no-watched-run",
        )
    sources.check(sources.WATCHED_RUN, watch.run)
    folder = Path(str(watch.run))
    model = read_model(folder)
    if parameters_digest(model.theta) != str(watch.model):
        raise BadInput(
            f"{folder / MODEL} is not the model that the plan names (method.watch.model): it was changed, or the plan is of "
            "another run",
            code="other-model",
        )
    return model


def read_model(folder: Path) -> EarlierModel:
    """Read the common model of a run folder.

    Args:
        folder: The folder of a finished run.

    Raises:
        BadInput: It has no model, or one of images.
    """
    from grandrounds.runs.model import TrainedModel

    if not (folder / MODEL).is_file():
        raise BadInput(f"{folder} has no {MODEL}: give the folder of a finished run with a model", code="no-model")
    trained = TrainedModel.load(folder / MODEL)
    if not isinstance(trained.encoding, Encoding):
        raise BadInput(
            f"{folder} has a model of images, and a watch needs the columns of a table", code="needs-table"
        )
    encoding = replace(trained.encoding, subgroups=(), groups=())
    spec = {**{n: v for n, v in trained.spec.items() if n != "personal"}, "keeps": "none"}
    return EarlierModel(spec, trained.theta, encoding, _background(encoding, read_population(folder)))


def read_population(folder: Path) -> Population | None:
    """Read the distribution of the training patients of a run; None where it has none."""
    file = folder / PERCENTILES
    return Population.from_dict(json.loads(file.read_text()), where=file) if file.is_file() else None


def _background(encoding: Encoding, population: Population | None) -> Array:
    """Return the mean training patient as inputs; the centre of every scale where the run does not have it."""
    if population is None or not all(isinstance(population.numeric.get(r.name), Spread) for r in encoding.numeric):
        return np.zeros(len(encoding.features))
    return population.mean_inputs(encoding)


def add_new_patients(plan: Plan, stack: Stack) -> Stack:
    """Return the sites of a simulation with the new patients that a plan of method 'watch' names.

    Args:
        plan: The plan.
        stack: The sites.

    Raises:
        BadInput: The table of new patients does not fit the run.
    """
    if not isinstance(stack.data, Dataset):
        return stack
    watch = plan.method.watch
    sources.check(sources.WATCHED_RUN, watch.run)
    sources.check(sources.WATCHED_TABLE, watch.table)
    new = tuple(stack.new_patients(k) for k in range(len(stack.names)))
    if watch.table:
        table = read_table(watch.table, missing=tuple(plan.data.missing), form=replace(table_format(plan.data), sheet=None))
        fresh = read_new_patients(table, stack.data.schema)
        new = divide_by_site(fresh, stack.names, column=str(stack.data.schema.site or "site"))
    if not any(len(d) and len(rows.train) for d, rows in zip(new, stack.rows, strict=True)):
        raise BadInput(
            "no training site has new patients: the split of the watched run leaves it no test rows; give new patients (--table)",
            code="no-new-patients",
        )
    alarms = tuple(read_alarms(Path(str(watch.run)) / "at_sites" / name / "watch") for name in stack.names)
    return replace(stack, new=plant_shifts(new, stack.names, tuple(watch.shifts)), alarms=alarms)


def watch_values(
    run: Run,
    *,
    secure: bool = False,
    epsilon: float | None = None,
    level: float = 0.01,
    alarms: bool = False,
    table: str | None = None,
    shifts: Sequence[str] = (),
) -> dict[str, Any]:
    """Build the experiment of a watch: the data and the split of the watched run, its model by its hash, and agreed bins.

    Args:
        run: The finished run whose model is watched.
        secure: Use secure aggregation.
        epsilon: Privacy budget of the watch; None: no noise.
        level: Chance that a site without a change reports one.
        alarms: A site's own watch decides what moved there, where it has one.
        table: New patients of a simulation, with the site column of the run; None: the test rows.
        shifts: Changes planted into new patients of a simulation.

    Returns:
        The values of an experiment.

    Raises:
        BadInput: The run is not finished, or has no common model of a table.
    """
    run.refuse_withdrawn()
    if run.summary.get("models"):
        raise BadInput(
            f"{run.folder} has a model for each site: watch each at its site, with `rounds watch {run.folder} --table FILE`",
            code="no-common-model",
        )
    model = read_model(run.folder)
    plan = run.plan
    at_sites = plan["data"]["table"] == AT_SITES
    if at_sites and (table or shifts):
        raise BadInput(
            "hospitals name their new patients themselves ([watch] table in site.toml): leave out the table and the changes",
            code="rows-at-sites",
        )
    engine = {name: plan["engine"][name] for name in ("precision", "kernel", "device") if name in plan["engine"]}
    watch = {
        "run": str(run.folder.resolve()),
        "model": parameters_digest(model.theta),
        "edges": agree_edges(model.encoding, read_population(run.folder)),
        "level": level,
        **({"moved": "alarms"} if alarms else {}),
        **({"table": str(Path(table).resolve()) if Path(table).exists() else table} if table else {}),
        **({"shifts": list(shifts)} if shifts else {}),
    }
    return {
        "name": f"{plan['name']}-watch",
        "seed": plan["seed"],
        "data": {k: v for k, v in plan["data"].items() if not (at_sites and k == "sha256")},
        "split": {k: v for k, v in plan["split"].items() if k != "keep_setup"},
        "model": plan["model"],
        "engine": engine,
        "explain": {"sketch": "none"},
        "method": {"name": "watch", "rounds": 1, "watch": watch},
        "privacy": {"secure": secure, **({} if epsilon is None else {"epsilon": epsilon})},
    }
