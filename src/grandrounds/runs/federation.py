"""Build the consortium of a simulation: read the rows, assign them to sites, set reference rows aside.

A deployed hospital reads its own file with the same schema and splits its rows by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from grandrounds.core import plugins
from grandrounds.core.arrays import Array
from grandrounds.core.capability import load
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.data.checks import check_sites
from grandrounds.data.corruption.attacks import ABSENT, assign_attacks, poison_rows
from grandrounds.data.corruption.protocol_shift import shift_sites
from grandrounds.data.corruption.shortcut import PlantedShortcut, inject, site_patches
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import check_known_sites, load_data, split_keys, split_site_rows
from grandrounds.data.outcome import group_outcome
from grandrounds.data.partition import partition, partition_by_column, plugin_partition
from grandrounds.data.reference_sets import Reference, draw_reference_sets, mark_references
from grandrounds.data.split import Rows, assign_roles
from grandrounds.data.subgroups import count_words, plan_bands
from grandrounds.data.table import Table
from grandrounds.methods import is_variant_of, method_class
from grandrounds.methods.baselines import POOL, POOLED
from grandrounds.models import IMAGES, TABLES
from grandrounds.privacy.events import protects_patients
from grandrounds.site.stack import Stack
from grandrounds.site.tasks import task_class, tasks_of


@dataclass(frozen=True)
class Consortium:
    """The data, the sites with their rows, the sites that train, and the reference sets."""

    data: Holdings
    stack: Stack
    training: tuple[str, ...]
    reference: dict[str, Reference]
    sha256: str
    planted: PlantedShortcut | None = None  # the shortcut in the sites' images; None without one


def assemble(plan: Plan, given: Table | ImageSet | None = None) -> Consortium:
    """Build the consortium that a plan describes.

    Args:
        plan: The plan.
        given: Rows in memory that replace those that the plan names.

    Raises:
        BadInput: The data do not fit the plan.
    """
    without = tuple(plan.split.without)
    by_column, keep_setup = plan.split.partition == "column", plan.split.keep_setup
    data, digest = load_data(plan.data, given, without=without if by_column and not keep_setup else ())
    _check_fit(plan.model.name, data)
    subgroups, bands = tuple(plan.evaluation.subgroups), plan_bands(plan.evaluation)
    count_words(data, subgroups, bands)  # refuses a column that is not there
    reference = draw_reference_sets(plan, data, barred=_held_out(plan, data))
    reference_rows = np.concatenate(
        [np.empty(0, np.int64), *(a for r in reference.values() for a in (r.rows, r.twins))]
    )
    pool = np.setdiff1d(np.arange(len(data)), reference_rows)
    official = pool[:0] if plan.data.part else _official(plan.split, data, pool)
    sites = _sites(plan.split, data, np.setdiff1d(pool, official), seed=plan.seed)
    if without and (keep_setup or not by_column):
        check_known_sites(without, sites)
        gone = np.concatenate([sites.pop(name) for name in without])
        if not keep_setup:
            data, reference, official, sites = _drop_rows(gone, data, reference, official, sites)
    subgroup = plan.evaluation.subgroup
    groups = None if subgroup is None else data.groups(subgroup)
    check_sites(sites, min_rows=plan.split.min_rows, reference=len(reference_rows))
    role = _roles(plan, tuple(sites))
    share = 0.0 if len(official) or plan.split.scheme != "within" else plan.split.test
    keys = split_keys(plan, data)
    rows = [split_site_rows(plan, data, name, mine, role[name], test=share, keys=keys) for name, mine in sites.items()]
    if len(official):
        rows = [Rows(r.train, r.val, np.sort(official[k :: len(rows)])) for k, r in enumerate(rows)]
    planted: PlantedShortcut | None = None
    if isinstance(data, ImageSet):
        data, planted = _as_taken(plan, data, dict(zip(sites, rows, strict=True)))
    elif plan.data.shortcut.p:
        raise BadInput(
            f"data.shortcut paints a patch on images, but {data.name} is a table: set data.shortcut.p = 0",
            code="shortcut-needs-images",
        )
    attacks = assign_attacks(plan.plain()["attacks"], {s: len(r.train) for s, r in zip(sites, rows, strict=True)}, data=data)
    reference, shown = mark_references(reference, data, attacks)
    data = poison_rows(shown, dict(zip(sites, rows, strict=True)), attacks, seed=plan.seed)
    absent = {s for s, attack in attacks.items() if attack.kind == ABSENT}
    rows = [
        replace(r, train=r.train[:0], val=r.val[:0]) if s in absent else r for s, r in zip(sites, rows, strict=True)
    ]
    task = tasks_of(plan.tasks.plain(), tuple(sites))
    if plan.tasks.plain():
        data = replace(data, label=_task_labels(plan, data, dict(zip(sites, rows, strict=True)), task))
    names = tuple(sites)
    if is_variant_of(plan.method.name, POOLED):
        names, rows, task = _pooled(names, rows, task)
    clean = None if planted is None else planted.clean
    stack = Stack(names, data, tuple(rows), groups, tuple(task.values()), attacks=attacks, clean=clean)
    stack = replace(stack, by_patient=protects_patients(plan), subgroups=subgroups, bands=bands)
    if new_patients := method_class(plan.method.name).new_patients:
        stack = load(new_patients)(plan, stack)
    training = tuple(name for name, r in zip(stack.names, rows, strict=True) if len(r.train))
    if len({label for r in rows for label in data.label[r.train].tolist()}) < 2:
        raise BadInput(
            "the training rows of all sites hold one value of the label only: nothing can be learnt", code="one-class-only"
        )
    return Consortium(data, stack, training, reference, digest, planted)


def _drop_rows(
    gone: Array, data: Holdings, reference: dict[str, Reference], official: Array, sites: dict[str, Array]
) -> tuple[Holdings, dict[str, Reference], Array, dict[str, Array]]:
    """Return the data without the rows of simulated sites that take no part, and the other rows by their new numbers."""
    kept = np.setdiff1d(np.arange(len(data)), gone)
    reference = {
        name: replace(r, rows=np.searchsorted(kept, r.rows), twins=np.searchsorted(kept, r.twins))
        for name, r in reference.items()
    }
    return (
        data.take(kept),
        reference,
        np.searchsorted(kept, official),
        {name: np.searchsorted(kept, rows) for name, rows in sites.items()},
    )


def _roles(plan: Plan, sites: tuple[str, ...]) -> dict[str, str]:
    """Return the role of each site: training, or held out for the test."""
    split = plan.split
    return dict(
        assign_roles(
            sites,
            scheme=split.scheme,
            seed=plan.seed,
            fold=split.fold,
            folds=split.folds,
            holdout=tuple(split.holdout),
        )
    )


def _held_out(plan: Plan, data: Holdings) -> Array:
    """Return the rows of held-out sites, which no reference set may contain."""
    if plan.split.partition != "column" or plan.split.scheme == "within" or data.site is None:
        return np.empty(0, np.int64)  # simulated sites get their rows after the reference rows are set aside
    sites = partition_by_column(data.site)
    role = _roles(plan, tuple(sites))
    out = [rows for name, rows in sites.items() if role[name] == "test"]
    return np.concatenate(out) if out else np.empty(0, np.int64)


def _pooled(names: tuple[str, ...], rows: list[Rows], task: dict[str, str]) -> Any:
    """Pool all training rows in one extra site; hospitals keep their validation and test rows."""
    none = np.empty(0, np.int64)
    together = Rows(np.concatenate([r.train for r in rows]), none, none)
    return (*names, POOL), [*(replace(r, train=none) for r in rows), together], {**task, POOL: ""}


def _task_labels(plan: Plan, data: Holdings, rows: dict[str, Rows], task: dict[str, str]) -> Array:
    """Return labels (n,) in which the rows of a site with another task have the classes of that task."""
    label = data.label.copy()
    for site, name in task.items():
        if name:
            mine = np.concatenate([rows[site].train, rows[site].val, rows[site].test])
            grouped = {old: new for new, olds in plan.tasks.plain()[name]["classes"].items() for old in olds}
            lost = sorted({word for word in label[mine].tolist() if word not in grouped})
            if lost:
                raise BadInput(
                    f"tasks.{name}.classes has no class for label '{lost[0]}', which {site} has: add it to a class",
                    code="label-without-task",
                )
            label[mine] = [task_class(name, grouped[word]) for word in label[mine].tolist()]
    return label


def _check_fit(model: str, data: Holdings) -> None:
    """Raise where a model for images gets a table, or a model for tables gets images."""
    if isinstance(data, ImageSet) and model in TABLES:
        raise BadInput(
            f"model.name is '{model}', which is for tables, but {data.name} has images: use {', '.join(IMAGES)}",
            code="model-does-not-fit",
        )
    if not isinstance(data, ImageSet) and model in IMAGES:
        raise BadInput(
            f"model.name is '{model}', which is for images, but {data.name} is a table: use {', '.join(TABLES)}",
            code="model-does-not-fit",
        )


def _official(split: Any, data: Holdings, pool: Array) -> Array:
    """Return the official test rows of a data set, which sites use as test rows; none with split.official = false."""
    if not (split.official and isinstance(data, ImageSet) and "part" in data.columns and split.scheme == "within"):
        return np.empty(0, np.int64)
    official: Array = pool[data.columns["part"][pool] == "test"]
    return official


def _as_taken(plan: Plan, data: ImageSet, rows: dict[str, Rows]) -> tuple[ImageSet, PlantedShortcut | None]:
    """Return the images with the sites' protocol shift and, where the plan has one, the shortcut.

    Reference rows belong to no site and stay unchanged, as SSE-AGG's sketches require.
    """
    mine = {name: np.concatenate([r.train, r.val, r.test]) for name, r in rows.items()}
    if plan.data.shift.strength:
        shift = plan.data.shift
        data = shift_sites(data, mine, seed=plan.seed, strength=shift.strength, clean=tuple(shift.clean))
    if not plan.data.shortcut.p:
        return data, None
    p, classes = plan.data.shortcut.p, tuple(plan.data.shortcut.classes)
    patches = site_patches(mine)
    shown, _ = inject(data, mine, positive=classes, seed=plan.seed, p=p, patches=patches)
    other_classes = tuple(sorted(set(data.label.tolist()) - set(classes)))
    clean = data.take(np.concatenate([r.test for r in rows.values()]))
    return shown, PlantedShortcut(patches, p, classes, other_classes, clean)


def _sites(split: Any, data: Holdings, pool: Array, *, seed: int) -> dict[str, Array]:
    """Return the rows of `data` of each site."""
    if split.partition == "column":
        if data.site is None:
            raise BadInput(
                f"split.partition is 'column' but {data.name} has no site for each row: use another partition",
                code="no-site-column",
            )
        local = partition_by_column(data.site[pool])
    else:
        numbers = getattr(data, "outcome", None)
        _, y = np.unique(data.label[pool].astype(str), return_inverse=True)
        if numbers is not None:  # label skew is by fifths of a number
            y = group_outcome(numbers[pool])
        is_own_code = plugins.is_path(split.partition)
        deal = plugin_partition if is_own_code else partial(partition, alpha=split.alpha, min_rows=split.min_rows)
        local = deal(
            split.partition,
            y,
            sites=split.sites,
            seed=seed,
            groups=None if data.patient is None else data.patient[pool],
        )
    return {name: pool[rows] for name, rows in local.items()}
