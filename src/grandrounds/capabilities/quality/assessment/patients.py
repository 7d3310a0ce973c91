"""Patients in several rows: more returning patients than agreed, two patients under one number, and one under two.

Two rows of different patients are copies where they have the same values in nearly all columns. A match in a rare value counts
more than one in a common value: the evidence of a column is minus the logarithm of the value's share. Rows are compared only
if they share a block of columns, so the cost grows with the rows and not with their square.

False alarms are controlled by three conditions: at least `ALIKE` of the evidence that a row can give, at least `SURE` more
than it takes to tell one pair from all pairs of the table, and at least `FEWEST` such rows (or 1% of the table).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grandrounds.capabilities.quality.assessment.report import count_repeated
from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import REPEATED_PATIENTS, Finding, format_count
from grandrounds.data.agreement.draft import pair_rows
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.table import Table, to_text

SAME_PATIENT = "same-patient"

ALIKE = 0.85
SURE = 15.0
FEWEST = 3
MORE = (1.5, 0.08)
"""Share of repeated rows that is too much: this times the agreed share, plus this."""

DIFFER = (4, 0.1)
"""Rows that differ from the same patient's row before in a fixed column: at least so many, and this share of them."""

_BLOCKS = 8
_BUCKET = 12  # rows that share a block by chance are not compared beyond this


def check_returning(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find more rows of patients with an earlier row than the consortium agreed on.

    Args:
        table: The site's table.
        schema: The agreed schema, with a patient column and `repeated_share`.
    """
    patients, repeated = count_repeated(table, schema)
    if schema.repeated_share is None or patients is None or repeated is None or not repeated:
        return
    share = repeated / (patients + repeated)
    times, more = MORE
    noise = 2 * np.sqrt(schema.repeated_share * (1 - schema.repeated_share) / (patients + repeated))
    if share > times * schema.repeated_share + more + noise:
        text = (
            f"{share:.0%} of the rows are of a patient with an earlier row, {schema.repeated_share:.0%} are agreed: were rows "
            "copied, or is the number of the patient cut?"
        )
        yield Finding("warning", REPEATED_PATIENTS, schema.patient or "", text)


def check_fixed(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find rows of one patient that differ in what a patient keeps, such as sex: two patients with one number.

    Args:
        table: The site's table.
        schema: The agreed schema, with `fixed` columns.
    """
    names = [name for name in schema.fixed if name in table.columns]
    if schema.patient is None or schema.patient not in table.columns or not names:
        return
    pairs = pair_rows(table.columns[schema.patient])
    if len(pairs) < FEWEST:
        return
    for name in names:
        words = to_text(table.columns[name])
        first, second = words[pairs[:, 0]], words[pairs[:, 1]]
        known = np.array([a is not None and b is not None for a, b in zip(first, second, strict=True)])
        differ = known & (first != second)
        if differ.sum() >= max(DIFFER[0], DIFFER[1] * known.sum()):
            text = (
                f"{format_count(int(differ.sum()), 'row')} with another '{name}' than the row before of the same patient: is the "
                "number of the patient cut, or used for two patients?"
            )
            yield Finding("warning", REPEATED_PATIENTS, schema.patient, text)
            return


def check_same_patients(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find rows of different patients that agree in nearly all columns, and rows that were copied with small changes.

    Args:
        table: The site's table.
        schema: The agreed schema.
    """
    names = [c.name for c in schema.columns if c.name in table.columns]
    if len(table) < FEWEST or not names:
        return
    codes = np.stack([_number_values(table.columns[name]) for name in names], axis=1)
    evidence = _evidence(codes)
    patient = None
    if schema.patient is not None and schema.patient in table.columns:
        patient = _number_values(table.columns[schema.patient])
    copies = _find_copies(codes, evidence, patient)
    if len(copies) < max(FEWEST, 0.01 * len(table)):
        return
    first, second = min(copies)
    exact = all((codes[i] == codes[j]).all() for i, j in copies)
    how = "all" if exact else "nearly all"
    who = "under two patient numbers" if patient is not None else "twice"
    text = (
        f"{format_count(len(copies), 'row')} with the values of another row in {how} columns, so the same patient {who}: first "
        f"{table.where(first)} and {table.where(second)}"
    )
    yield Finding("error" if len(copies) > 0.05 * len(table) else "warning", SAME_PATIENT, schema.patient or "", text)


def _number_values(values: Array) -> Array:
    """Number the distinct values of a column (n,); missing is -1."""
    place: dict[object, int] = {None: -1}
    words = to_text(values).tolist()
    for word in words:
        place.setdefault(word, len(place) - 1)
    return np.fromiter(map(place.__getitem__, words), np.int64, len(words))


def _evidence(codes: Array) -> Array:
    """Compute the evidence (n, p) of each cell: minus the log share of its value; none where missing."""
    out = np.zeros(codes.shape)
    for j in range(codes.shape[1]):
        present = codes[:, j] >= 0
        if present.any():
            counts = np.bincount(codes[present, j])
            # of the other rows: a value that one row has alone is as rare as one row can show
            share = np.maximum(counts[codes[present, j]] - 1, 0.5) / len(codes)
            out[present, j] = -np.log(share)
    return out


def _find_copies(codes: Array, evidence: Array, patient: Array | None) -> set[tuple[int, int]]:
    """Find pairs of rows (earlier, later) of different patients that agree; one pair for each later row."""
    n, p = codes.shape
    order = np.argsort(-evidence.mean(axis=0), kind="stable")
    blocks = [order[start::_BLOCKS] for start in range(min(_BLOCKS, p))]
    needed = 2 * np.log(max(n, 2)) + SURE
    possible = evidence.sum(axis=1)
    found: dict[int, int] = {}
    for block in blocks:
        rows_by_key: dict[bytes, list[int]] = {}
        part = np.ascontiguousarray(codes[:, block])
        telling = evidence[:, block].sum(axis=1) > np.log(max(n, 2))
        for i in np.flatnonzero(telling).tolist():
            rows_by_key.setdefault(part[i].tobytes(), []).append(i)
        for rows in rows_by_key.values():
            if not 1 < len(rows) <= _BUCKET:
                continue
            for place, later in enumerate(rows[1:], start=1):
                if later in found:
                    continue
                for earlier in rows[:place]:
                    if patient is not None and patient[earlier] == patient[later]:
                        continue
                    same = (codes[earlier] == codes[later]) & (codes[earlier] >= 0)
                    matched = float(evidence[earlier][same].sum())
                    most = max(float(possible[earlier]), float(possible[later]))
                    if matched >= max(needed, ALIKE * most):
                        found[later] = earlier
                        break
    return {(earlier, later) for later, earlier in found.items()}
