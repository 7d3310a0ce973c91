"""The cohort of a plan or of a consortium: its whole definition with its digest, so that a signature of the plan covers it.

A plan does not name a cohort file: it carries the definition. A list keeps the order of features, which canonical JSON would
not keep for the keys of an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort, read_cohort
from grandrounds.capabilities.sources.cohort.definition import Cohort
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import AUTO
from grandrounds.data.agreement.schema import DataSchema

DIGEST, DEFINITION = "digest", "definition"
"""Keys of `data.cohort` in a plan."""

COHORT_FILE = "cohort.json"
"""File of a site's folder with the agreed cohort, which the server signs with the folder."""

_FREE = ("missing", "fewest_rows", "class_shares", "repeated_share", "dates", "columns")
"""Keys of [data] of a consortium that add to its cohort. The others follow from it."""

_FIXED = ("kind", "unit", "values")
"""Keys of a column that follow from the cohort."""


def write_agreed(cohort: Cohort) -> dict[str, Any]:
    """Write a cohort for a plan or a site's folder: the definition and its digest."""
    plain = cohort.to_dict()
    features = plain["features"]
    assert isinstance(features, Mapping)
    return {DIGEST: cohort.digest(), DEFINITION: {**plain, "features": [[name, one] for name, one in features.items()]}}


def read_agreed(plain: object, *, where: str = "data.cohort") -> Cohort:
    """Read the cohort of a plan, a file or a section.

    Args:
        plain: The name of a cohort file, the content of one, or the result of `write_agreed`.
        where: The setting or file, for messages.

    Returns:
        The cohort.

    Raises:
        BadInput: The file cannot be read, a value in it is wrong, or the digest is of another definition.
    """
    if isinstance(plain, str | Path):
        return read_cohort(Path(plain).expanduser())
    if not isinstance(plain, Mapping):
        raise BadInput(f"{where} is {plain!r}: name a cohort file, such as cohort.toml", code="wrong-type")
    if DEFINITION not in plain:
        return parse_cohort(plain, where=where)
    definition = plain[DEFINITION]
    features = definition.get("features") if isinstance(definition, Mapping) else None
    if not isinstance(features, list) or not all(isinstance(f, list | tuple) and len(f) == 2 for f in features):
        raise BadInput(f"{where} has no list of features: give a cohort file that this version wrote", code="wrong-type")
    cohort = parse_cohort({**definition, "features": {str(name): one for name, one in features}}, where=where)
    if cohort.digest() != plain.get(DIGEST):
        raise BadInput(
            f"{where} has another digest than its definition ({str(plain.get(DIGEST))[:12]}..., and {cohort.digest()[:12]}... "
            "is that of the definition): take the cohort from its file again",
            code="cohort-changed",
        )
    return cohort


def define_cohort(value: object) -> dict[str, Any]:
    """Replace a Cohort, its file or the content of one by its definition and digest, so that a plan has all of it."""
    return write_agreed(value if isinstance(value, Cohort) else read_agreed(value))


def implied_settings(cohort: Cohort, data: Mapping[str, Any]) -> dict[str, Any]:
    """List the settings of [data] that follow from a cohort, where they are not set.

    Args:
        cohort: The cohort.
        data: Settings of [data] by name.

    Returns:
        Label, patient, time, task, duration, event and kinds of columns; ranges and levels, for `encoding = "public"`.
    """
    schema = cohort.schema()
    single = {"label": schema.label, "patient": schema.patient, "time": schema.time}
    predicted = data.get("label") in (None, schema.label)
    if predicted:
        single |= {"duration": schema.duration, **({} if data.get("positive") else {"event": schema.event})}
    implied: dict[str, Any] = {k: v for k, v in single.items() if data.get(k) is None and v is not None}
    if predicted and data.get("task", AUTO) == AUTO:
        implied["task"] = schema.task
    kinds = {name: kind if isinstance(kind, str) else tuple(kind) for name, kind in schema.kinds().items()}
    implied["kinds"] = {**kinds, **(data.get("kinds") or {})}
    if data.get("encoding") == "public":
        ranges = {c.name: c.range for c in schema.columns if c.range is not None}
        levels = {c.name: c.values for c in schema.columns if c.plan_kind == "categorical"}
        levels |= {schema.label: schema.classes} if schema.classes else {}
        implied |= {"ranges": {**ranges, **(data.get("ranges") or {})}, "levels": {**levels, **(data.get("levels") or {})}}
    return implied


def merge_cohort(data: Mapping[str, Any], cohort: Cohort, *, where: str = "[data]") -> dict[str, Any]:
    """Merge [data] of a consortium with its cohort.

    Args:
        data: The section without `cohort`, which may add ranges, quantiles and shares of columns.
        cohort: The cohort.
        where: The section, for messages.

    Returns:
        The whole schema as plain values, and the cohort under the key "cohort".

    Raises:
        BadInput: A key contradicts the cohort, or a column is not in it.
    """
    schema = cohort.schema().to_dict()
    columns: dict[str, Any] = {c.name: c.to_dict() for c in cohort.schema().columns}
    for key, value in data.items():
        if key not in _FREE and value != schema.get(key):
            raise BadInput(
                f"{where}: {key} is {value!r}, and cohort '{cohort.name}' implies {schema.get(key)!r}: leave {key} out",
                code="conflicting-settings",
            )
    extra = data.get("columns", {})
    for name, entry in extra.items() if isinstance(extra, Mapping) else ():
        if name not in columns:
            raise BadInput(
                f"{where} columns.{name} is no feature of cohort '{cohort.name}'; {nearest(name, columns)}", code="unknown-column"
            )
        fixed = next((k for k in _FIXED if k in entry and entry[k] != columns[name].get(k)), None)
        if fixed is not None:
            raise BadInput(
                f"{where} columns.{name}: {fixed} is {entry[fixed]!r}, and cohort '{cohort.name}' implies "
                f"{columns[name].get(fixed)!r}: leave {fixed} out",
                code="conflicting-settings",
            )
        columns[name] = {**columns[name], **entry}
    free = {key: value for key, value in data.items() if key in _FREE}
    return {**schema, **free, "columns": columns, "cohort": write_agreed(cohort)}


def resolve_cohort(data: Mapping[str, Any], folder: Path | None, *, where: str = "[data]") -> dict[str, Any]:
    """Replace the cohort file that [data] names by its definition, and merge the schema that it implies.

    Args:
        data: The section [data] of consortium.toml, or the content of schema.json.
        folder: The folder at which a relative path starts; None: the working directory.
        where: The section, for messages.

    Returns:
        The section; unchanged where it names no cohort, or has its definition already.

    Raises:
        BadInput: The cohort cannot be read, or contradicts the section.
    """
    given = data.get("cohort")
    if given is None or (isinstance(given, Mapping) and DEFINITION in given):
        return dict(data)
    if isinstance(given, str):
        file = (folder or Path()) / Path(given).expanduser()
        given = read_file_cohort(file) if file.name == COHORT_FILE else file
    rest = {key: value for key, value in data.items() if key != "cohort"}
    cohort = given if isinstance(given, Cohort) else read_agreed(given, where=f"{where} cohort")
    return merge_cohort(rest, cohort, where=where)


def parse_cohort_schema(data: Mapping[str, Any], folder: Path | None, *, where: str) -> DataSchema:
    """Parse [data] with a cohort as the schema of a table; arguments as of `resolve_cohort`."""
    whole = resolve_cohort(data, folder, where=where)
    cohort = read_agreed(whole["cohort"], where=f"{where} cohort")
    rest = {key: value for key, value in whole.items() if key != "cohort"}
    return replace(DataSchema.from_dict(rest, where=where), cohort=cohort)


def read_file_cohort(file: Path) -> Cohort:
    """Read cohort.json of a folder that `rounds provision` wrote: a definition with its digest.

    Raises:
        BadInput: The file cannot be read, or its digest is of another definition.
    """
    try:
        plain = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise BadInput(f"{file} cannot be read: {e}; ask the operator for the folder again", code="cannot-read") from None
    return read_agreed(plain, where=str(file))


def compare_cohorts(before: Cohort | None, now: Cohort | None) -> list[str]:
    """List how two cohorts differ, one line for each key; empty where both have the same digest.

    Args:
        before: The earlier cohort; None where there was none.
        now: The present one.
    """
    if before is None or now is None:
        given = now or before
        if given is None:
            return []
        verb = "is new" if before is None else "is removed"
        return [f"cohort '{given.name}' {verb} (digest {given.digest()[:12]}...)"]
    if before.digest() == now.digest():
        return []
    lines = compare_values(before.to_dict(), now.to_dict())
    orders = [[f.name for f in cohort.features] for cohort in (before, now)]
    if orders[0] != orders[1] and set(orders[0]) == set(orders[1]):
        lines.append(f"order of features: {', '.join(orders[0])} -> {', '.join(orders[1])}")
    return lines


def compare_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List how nested values differ, one line for each key: `features.age.unit: "years" -> "months"`."""
    return list(_differences(before, now, ""))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in dict.fromkeys([*before, *now]):
        old, new, name = before.get(key), now.get(key), f"{prefix}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{name}.")
        elif old != new:
            yield f"{name}: {_write(old)} -> {_write(new)}"


def _write(value: object) -> str:
    from grandrounds.core.toml import literal

    return "not set" if value is None else literal(value)
