"""Loading of the data that [data] names, and a site's split into training, validation and test rows.

A simulation reads all hospitals' rows here in one place, and a hospital reads its own by the same rules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from grandrounds.core import plugins, sources
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import AUTO, CLASSIFICATION, SURVIVAL
from grandrounds.core.plan_types import DataSettings, Plan
from grandrounds.core.rng import Keys
from grandrounds.core.sources import AT_SITES, DATA_FRAME, STROKES
from grandrounds.data.checks import check_unique
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.design import check_products, keep_complete
from grandrounds.data.image_files import has_train_test, read_folder, read_npz, read_train_test
from grandrounds.data.images import ImageSet, stroke_masks
from grandrounds.data.kinds import Holdings
from grandrounds.data.outcome import settle_task
from grandrounds.data.readers import find_reader, lists_scans, read_plan_table
from grandrounds.data.row_files import is_bundle, read_bundle
from grandrounds.data.scan_options import parse_options
from grandrounds.data.schema import infer_schema
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.split import Rows, row_keys, split_rows
from grandrounds.data.table import Table, to_text

PARTS = ("train", "val", "test")
"""Words of the column data.part."""


def read_data(settings: DataSettings) -> Table | ImageSet:
    """Read the raw rows that [data] names: a table, or images."""
    if settings.name is not None and plugins.is_path(settings.name):
        return _load_plugin_data(settings, settings.name)
    if settings.name is not None:
        try:
            return find_entry(settings.name).load()
        except ImportError as e:
            raise BadInput(
                f"data set '{settings.name}' needs a package that is not on this machine ({e}): install it, "
                "or bring the rows with the plan (rounds plan --with-data)",
                code="missing-package",
            ) from None
    if settings.table == AT_SITES:
        raise BadInput(
            "this experiment's rows are at the sites: submit it to them with `rounds server submit`, or set data.table here",
            code="rows-at-sites",
        )
    if settings.table == DATA_FRAME:
        raise BadInput(
            f"this run was made from a {DATA_FRAME} in Python: resume it there with resume(folder, table=frame)",
            code="data-frame-needed",
        )
    assert settings.table is not None, "an experiment names a set or a table"
    sources.check_rows(settings.plain())
    if is_bundle(settings.table):
        return read_bundle(settings.table)
    if settings.table.lower().endswith(".npz"):
        if has_train_test(settings.table):
            return read_train_test(settings.table)
        return read_npz(settings.table, label=settings.label, site=settings.site, patient=settings.patient)
    table = read_plan_table(settings)
    if settings.pictures is None:
        return table
    if lists_scans(table, settings.pictures, file=settings.file):
        return _read_plan_scans(settings, table, settings.pictures)
    return read_folder(
        settings.pictures,
        table,
        label=_require_label(settings, table),
        file=settings.file,
        site=settings.site,
        patient=settings.patient,
        size=settings.size,
        masks=None if settings.masks == STROKES else settings.masks,
        drop_unlabelled=settings.drop_unlabelled,
    )


def _read_plan_scans(settings: DataSettings, table: Table, folder: str) -> ImageSet:
    """Read the DICOM or NIfTI files that a manifest lists."""
    if settings.masks not in (None, STROKES):
        raise BadInput(
            "data.masks is a folder of PNG masks, and the manifest lists DICOM or NIfTI scans: name masks in a column 'mask'",
            code="conflicting-settings",
        )
    scan = settings.scan
    images: ImageSet = find_reader("data.scan")(
        folder,
        table,
        label=_require_label(settings, table),
        options=parse_options({} if scan is None else scan.plain()),
        file=settings.file,
        site=settings.site,
        patient=settings.patient,
        size=settings.size,
        drop_unlabelled=settings.drop_unlabelled,
    )
    return images


def _load_plugin_data(settings: DataSettings, path: str) -> Table | ImageSet:
    """Call a loader of the user's own, which gives a data frame, a Table or an ImageSet."""
    where = f"data.name is '{path}'"
    result = plugins.call(path, key="data.name")
    if isinstance(result, ImageSet):
        if result.patient is not None and settings.patient is None:
            raise BadInput(
                f"{where}: its images name their patients; set data.patient, so that no split parts them",
                code="patient-not-set",
            )
        return result
    if not isinstance(result, Table):
        if not (hasattr(result, "columns") and hasattr(result, "iloc")):
            raise BadInput(
                f"{where}: it gives a {type(result).__name__}, not a data frame, a Table or an ImageSet",
                code="wrong-type",
            )
        result = Table.from_pandas(result, source=path)
    if settings.label is None:
        raise BadInput(
            f"{where}: data.label is not set: name the column to predict (--label COLUMN)", code="label-not-set"
        )
    return result


def load_data(
    settings: DataSettings, rows_in_memory: Table | ImageSet | None = None, *, without: Sequence[str] = ()
) -> tuple[Holdings, str]:
    """Load the data that [data] names, and their hash.

    Args:
        settings: The section [data] of a plan.
        rows_in_memory: Rows that the caller has already; otherwise they are read.
        without: Sites whose rows are left out before anything is inferred from the data.

    Returns:
        The data set, and the SHA-256 of its rows.

    Raises:
        BadInput: The data cannot be read, or their hash is not the plan's.
    """
    read = read_data(settings) if rows_in_memory is None else rows_in_memory
    digest = read.sha256()
    if settings.sha256 is not None and digest != settings.sha256:
        source = read.source if isinstance(read, Table) else read.name
        raise BadInput(
            f"{source} is not the data this experiment was run on (sha256 {digest[:12]}..., "
            f"expected {settings.sha256[:12]}...): restore the old file or remove data.sha256",
            code="data-changed",
        )
    if without:
        read = _leave_out(settings, read, without)
    if isinstance(read, ImageSet):
        return (replace(read, masks=stroke_masks(read.pixels)) if settings.masks == STROKES else read), digest
    return read_dataset(settings, read), digest


def _leave_out(settings: DataSettings, read: Table | ImageSet, without: Sequence[str]) -> Table | ImageSet:
    """Leave the rows of some sites out."""
    if isinstance(read, ImageSet):
        sites = read.site
    else:
        sites = None if settings.site is None else np.array(to_text(read.column(settings.site, flag="--site")), object)
    if sites is None:
        return read  # a run by column without a site for each row is refused later
    check_known_sites(without, {str(site) for site in sites.tolist() if site is not None})
    return read.take(~np.isin(sites.astype(str), list(without)))


def check_known_sites(without: Sequence[str], sites: Collection[str]) -> None:
    """Check the names in split.without.

    Args:
        without: The names.
        sites: The sites in the data.

    Raises:
        BadInput: A name is unknown, or no site is left.
    """
    for name in without:
        if name not in sites:
            raise BadInput(f"split.without names '{name}', which is no site; {nearest(name, sorted(sites))}", code="unknown-site")
    if not set(sites) - set(without):
        raise BadInput("split.without names every site: leave one out of it", code="no-training-sites")


def read_dataset(settings: DataSettings, table: Table) -> Dataset:
    """Read a table as [data] says."""
    label, part = _require_label(settings, table), settings.part
    kinds = dict(settings.kinds.plain())
    if settings.id is not None:
        kinds[settings.id] = "id"
    duration = settings.duration
    task = settle_task(table, label, task=settings.task, duration=duration)
    schema = infer_schema(
        table,
        label=label,
        site=settings.site,
        patient=settings.patient,
        time=settings.time,
        drop=[*settings.drop, *([] if part is None or part in settings.drop else [part])],
        overrides=kinds,
        features=settings.features,
        task=task,
        duration=duration,
    )
    check_products(settings.products, schema)
    for setting in ("names", "units"):
        for column in settings.plain()[setting]:
            table.column(column, flag=f"data.{setting}")
    data = build_dataset(
        table,
        schema,
        name=settings.name or table.source,
        drop_unlabelled=settings.drop_unlabelled,
        dates=settings.dates,
    )
    if settings.id is not None:
        check_unique(data, settings.id)
    return keep_complete(data) if settings.complete else data


def _require_label(settings: DataSettings, table: Table) -> str:
    """Return the label column, which a table needs."""
    if settings.label is None:
        raise BadInput(
            f"{table.source}: data.label is not set: name the column to predict (--label COLUMN)",
            code="label-not-set",
        )
    return settings.label


def apply_schema(settings: DataSettings, table: Table) -> Dataset:
    """Read a table with the columns of `data.kinds`, in their order and of those kinds; other columns are ignored."""
    values = {**settings.plain(), "task": agreed_task(settings)}
    roles = [settings.label, settings.duration, settings.patient, settings.time, settings.id, settings.part]
    wanted = dict.fromkeys([*settings.kinds.plain(), *(r for r in roles if r)])
    missing = next((name for name in wanted if name not in table.columns), None)
    if missing is not None:
        raise BadInput(
            f"{table.source} lacks the column '{missing}', which the consortium agreed on", code="missing-columns"
        )
    if settings.task == AUTO and settings.label is not None:
        settle_task(table, settings.label, duration=settings.duration)  # refuses a label that may be no class
    agreed_table = Table({name: table.columns[name] for name in wanted}, table.source, reading=table.reading)
    return read_dataset(DataSettings({**values, "site": None, "drop": [], "name": None}), agreed_table)


def agreed_task(settings: DataSettings) -> str:
    """Return the task of a consortium, whose server has no row to tell it from: classification, unless [data] says otherwise."""
    task, duration = settings.task, settings.duration
    return str(task) if task != AUTO else CLASSIFICATION if duration is None else SURVIVAL


def split_site_rows(
    plan: Plan, data: Holdings, name: str, mine: Array, role: str, *, test: float, keys: Keys | None
) -> Rows:
    """Split the rows of one site by its role.

    Args:
        plan: The plan.
        data: The data of all sites.
        name: The site.
        mine: Its rows of the data.
        role: "train", or "test": then all its rows are for the test.
        test: The share of test rows.
        keys: `split_keys` of the data.
    """
    nothing = np.empty(0, np.int64)
    if role == "test":
        return Rows(train=nothing, val=nothing, test=mine)
    part = plan.data.part
    official: Rows | None = None
    if part is not None and plan.split.official and plan.split.scheme == "within":
        official = rows_by_part(data.table if isinstance(data, Dataset) else Table(data.columns, data.name), part, mine)
        if len(official.val) or not len(official.train):
            return official
        mine, test = official.train, 0.0
    rows = split_rows(
        mine,
        val=plan.split.val,
        test=test,
        seed=split_seed(plan),
        site=name,
        keys=keys,
        patient=data.patient,
        time=data.time,
        unit=plan.split.by,
    )
    return rows if official is None else replace(rows, test=official.test)


def rows_by_part(table: Table, column: str, mine: Array) -> Rows:
    """Sort the rows of a site by the parts that a column assigns them to.

    Args:
        table: The table of all sites.
        column: Its column with "train", "val" or "test" in every row.
        mine: The rows of the site.

    Raises:
        BadInput: The column is missing, or has another word or a gap.
    """
    words = table.column(column, flag="data.part")
    unknown = [i for i in mine.tolist() if words[i] not in PARTS]
    if unknown:
        raise BadInput(
            f"column '{column}' of {table.source} holds '{words[unknown[0]]}' in {table.where(unknown[0])}; as data.part it "
            f"needs one of {', '.join(PARTS)} in every row",
            code="unknown-part",
        )
    return Rows(*(np.sort(mine[words[mine] == part]) for part in PARTS))


def split_seed(plan: Plan) -> int:
    """Choose the seed that roles of rows are drawn with."""
    return plan.seed if plan.split.seed is None else plan.split.seed


def split_keys(plan: Plan, data: Holdings) -> Keys | None:
    """Compute the keys of rows that a split by row uses; None where patients or times decide."""
    return row_keys(data) if plan.split.by == "row" else None
