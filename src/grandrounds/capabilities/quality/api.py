"""`gr.compare_sites`: quality of the sites' data before training, from counts in agreed bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import RunProgress, exchange_progress
from grandrounds.api.sources import Settings, apply_settings
from grandrounds.capabilities.statistics.api.describing import read_source
from grandrounds.core.errors import BadInput
from grandrounds.core.sources import DATA_FRAME
from grandrounds.data.agreement.bins import YEARS, AgreedBins
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.agreement.schema_file import read_schema
from grandrounds.data.sets.catalog import CATALOG

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def compare_sites(
    data: Any,
    *,
    site: str | None = None,
    label: str | None = None,
    schema: DataSchema | str | Path | None = None,
    patient: str | None = None,
    time: str | None = None,
    years: tuple[int, int] = YEARS,
    secure: bool = False,
    epsilon: float | None = None,
    settings: Settings = (),
    out: str | Path | None = None,
    progress: RunProgress = None,
) -> Run:
    """Compare the data of all sites before training, in a simulation: every site sends counts in agreed bins, and nothing else.

    Args:
        data: The path of a table with the rows of all sites, a data set by name, or a pandas DataFrame.
        site: The column that names the hospital of each row; a data set may have one of its own.
        label: The column to predict; not needed with a schema.
        schema: The agreed schema (schema.json or consortium.toml); by default one is drafted from the table, with quantiles.
        patient: The column that names the patient, where the schema is drafted.
        time: The column of dates, where the schema is drafted.
        years: First and last year with a count of its own.
        secure: Use secure aggregation: the server receives totals, and sites cannot be compared there.
        epsilon: Privacy budget of the counts; by default they have no noise.
        settings: Further settings by their names in the experiment file, such as `method.quality.effect`.
        out: The run folder; by default `runs/DATA-quality-seedN`.
        progress: True shows a bar, False none; by default a terminal or notebook shows one.

    Returns:
        The run; its summary has the key `quality` with `findings`, `by_site`, `columns` and `totals`.

    Raises:
        BadInput: A column is not there, or the schema does not fit the table.
        RunFailed: The run stopped.

    Examples:
        >>> run = compare_sites("patients.csv", site="hospital", label="died")  # doctest: +SKIP
        >>> for finding in run.summary["quality"]["findings"]:  # doctest: +SKIP
        ...     print(finding["site"], finding["column"], finding["text"])
    """
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import run as start
    from grandrounds.runs.runner import new_folder

    table, usual = read_source(data)
    entry = CATALOG.get(data) if isinstance(data, str) else None
    site = site or usual
    drop: Sequence[str] = ()
    if entry is not None:
        label, patient, drop = label or entry.label, patient or entry.patient, entry.drop
    if site is None or site not in table.columns:
        raise BadInput(
            f"{'no column' if site is None else repr(site) + ', which'} names the hospital of each row in {table.source}; it has "
            f"{', '.join(table.names[:20])} (give --site COLUMN)",
            code="site-not-set",
        )
    agreed = schema if isinstance(schema, DataSchema) else None
    if agreed is None and schema is not None:
        read = read_schema(Path(str(schema)))
        if not isinstance(read, DataSchema):
            raise BadInput(f"{schema} is a schema of images, and sites are compared by columns of a table", code="needs-table")
        agreed = read
    if agreed is None:
        if label is None:
            raise BadInput("which column is predicted? Give --label COLUMN, or --schema FILE", code="label-not-set")
        left_out = [name for name in drop if name in table.columns and name not in (label, site, patient, time)]
        agreed = draft_schema(table, label=label, site=site, patient=patient, time=time, drop=left_out, quantiles=True)
    name = Path(table.source).name.split(".")[0] or "table"
    values = quality_values(agreed, name=name, years=years, secure=secure, epsilon=epsilon)
    values["data"] |= {"table": DATA_FRAME, "site": site, "drop_unlabelled": True}
    values["split"] = {"val": 0.0, "test": 0.0, "min_rows": 1}
    keep = [*agreed.names, site]
    absent = [column for column in agreed.names if column not in table.columns]
    if absent:
        raise BadInput(f"{table.source} has no column '{absent[0]}', which is agreed: rename it", code="missing-column")
    rows = replace(table, columns={column: table.columns[column] for column in dict.fromkeys(keep)})
    built = apply_settings(Experiment.parse(values, where="settings"), settings)
    if out is None:
        out = new_folder(Path("runs"), f"{name}-quality-seed{built.seed}")
    with exchange_progress(progress) as report:
        return start(built, out=out, table=rows, progress=report)


def quality_values(
    schema: DataSchema,
    *,
    name: str = "quality",
    years: tuple[int, int] = YEARS,
    secure: bool = False,
    epsilon: float | None = None,
) -> dict[str, Any]:
    """Build the experiment of method 'quality' from an agreed schema.

    Args:
        schema: The schema.
        name: Name of the experiment.
        years: First and last year with a count of its own.
        secure: Use secure aggregation.
        epsilon: Privacy budget of the counts.

    Returns:
        The values of an experiment; hospitals read their own tables.
    """
    bins = AgreedBins.from_schema(schema, years=years)
    levels = {c.name: list(c.values) for c in schema.columns if len(c.values) > 1 and c.plan_kind == "categorical"}
    if schema.classes:
        levels[schema.label] = list(schema.classes)
    ranges = {c.name: list(c.range) for c in schema.columns if c.range is not None}
    data = {key: value for key, value in schema.settings().items() if value is not None}
    return {
        "name": name,
        "data": {**data, "encoding": "public", "levels": levels, "ranges": ranges},
        "explain": {"sketch": "none"},
        "method": {"name": "quality", "rounds": 1, "quality": bins.to_dict()},
        "privacy": {"secure": secure, **({} if epsilon is None else {"epsilon": epsilon})},
    }
