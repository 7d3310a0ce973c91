"""Reference sets: rows that are set aside before hospitals get theirs, or published pictures that none of them holds.

They are in nobody's training and test, and a hash of each stands in the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan import Settings
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import Keys, draw_by_key, hash_words
from grandrounds.data.corruption.attacks import Attack, marked_reference, reference_mark
from grandrounds.data.image_files import read_npz
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import apply_schema
from grandrounds.data.readers import read_own_table
from grandrounds.data.schema import Schema
from grandrounds.data.split import row_keys, unit_keys


@dataclass(frozen=True)
class Reference:
    """Rows of a reference set and the hash that stands for them in the record."""

    rows: Array  # of the consortium's own data
    sha256: str
    pictures: Holdings | None = None  # where they are of another set, or the server's own
    twins: Array = field(default_factory=lambda: np.empty(0, np.int64))  # rows of the data that show the same

    def __len__(self) -> int:
        return len(self.rows) if self.pictures is None else len(self.pictures)

    def of(self, data: Holdings) -> Holdings:
        """The rows themselves."""
        return data.take(self.rows) if self.pictures is None else self.pictures


def reference_sets(plan: Plan, data: Holdings, *, barred: Array) -> dict[str, Reference]:
    """Draw each reference set from the rows (whole patients, where patients are known); no row is in two.

    A set is the patients with the smallest keyed hashes: without one of them the next takes its place, and taking out
    anybody else changes nothing.

    `barred` are rows of hospitals that are kept for the test: their patients are in none.
    """
    named = {n: s.get("source") for n, s in plan.reference.plain().items()}  # plans of earlier versions have none
    foreign = {n: _foreign(n, source, plan, data) for n, source in named.items() if source}
    sets = {n: s for n, s in plan.reference.plain().items() if n not in foreign}
    if not sets:
        return foreign
    wanted = sum(s["rows"] for s in sets.values())
    if wanted and wanted > len(data) // 2:
        raise BadInput(
            f"the reference sets ask for {wanted} of {len(data)} rows: ask for at most half",
            code="too-many-reference-rows",
        )
    unit, keys = _units(data)
    free = np.setdiff1d(unit, unit[barred])
    if wanted > np.isin(unit, free).sum():
        raise BadInput(
            f"the reference sets ask for {wanted} rows, more than the hospitals that train have: ask for fewer",
            code="too-many-reference-rows",
        )
    out = dict(foreign)
    for name, settings in sets.items():
        order = free[np.argsort(draw_by_key(keys[free], seed=plan.seed, purpose=f"reference {name}"), kind="stable")]
        size = np.cumsum(np.bincount(unit, minlength=unit.max() + 1)[order])
        taken = order[: int(np.searchsorted(size, settings["rows"])) + 1]
        free = np.setdiff1d(free, taken)
        rows = np.flatnonzero(np.isin(unit, taken))
        out[name] = Reference(rows, _hash(data, rows))
    return out


def _units(data: Holdings) -> tuple[Array, Keys]:
    """The unit of each row (n,), its patient where patients are known, and the key of each unit."""
    if data.patient is None:
        return np.arange(len(data)), unit_keys(np.arange(len(data)), row_keys(data))
    words, unit = np.unique(data.patient.astype(str), return_inverse=True)
    return unit, hash_words(words.tolist())


def table_of_its_own(name: str, plan: Plan, schema: Schema) -> Reference:
    """The first rows of a file that no hospital's patients are in, with the columns of this schema."""
    settings = plan.reference.plain()[name]
    parts = {schema.label, schema.site, schema.patient, schema.time}
    kinds = {c.name: list(c.order) or c.kind for c in schema.features if c.name not in parts}
    agreed = Settings({**plan.data.plain(), "kinds": kinds, "id": None})
    data = apply_schema(agreed, read_own_table(agreed, settings["source"]))
    rows = data.take(np.arange(min(settings["rows"], len(data))))
    return Reference(np.empty(0, np.int64), rows.table.sha256(), rows)


def published_pictures(name: str, source: str) -> Reference:
    """A set of pictures with truth masks, or those of an .npz file that no hospital's patients are in; all of it."""
    from grandrounds.data.sets.images import SCORING_SETS

    if source.lower().endswith(".npz"):
        own = read_npz(source)
        return Reference(np.empty(0, np.int64), own.sha256(), own)
    if source not in SCORING_SETS:
        raise BadInput(
            f"reference.{name}.source is '{source}'; {nearest(source, SCORING_SETS)}", code="unknown-reference"
        )
    found: ImageSet = SCORING_SETS[source]["load"]()
    return Reference(np.empty(0, np.int64), found.sha256(), found)


def _foreign(name: str, source: str, plan: Plan, data: Holdings) -> Reference:
    """A reference set of other pictures, which must be like the consortium's: size, channels, and labels among its own.

    XFed's were taken from official test sets: where the consortium holds that set, those of its rows are nobody's.
    """
    from grandrounds.data.sets.images import SCORING_SETS, scoring_rows

    if not isinstance(data, ImageSet) and source not in SCORING_SETS:
        return table_of_its_own(name, plan, data.schema)
    found = published_pictures(name, source).pictures
    assert isinstance(found, ImageSet)
    if not isinstance(data, ImageSet) or found.pixels.shape[1:] != data.pixels.shape[1:]:
        raise BadInput(
            f"reference.{name}.source '{source}' has pictures unlike those of {data.name}: use another",
            code="image-size-mismatch",
        )
    strange = sorted(set(found.label.tolist()) - set(data.label.tolist()))
    if strange:
        raise BadInput(
            f"reference.{name}.source '{source}' has the label '{strange[0]}', which {data.name} has not",
            code="unknown-class",
        )
    origin = found.columns.get("origin", np.empty(0, object)).tolist()
    published = {"part", "index"} <= set(data.columns) and f"{data.name} test" in origin
    twins = np.flatnonzero(scoring_rows(data, found)) if published else np.empty(0, np.int64)
    return Reference(np.empty(0, np.int64), found.sha256(), found, twins)


def with_marks(
    reference: dict[str, Reference], data: Holdings, attacks: Mapping[str, Attack]
) -> tuple[dict[str, Reference], Holdings]:
    """The reference sets, and the data that they are rows of, with marks that name the class where an attack says so."""
    kind = reference_mark(attacks)
    if kind is None:
        return reference, data
    if not reference:
        raise BadInput(
            f"attack '{kind}' is to mark the reference pictures, and there are none: add [reference.scoring]",
            code="missing-reference",
        )
    assert isinstance(data, ImageSet)
    out, pixels = {}, data.pixels.copy()
    for name, held in reference.items():
        drawn = held.of(data)
        assert isinstance(drawn, ImageSet)
        marked = marked_reference(drawn, kind, like=data)
        if held.pictures is None:
            pixels[held.rows] = marked.pixels
        out[name] = replace(held, sha256=marked.sha256(), pictures=None if held.pictures is None else marked)
    return out, replace(data, pixels=pixels)


def _hash(data: Holdings, rows: Array) -> str:
    part = data.take(rows)
    return part.sha256() if isinstance(part, ImageSet) else part.table.sha256()
