"""Shadow runs for membership attacks: the same plan again and again on random halves of the same rows.

Each is a run of its own in RUN/attacks, by the same sites; another seed deals the sites' rows into training and other rows
anew, so that every row is trained on in about half of them. What is finished is not run again. The rows lie beside the
shadow runs while these are made, and are removed afterwards. Shadow models have seen the same patients as the model
under attack: keep them where the data are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array, make_folder
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.data.corruption.attacks import DATA_KINDS
from grandrounds.data.encoding import class_numbers
from grandrounds.data.images import ImageSet
from grandrounds.data.row_files import write_bundle
from grandrounds.data.table import Table
from grandrounds.methods.baselines import POOL
from grandrounds.methods.weigh import EXPLANATIONS
from grandrounds.privacy.attacks.membership import confidence
from grandrounds.runs.federation import Consortium, assemble
from grandrounds.runs.model import TrainedModel
from grandrounds.site.evaluate import score
from grandrounds.site.tasks import task_of_class

if TYPE_CHECKING:
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows


@dataclass(frozen=True, eq=False)
class Target:
    """Rows (n,) of a run's data, the site of each, which were trained on, and the confidence of the model in use."""

    rows: Array
    site: Array  # (n,) object of str
    member: Array  # (n,) bool
    confidence: Array
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class AttackedRows:
    """Rows (n,) of a run's data, the site of each, and which were trained on."""

    rows: Array
    site: Array  # (n,) object of str
    member: Array  # (n,) bool
    notes: tuple[str, ...]


def find_target(run: Run, run_rows: RunRows) -> Target:
    """Collect the rows to attack, with the model's confidence in each.

    Raises:
        BadInput: No site has both training rows and others.
    """
    chosen = select_rows(run, run_rows)
    values = confidences(run, run_rows.consortium, chosen.rows, chosen.site)
    return Target(chosen.rows, chosen.site, chosen.member, values, chosen.notes)


def select_rows(run: Run, run_rows: RunRows) -> AttackedRows:
    """Collect training rows and, of the same sites, rows that were not trained on: test rows, or else validation rows.

    Raises:
        BadInput: No site has both.
    """
    part, notes = _nonmember_part(run, run_rows)
    rows, sites, member = [], [], []
    stack, pooled = run_rows.consortium.stack, POOL in run_rows.consortium.stack.names
    trained = participating_sites(run)
    idle = [
        name for name, parts in zip(stack.names, stack.rows, strict=True) if len(parts.train) and name not in trained
    ]
    if idle:
        shown = ", ".join(idle[:5]) + (f" and {len(idle) - 5} more" if len(idle) > 5 else "")
        notes = (*notes, f"without {shown}: they never took part in training, so none of their rows is a member")
    for name, parts in zip(stack.names, stack.rows, strict=True):
        unseen = getattr(parts, part)
        if pooled or (len(parts.train) and len(unseen) and name in trained):
            for chosen, trained_on in ((parts.train, True), (unseen, False)):
                rows.append(chosen)
                sites.append(np.full(len(chosen), name, object))
                member.append(np.full(len(chosen), trained_on))
    if len(rows) < 1 or min(np.concatenate(member).sum(), (~np.concatenate(member)).sum()) < 2:
        raise BadInput(
            f"{run.folder} has no site with both training rows and rows that were not trained on, and an attack "
            "compares the two: run it with split.test above 0",
            code="no-nonmembers",
        )
    return AttackedRows(np.concatenate(rows), np.concatenate(sites), np.concatenate(member), notes)


def participating_sites(run: Run) -> set[str]:
    """Find the sites whose training rows a model of the run has seen: those that answered in some round, or were fine-tuned."""
    answered = {
        site
        for record in run.rounds
        for site in record["decision"]["asked"]
        if site not in record["decision"]["missing"]
    }
    return answered | (set(run.summary["models"]) if run.summary["finetuned"] else set())


def confidences(run: Run, consortium: Consortium, rows: Array, site: Array) -> Array:
    """Compute the log-odds (n,) that the model in use at each row's site gives to the row's own class."""
    stack = consortium.stack
    task = dict(zip(stack.names, stack.tasks or ("",) * len(stack.names), strict=True))
    files: Mapping[str, str] = run.summary["models"]
    ways = {name: (files.get(name), task[name]) for name in dict.fromkeys(site.tolist())}
    out = np.empty(len(rows))
    for way in dict.fromkeys(ways.values()):
        mine = np.isin(site.astype(str), [name for name, other in ways.items() if other == way])
        model = run.model if way[0] is None else run.model_at(way[0])
        out[mine] = _confidence(model, consortium, rows[mine], way[1])
    return out


def _confidence(model: TrainedModel, consortium: Consortium, rows: Array, task: str) -> Array:
    encoding, data = model.encoding, consortium.data.take(rows)
    inputs: Array = encoding.encode(data, model.theta.dtype)  # type: ignore[arg-type]
    tasks = list(model.spec.get("tasks", []))
    outputs = [c for c, word in enumerate(encoding.classes) if task_of_class(word, tasks) == task]
    logits = score(model.net, model.theta, inputs)
    if len(outputs) < len(encoding.classes):
        logits = logits[:, outputs]
    return confidence(logits, class_numbers(data.label, [encoding.classes[c] for c in outputs], where=data.name))


def _nonmember_part(run: Run, run_rows: RunRows) -> tuple[str, tuple[str, ...]]:
    """Choose the part of the rows that was not trained on, with notes on what may colour the comparison."""
    split, stack = run_rows.plan.split, run_rows.consortium.stack
    notes = []
    if split.scheme == "within" and any(len(r.test) for r in stack.rows):
        part = "test"
        if split.by == "time":
            notes.append(
                "test rows are later than training rows (split.by = 'time'): changes over time can look like membership"
            )
    else:
        part = "val"
        why = "there are no test rows" if split.scheme == "within" else "test rows are other hospitals' (split.scheme)"
        notes.append(f"{why}, so the non-members are validation rows")
    if not any(len(getattr(r, part)) for r in stack.rows):
        raise BadInput(
            f"{run.folder} kept no test or validation rows at the sites that train, so there are no "
            "non-members to compare with: run it with split.test or split.val above 0",
            code="no-nonmembers",
        )
    if any(attack.kind in DATA_KINDS for attack in stack.attacks.values()):
        notes.append(
            "some sites attacked their own training rows ([[attacks]]): those rows are as the attackers changed them"
        )
    return part, tuple(notes)


FOLDER = "attacks"
"""Folder of shadow runs in a run folder."""

FEWEST = 4
"""Shadow runs under which no row has both kinds often enough."""

_HALF = 0.5
_COLUMN = "site of the run"
_ALL = "all rows"
"""The one site of shadow runs of a pooled run: the site of a row does not matter there."""

Ended = Callable[[str], None]
PlainPlan = dict[str, Any]
"""A plan as it is in JSON, of which a shadow run's is made."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """The answers of S shadow models: confidences (S, n) in the target's rows, and which model saw which row (S, n)."""

    confidence: Array
    inside: Array
    failed: Mapping[str, str]  # by shadow run: why it did not end


def run_shadows(run: Run, run_rows: RunRows, target: Target, *, count: int, jobs: int, ended: Ended) -> Shadows:
    """Train shadow models and query each about the target's rows.

    Args:
        run: The run under attack.
        run_rows: Its rows.
        target: The rows to query.
        count: How many shadow runs to make; finished ones are not run again.
        jobs: How many run at a time.
        ended: Called with the name of each that ended.

    Raises:
        BadInput: Shadow runs are not offered for this plan, or those there are of another one.
        RunFailed: Too few shadow runs ended.
    """
    from grandrounds.runs.batch import run_all

    _check_offered(run_rows.plan, count)
    run.refuse_code()
    rows, shadow_data = _shadow_rows(run_rows)
    folder = run.folder / FOLDER
    bundle = folder.absolute() / "given.rows.safetensors"
    plans = {f"shadow-{k + 1:03}": _shadow_plan(run, run_rows, bundle, k) for k in range(count)}
    _check_existing(folder, plans)
    failed: dict[str, str] = {}

    def broken(name: str, error: RunFailed) -> None:
        failed[name] = str(error)
        ended(name)

    try:
        if not all((folder / name / "summary.json").exists() for name in plans):
            _write(shadow_data, bundle)
        finished = run_all(plans, folder, jobs=jobs, progress=lambda name, _: ended(name), failed=broken)
    finally:
        bundle.unlink(missing_ok=True)
    if len(finished) < FEWEST:
        raise RunFailed(
            f"only {len(finished)} of {count} shadow runs ended; {next(iter(failed.values()))}", code="too-few-shadows"
        )
    places = np.searchsorted(rows, target.rows)
    answers = [_query_shadow(shadow, shadow_data, places) for shadow in finished]
    return Shadows(np.stack([c for c, _ in answers]), np.stack([i for _, i in answers]), failed)


def _check_offered(plan: Plan, count: int) -> None:
    if count < FEWEST:
        raise BadInput(
            f"--shadows {count}: give at least {FEWEST}, so that rows are trained on in some and not in others",
            code="too-few-shadows",
        )
    if plan.tasks.plain():
        raise BadInput(
            "shadow runs of sites with different tasks are not offered: leave --shadows out", code="several-tasks"
        )
    if plan.plain()["attacks"]:
        raise BadInput(
            "shadow runs of a study of [[attacks]] are not offered: leave --shadows out", code="shadows-not-offered"
        )


def _shadow_rows(run_rows: RunRows) -> tuple[Array, Table | ImageSet]:
    """Return the rows (n,), sorted, that shadow runs deal anew, and their data with the site of each.

    Rows of hospitals that only test stay out. Reference rows take part, since each run sets its own aside; who would
    hold them is dealt by lot.
    """
    stack = run_rows.consortium.stack
    site = np.full(len(run_rows.consortium.data), None, object)
    for name, parts in zip(stack.names, stack.rows, strict=True):
        if POOL in stack.names or len(parts.train):
            for part in (
                (parts.train, parts.val)
                if run_rows.plan.split.scheme != "within"
                else (parts.train, parts.val, parts.test)
            ):
                site[part] = _ALL if POOL in stack.names else name
    names = sorted({s for s in site.tolist() if s is not None})
    lot = generator(run_rows.plan.seed, purpose="shadow references")
    for reference in run_rows.consortium.reference.values():
        site[reference.rows] = lot.permutation(np.resize(np.array(names, object), len(reference.rows)))
    rows = np.flatnonzero(site != None)  # noqa: E711
    data = run_rows.consortium.data.take(rows)
    if isinstance(data, ImageSet):
        return rows, replace(data, site=site[rows])
    return rows, Table({**data.table.columns, _COLUMN: site[rows]}, data.table.source)


def _write(shadow_data: Table | ImageSet, bundle: Path) -> None:
    try:
        bundle.parent.mkdir(mode=0o700, exist_ok=True)
        make_folder(bundle.parent)
        write_bundle(shadow_data, bundle.with_name("given.json"))
    except OSError as e:
        raise BadInput(
            f"cannot write to {bundle.parent}: {e.strerror or e}; shadow runs need room there", code="cannot-write"
        ) from None


def _shadow_plan(run: Run, run_rows: RunRows, bundle: Path, number: int) -> PlainPlan:
    """Write the run's own plan for the same sites' rows, half of them in training, with another seed."""
    plan: PlainPlan = json.loads(json.dumps(run.plan))
    data, split, seed = plan["data"], plan["split"], plan["seed"]
    plan["seed"] = int(generator(seed, purpose="shadow", round=number).integers(2**31))
    table = not isinstance(run_rows.consortium.data, ImageSet)
    if table:
        data["drop"] = [*data["drop"], *([data["site"]] if data["site"] is not None else [])]
        data["site"] = _COLUMN
    data |= {"name": None, "table": str(bundle), "query": None, "pictures": None, "size": None, "masks": None}
    data |= {"sha256": None, "shift": {**data["shift"], "strength": 0.0}, "shortcut": {**data["shortcut"], "p": 0.0}}
    val = min(split["val"], _HALF / 2)
    split_unit = split["by"] if split["by"] != "time" else "row" if data["patient"] is None else "patient"
    share = 1 - split["val"] - (split["test"] if split["scheme"] == "within" else 0)
    split |= {"partition": "column", "scheme": "within", "official": False, "by": split_unit, "min_rows": 1}
    split |= {"val": val, "test": 1 - _HALF - val, "seed": None, "without": [], "keep_setup": False}
    fewest = Plan(plan).privacy.min_rows
    name = "fewest_rows" if "fewest_rows" in plan["privacy"] else "min_rows"  # as the plan was written
    plan["privacy"][name] = max(1, int(fewest * min(1.0, _HALF / share)))  # whoever took part still does
    plan["evaluation"] |= {"subgroup": None, "subgroups": [], "mitigation": "none", "metrics": [], "threshold": "half"}
    if not plan["train"]["early_stop"]:
        plan["evaluation"]["every"] = max(1, plan["method"]["rounds"])
    plan["explain"]["every"] = 0
    if plan["method"]["weigh"]["rule"] != EXPLANATIONS:
        plan["explain"]["sketch"] = "none"
    return plan


def _check_existing(folder: Path, plans: Mapping[str, PlainPlan]) -> None:
    """Refuse shadow runs that were begun for another model, or elsewhere, before anything is run."""
    from grandrounds.engine.checkpoint import Checkpoint

    for name, plan in plans.items():
        if (folder / name / "checkpoint" / "plan.json").exists():
            theirs = Checkpoint(folder / name / "checkpoint").plan()
            if _comparable(theirs) != _comparable(plan):
                raise BadInput(
                    f"{folder / name} is a shadow of another plan, or the run was moved since: "
                    f"remove {folder} and attack again",
                    code="other-run",
                )


def _comparable(plan: PlainPlan) -> PlainPlan:
    """Return a plan without the facts that a run adds about its data when it begins."""
    return {**plan, "data": {k: v for k, v in plan["data"].items() if k not in ("kinds", "sha256")}, "code": None}


def _query_shadow(shadow: Run, shadow_data: Table | ImageSet, places: Array) -> tuple[Array, Array]:
    """Return a shadow model's confidence in the rows at `places`, and which of them it was trained on."""
    consortium = assemble(Plan(shadow.plan), shadow_data)
    inside = np.zeros(len(shadow_data), bool)
    trained = participating_sites(shadow)
    for name, parts in zip(consortium.stack.names, consortium.stack.rows, strict=True):
        inside[parts.train] = name in trained
    site = shadow_data.site if isinstance(shadow_data, ImageSet) else shadow_data.columns[_COLUMN]
    assert site is not None
    return confidences(shadow, consortium, places, site[places]), inside[places]
