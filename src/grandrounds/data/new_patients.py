"""New patients of a model that is in use: read them as the training data were read, divide them by site, plant changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from grandrounds.core.errors import BadInput, closest, nearest
from grandrounds.data.dataset import Dataset, read_new_rows
from grandrounds.data.encoding import Encoding
from grandrounds.data.schema import Schema
from grandrounds.data.table import Table, missing_mask, to_text

Alarms = frozenset[tuple[str, str]]
"""Checks of a site's own watch that raised an alarm: kind and feature, as method 'watch' names them."""

_KINDS = {**dict.fromkeys(("missing", "unseen", "range", "shift"), "input"), "explanation": "explanation"}
_MODEL_KINDS = ("score", "calibration")

GONE = "missing"
"""Word of a planted change that removes a column's values."""


MOST_ABSENT = 0.05
"""Share of a model's importance that absent columns may have. In the recipe heart a column with less moves at most 3% of the
risks by more than 10 points, and one with more up to 28%."""

_NAMED = 8  # absent columns that a refusal names


def refuse_absent_columns(table: Table, encoding: Encoding, importances: Mapping[str, float]) -> None:
    """Refuse a table that lacks columns which a model relies on. A column may be empty: a hospital may not measure it.

    Args:
        table: New patients. One that has no column of the model is refused where it is read.
        encoding: The encoding of the model.
        importances: Share of each feature, a column or a product such as "age:sex^2". Empty: each input counts equally.

    Raises:
        BadInput: The absent columns have more than `MOST_ABSENT` of the importance.
    """
    absent, inputs = encoding.absent_columns(table), len(encoding.numeric) + len(encoding.categorical) - len(encoding.left_out)
    if len(absent) == inputs:
        return
    shares = importances or dict.fromkeys(absent, 1 / inputs)
    lost = sum(share for feature, share in shares.items() if not _columns_of(feature).isdisjoint(absent))
    if lost <= MOST_ABSENT:
        return
    used = {*(rule.name for rule in encoding.numeric), *(rule.name for rule in encoding.categorical)}
    others = [name for name in table.columns if name not in used]
    named = []
    for name in sorted(absent, key=lambda column: -shares.get(column, 0.0))[:_NAMED]:
        facts = (f"{shares[name]:.0%}" if name in importances else "", closest(name, others))
        named.append(f"'{name}'" + (f" ({', '.join(filter(None, facts))})" if any(facts) else ""))
    more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    equal = "" if importances else "; the run stored no importances, so that each input counts equally"
    raise BadInput(
        f"{table.source} lacks {len(absent)} of the model's {inputs} inputs, with {lost:.0%} of their importance (limit "
        f"{MOST_ABSENT:.0%}{equal}): {', '.join(named)}{more}; rename columns of the table, or add empty ones for values that "
        "are not measured (--allow-missing, in Python allow_missing=True, does the same)",
        code="missing-columns",
    )


def _columns_of(feature: str) -> set[str]:
    """Return the name of a feature and, of a product, the names of its columns."""
    return {feature, *(factor.split("^")[0] for factor in feature.split(":"))}


@dataclass(frozen=True)
class PlantedShift:
    """A change planted into new patients of a simulation: a number times a factor, or no value at all.

    Attributes:
        column: A numeric column, or any column if values go missing.
        factor: The factor; None: values go missing.
        site: The site; "" for all sites.
    """

    column: str
    factor: float | None
    site: str = ""

    @classmethod
    def parse(cls, text: str) -> PlantedShift:
        """Read "COLUMN=FACTOR@SITE" or "COLUMN=missing@SITE"; without "@SITE" all sites change.

        Raises:
            BadInput: The text has another form.
        """
        column, equals, rest = text.partition("=")
        word, _, site = rest.partition("@")
        try:
            factor = None if word.strip() == GONE else float(word)
        except ValueError:
            factor = float("nan")
        if not column.strip() or not equals or (factor is not None and not np.isfinite(factor)):
            raise BadInput(
                f"'{text}' is no planted change: write COLUMN=FACTOR@SITE, such as resting_bp=1.5@va, or COLUMN={GONE}@SITE",
                code="bad-shift",
            )
        return cls(column.strip(), factor, site.strip())

    def apply(self, data: Dataset) -> Dataset:
        """Return the rows with the change.

        Raises:
            BadInput: The rows have no such column, or its values are no numbers.
        """
        numeric, words = list(data.numeric_names), list(data.categorical_names)
        if self.column in numeric:
            values = data.numeric.copy()
            place = numeric.index(self.column)
            values[:, place] = np.nan if self.factor is None else values[:, place] * self.factor
            return replace(data, numeric=values)
        if self.column in words and self.factor is None:
            codes = data.codes.copy()
            codes[:, words.index(self.column)] = -1
            return replace(data, codes=codes)
        if self.column in words:
            raise BadInput(
                f"column '{self.column}' has categories, which cannot be multiplied: write {self.column}={GONE}@SITE",
                code="bad-shift",
            )
        raise BadInput(
            f"the new patients have no column '{self.column}'; {nearest(self.column, [*numeric, *words])}", code="unknown-column"
        )


def read_new_patients(table: Table, schema: Schema) -> Dataset:
    """Read new patients as the training data were read. A label is read where there is one; "" stands for none.

    Args:
        table: The rows.
        schema: The schema of the training data.

    Raises:
        BadInput: The table has no column of the model, or a value cannot be read.
    """
    data = read_new_rows(table, schema)
    if schema.label in table.columns:
        values = table.columns[schema.label]
        words = np.array(to_text(values), object)
        words[missing_mask(values)] = ""
        data = replace(data, label=words)
    if schema.patient and schema.patient in table.columns:
        names = table.columns[schema.patient]
        if missing_mask(names).any():
            raise BadInput(
                f"patient column '{schema.patient}' of {table.source} has rows without a value: fill them in",
                code="missing-patients",
            )
        data = replace(data, patient=np.array(to_text(names), object))
    return data


@dataclass(frozen=True)
class NewPatients:
    """New patients of a hospital, read anew for each run of method 'watch'.

    Attributes:
        read: Reads the table.
        folder: Folder of the hospital's own watch, which may not exist.
    """

    read: Callable[[], Table]
    folder: Path | None = None


def read_alarms(folder: Path | None) -> Alarms | None:
    """Read the checks of a site's own watch that raised an alarm; None where the site has no such watch.

    Args:
        folder: The folder of the watch, with watch.json.

    Raises:
        BadInput: The file is damaged.
    """
    file = None if folder is None else folder / "watch.json"
    if file is None or not file.is_file():
        return None
    try:
        checks = [(c["kind"], str(c["column"]), c["status"]) for c in json.loads(file.read_text())["checks"]]
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{file} is damaged: run `rounds watch` again, which writes it", code="damaged-file") from None
    raised = [(kind, column) for kind, column, status in checks if status == "alarm"]
    return frozenset(
        (_KINDS[kind], column) if kind in _KINDS else (kind, "") for kind, column in raised if kind in (*_KINDS, *_MODEL_KINDS)
    )


def divide_by_site(data: Dataset, sites: Sequence[str], *, column: str) -> tuple[Dataset, ...]:
    """Return the new patients of each site; a site may have none.

    Raises:
        BadInput: Rows have no site, or one that did not take part in training.
    """
    if data.site is None:
        raise BadInput(
            f"{data.name} does not name the site of every row: add the column '{column}'", code="no-site-column"
        )
    odd = sorted(set(data.site.tolist()) - set(sites))
    if odd:
        raise BadInput(
            f"{data.name} has patients of '{odd[0]}', which is no site of the run; {nearest(odd[0], list(sites))}",
            code="unknown-site",
        )
    return tuple(data.take(np.flatnonzero(data.site == name)) for name in sites)


def plant_shifts(parts: Sequence[Dataset], sites: Sequence[str], shifts: Sequence[str]) -> tuple[Dataset, ...]:
    """Return the new patients of each site with planted changes.

    Raises:
        BadInput: A change names no site of the run, or does not fit its column.
    """
    out = list(parts)
    for shift in map(PlantedShift.parse, shifts):
        if shift.site and shift.site not in sites:
            raise BadInput(
                f"'{shift.site}' of a planted change is no site of the run; {nearest(shift.site, list(sites))}",
                code="unknown-site",
            )
        out = [shift.apply(d) if shift.site in ("", name) else d for name, d in zip(sites, out, strict=True)]
    return tuple(out)
