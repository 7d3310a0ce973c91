"""Sources of an experiment in Python: a recipe, a data set, a TOML file, a table, a data frame or an Experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.plan import PlanValues

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment

GUARD = 10.0
"""`method.robust.guard` of an experiment on a user's table: it limits the length of one site's update."""

DEFAULT_RECIPE = "breast-cancer"
"""The recipe of `rounds run` and `gr.run()` without an argument. It sends no patient's row to another site."""

Values = dict[str, Any]
"""Settings of an experiment by section and name, as in its file."""
Settings = PlanValues | Sequence[str]
"""Settings by the names of the experiment file: `{"train.lr": 0.05}`, `{"train": {"lr": 0.05}}` or `["train.lr=0.05"]`."""

_LISTED = 20


def build_experiment(
    source: Any,
    *,
    label: str | None = None,
    event: str | int | float | None = None,
    task: str | None = None,
    time: str | None = None,
    site: str | None = None,
    patient: str | None = None,
    drop: Sequence[str] = (),
    cohort: Any = None,
    method: Any = None,
    rounds: int | None = None,
    model: Any = None,
    guard: bool | None = None,
    personal: str | None = None,
    seed: int | None = None,
    settings: Settings = (),
) -> tuple[Experiment, Any]:
    """Build the experiment that a source and options describe together.

    Args:
        source: A recipe or data set by name; the path of a TOML file or table; a data frame, Table or ImageSet; an
            Experiment. None is the default recipe.
        label: `data.label`.
        event: `data.event`.
        task: `data.task`.
        time: `data.duration`, the follow-up time.
        site: `data.site`.
        patient: `data.patient`.
        drop: `data.drop`.
        cohort: `data.cohort`: a cohort file, or a `Cohort`; the source is then clinical records.
        method: `method.name`, or the section [method] as a dict or `config.Method`.
        rounds: `method.rounds`.
        model: `model.name`, or the section [model] as a dict or `config.Model`.
        guard: `personal.guard`.
        personal: `personal.part`.
        seed: `seed`.
        settings: Further settings by their names in the experiment file.

    Returns:
        The experiment; and the rows, where they are in memory (else None).

    Raises:
        BadInput: The source is unknown, an option contradicts it, or a setting is wrong.
    """
    from grandrounds.core.errors import BadInput

    base, rows = _read_source(source, records=cohort is not None)
    drop_list = [drop] if isinstance(drop, str) else list(drop)
    roles: Values = {"label": label, "event": event, "task": task, "duration": time, "site": site, "patient": patient}
    data = {name: value for name, value in roles.items() if value is not None} | ({"drop": drop_list} if drop else {})
    if cohort is not None:
        data["cohort"] = cohort_value(cohort)
    changes: Values = {"data": data} if data else {}
    _merge(changes, _named_section("method", method))
    _merge(changes, _named_section("model", model))
    if rounds is not None:
        _merge(changes, {"method": {"rounds": rounds}})
    own = {name: value for name, value in (("guard", guard), ("part", personal)) if value is not None}
    if own:
        changes["personal"] = own
    if seed is not None:
        changes["seed"] = seed
    built = base if not changes else _changed(base, changes)
    built = apply_settings(built, settings)
    table = built.data.table
    known = built.data.label is not None or built.data.cohort is not None
    if not known and built.data.name is None and not (table or "").lower().endswith(".npz"):
        names = _column_names(built, rows)
        if names:
            raise BadInput(
                f"which column is to be predicted? {_describe(source)} has {names} (give label=)", code="label-not-set"
            )
    return built, rows


def settings_list(settings: Settings) -> list[str]:
    """Write settings as the assignments of `--set`: `["train.lr=0.05"]`."""
    from grandrounds.core.toml import literal

    if not isinstance(settings, Mapping):
        return _assignments(settings)
    return [f"{key}={literal(value)}" for key, value in _flatten(settings)]


def is_frame(value: object) -> bool:
    """Tell whether a value is a table in memory: a pandas data frame, or an object that converts to one."""
    return hasattr(value, "iloc") and hasattr(value, "columns")


def memory_rows(value: Any) -> Any:
    """Return a table in memory as a data frame, Table or ImageSet; None where the value is none of them."""
    from grandrounds.data.images import ImageSet
    from grandrounds.data.table import Table

    if isinstance(value, Table | ImageSet) or is_frame(value):
        return value
    if hasattr(value, "to_pandas") and hasattr(value, "columns"):  # polars, pyarrow
        return value.to_pandas()
    return None


def cohort_value(cohort: Any) -> Any:
    """Return `data.cohort` of a cohort file or of a Cohort in memory."""
    from grandrounds.data.readers import find_reader

    if isinstance(cohort, PathLike):
        return str(cohort)
    return cohort if isinstance(cohort, str | Mapping) else find_reader("data.cohort definition")(cohort)


def _read_source(source: Any, *, records: bool = False) -> tuple[Experiment, Any]:
    """Read the experiment of a source, and its rows where they are in memory; `records`: a path is that of clinical records."""
    from grandrounds.core.errors import BadInput
    from grandrounds.core.sources import DATA_FRAME
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.recipes import load_recipe

    if isinstance(source, Experiment):
        return source, None
    if source is None:
        return load_recipe(DEFAULT_RECIPE), None
    if isinstance(source, str | PathLike):
        is_path = not isinstance(source, str) or (records and "://" not in source)
        return _read_named(str(source), is_path=is_path), None
    rows = memory_rows(source)
    if rows is None:
        raise BadInput(
            f"cannot run an object of type {type(source).__name__}: give a recipe, a data set, a .toml file, a table (.csv, "
            ".parquet, .xlsx, .dta, .sav), a pandas DataFrame or an Experiment",
            code="unknown-source",
        )
    return _table_experiment(DATA_FRAME, name=DATA_FRAME), rows


def _read_named(source: str, *, is_path: bool) -> Experiment:
    """Read the experiment of a name or path."""
    from grandrounds.core.errors import BadInput, nearest
    from grandrounds.core.redact import hide
    from grandrounds.data.readers import table_endings
    from grandrounds.data.sets.catalog import CATALOG
    from grandrounds.data.spreadsheets import UNREADABLE
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.recipes import load_recipe, recipes

    if source.endswith(".toml"):
        return Experiment.load(Path(source))
    if "://" in source:
        name = Path(hide(source).split("://")[-1].split("?")[0]).stem or "database"
        return _table_experiment(source, name=name)
    if is_path or source.lower().endswith((*table_endings(), *UNREADABLE, ".npz")):
        return _table_experiment(str(Path(source).resolve()), name=Path(source).stem)
    known = recipes()
    if source in known:
        return load_recipe(source)
    if source in CATALOG:
        return Experiment.parse({"name": source, "data": {"name": source}})
    raise BadInput(
        f"no recipe or data set '{source}'; {nearest(source, dict.fromkeys([*known, *CATALOG]))} (a file ends in .toml, "
        ".csv, .parquet or .xlsx)",
        code="unknown-recipe",
    )


def _table_experiment(table: str, *, name: str) -> Experiment:
    from grandrounds.experiment.experiment import Experiment

    return Experiment.parse({"name": name, "data": {"table": table}, "method": {"robust": {"guard": GUARD}}})


def _named_section(section: str, value: Any) -> Values:
    """Return a section that was given by its name, as a dict or as a section class."""
    from grandrounds.core.section import Section

    if value is None:
        return {}
    if isinstance(value, Section):
        return {section: value.model_dump(mode="json", exclude_unset=True)}
    return {section: dict(value) if isinstance(value, Mapping) else {"name": value}}


def _changed(base: Experiment, changes: PlanValues) -> Experiment:
    """Return the experiment with nested changes."""
    from grandrounds.experiment.experiment import make_room

    values = base.model_dump(mode="json", exclude_unset=True)
    if base.tune.model_fields_set:
        values["tune"] = base.tune.model_dump(mode="json", exclude_unset=True)
    _merge(values, changes)
    make_room(values, {key for key, _ in _flatten(changes)})
    return type(base).parse(values, where="settings")


def apply_settings(base: Experiment, settings: Settings) -> Experiment:
    """Return the experiment with settings by dotted name, nested, or as assignments.

    Args:
        base: The experiment.
        settings: Settings by their names in the experiment file.

    Returns:
        The experiment with these settings.

    Raises:
        BadInput: A setting is unknown or wrong.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.core.section import Section

    if not settings:
        return base
    if not isinstance(settings, Mapping):
        return base.with_settings(_assignments(settings))
    changes: Values = {}
    for key, value in settings.items():
        if not isinstance(key, str):
            raise BadInput(
                f"settings: {key!r} is not the name of a setting, such as 'train.lr'", code="bad-setting-flag"
            )
        *sections, last = key.split(".")
        nested: Any = value.model_dump(mode="json", exclude_unset=True) if isinstance(value, Section) else value
        nested = {last: nested}
        for name in reversed(sections):
            nested = {name: nested}
        _merge(changes, nested)
    return _changed(base, changes)


def _assignments(settings: Sequence[str]) -> list[str]:
    from grandrounds.core.errors import BadInput

    if isinstance(settings, str) or not all(isinstance(s, str) for s in settings):
        raise BadInput(
            f"settings is {settings!r}: give a dict such as {{'train.lr': 0.05}}, or a list such as ['train.lr=0.05']",
            code="bad-setting-flag",
        )
    return list(settings)


def _merge(values: Values, changes: PlanValues) -> None:
    """Merge nested changes into nested values, in place."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = dict(value) if isinstance(value, Mapping) else value


def _flatten(settings: PlanValues, prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in settings.items():
        out += _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return out


def _column_names(experiment: Experiment, rows: Any) -> str:
    """Name the columns of an experiment's table; "" where it has none."""
    from grandrounds.core.plan_types import DataSettings
    from grandrounds.core.sources import DATA_FRAME
    from grandrounds.data.readers import read_plan_table

    names: list[str] = []
    if rows is not None:
        names = [str(name) for name in rows.columns]
    elif experiment.data.table not in (None, DATA_FRAME):
        names = list(read_plan_table(DataSettings(experiment.data.model_dump(mode="json"))).names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _describe(source: Any) -> str:
    return str(source) if isinstance(source, str | PathLike) else "the data frame"
