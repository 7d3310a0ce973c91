"""Reference sets: rows set aside before hospitals get theirs, or published images that none of them holds.

No site trains or tests on them, and the record contains a hash of each set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from grandrounds.core import sources
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import DataSettings, Plan
from grandrounds.core.rng import Keys, draw_by_key, hash_words
from grandrounds.data.corruption.attacks import Attack, mark_reference, reference_mark
from grandrounds.data.image_files import read_npz
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import apply_schema
from grandrounds.data.readers import read_plan_table
from grandrounds.data.schema import Schema
from grandrounds.data.split import row_keys, unit_keys


@dataclass(frozen=True)
class Reference:
    """Rows of a reference set and the hash that stands for them in the record."""

    rows: Array  # of the consortium's own data
    sha256: str
    images: Holdings | None = None  # where they are of another set, or the server's own
    twins: Array = field(default_factory=lambda: np.empty(0, np.int64))  # rows of the data that show the same

    def __len__(self) -> int:
        return len(self.rows) if self.images is None else len(self.images)

    def select_from(self, data: Holdings) -> Holdings:
        """Return the rows themselves."""
        return data.take(self.rows) if self.images is None else self.images


def draw_reference_sets(plan: Plan, data: Holdings, *, barred: Array) -> dict[str, Reference]:
    """Draw each reference set from the rows (whole patients, where patients are known); no row is in two.

    A set is the patients with the smallest keyed hashes: without one of them the next takes its place, and taking out anybody
    else changes nothing.

    Args:
        plan: The plan, with its section [reference].
        data: The data of all sites.
        barred: Rows of hospitals that are kept for the test: their patients are in none.

    Returns:
        Each set by name.

    Raises:
        BadInput: The sets ask for too many rows, or a set of other images does not fit the data.
    """
    named = {n: s["source"] for n, s in plan.reference.plain().items()}
    foreign = {n: _load_foreign(n, source, plan, data) for n, source in named.items() if source}
    sets = {n: s for n, s in plan.reference.plain().items() if n not in foreign}
    if not sets:
        return foreign
    wanted = sum(s["rows"] for s in sets.values())
    if wanted and wanted > len(data) // 2:
        raise BadInput(
            f"the reference sets ask for {wanted} of {len(data)} rows: ask for at most half",
            code="too-many-reference-rows",
        )
    unit, keys = _unit_of_rows(data)
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
        out[name] = Reference(rows, _hash_rows(data, rows))
    return out


def _unit_of_rows(data: Holdings) -> tuple[Array, Keys]:
    """Find the unit of each row (n,), its patient where patients are known, and the key of each unit."""
    if data.patient is None:
        return np.arange(len(data)), unit_keys(np.arange(len(data)), row_keys(data))
    words, unit = np.unique(data.patient.astype(str), return_inverse=True)
    return unit, hash_words(words.tolist())


def read_reference_table(name: str, plan: Plan, schema: Schema) -> Reference:
    """Read the first rows of a file that no hospital's patients are in, with the columns of this schema."""
    settings = plan.reference.plain()[name]
    parts = {schema.label, schema.site, schema.patient, schema.time}
    kinds = {c.name: list(c.order) or c.kind for c in schema.features if c.name not in parts}
    agreed = DataSettings({**plan.data.plain(), "kinds": kinds, "id": None, "part": None})
    sources.check(sources.REFERENCE, settings["source"], key=f"reference.{name}.source")
    data = apply_schema(agreed, read_plan_table(agreed, settings["source"]))
    rows = data.take(np.arange(min(settings["rows"], len(data))))
    return Reference(np.empty(0, np.int64), rows.table.sha256(), rows)


def load_reference_images(name: str, source: str) -> Reference:
    """Load a set of images with truth masks, or an .npz file that no hospital's patients are in; all of it."""
    from grandrounds.data.sets.images import SCORING_SETS

    if source.lower().endswith(".npz"):
        sources.check(sources.REFERENCE, source, key=f"reference.{name}.source")
        images = read_npz(source)
        return Reference(np.empty(0, np.int64), images.sha256(), images)
    if source not in SCORING_SETS:
        raise BadInput(
            f"reference.{name}.source is '{source}'; {nearest(source, SCORING_SETS)}", code="unknown-reference"
        )
    images_of_set: ImageSet = SCORING_SETS[source]["load"]()
    return Reference(np.empty(0, np.int64), images_of_set.sha256(), images_of_set)


def _load_foreign(name: str, source: str, plan: Plan, data: Holdings) -> Reference:
    """Load a reference set of other images, which must be like the consortium's: size, channels and labels.

    XFed's were taken from official test sets: where the consortium holds that set, those of its rows are nobody's.
    """
    from grandrounds.data.sets.images import SCORING_SETS, scoring_rows

    if not isinstance(data, ImageSet) and source not in SCORING_SETS:
        return read_reference_table(name, plan, data.schema)
    images = load_reference_images(name, source).images
    assert isinstance(images, ImageSet)
    if not isinstance(data, ImageSet) or images.pixels.shape[1:] != data.pixels.shape[1:]:
        raise BadInput(
            f"reference.{name}.source '{source}' has images unlike those of {data.name}: use another",
            code="image-size-mismatch",
        )
    strange = sorted(set(images.label.tolist()) - set(data.label.tolist()))
    if strange:
        raise BadInput(
            f"reference.{name}.source '{source}' has the label '{strange[0]}', which {data.name} has not",
            code="unknown-class",
        )
    origin = images.columns.get("origin", np.empty(0, object)).tolist()
    published = {"part", "index"} <= set(data.columns) and f"{data.name} test" in origin
    twins = np.flatnonzero(scoring_rows(data, images)) if published else np.empty(0, np.int64)
    return Reference(np.empty(0, np.int64), images.sha256(), images, twins)


def mark_references(
    reference: dict[str, Reference], data: Holdings, attacks: Mapping[str, Attack]
) -> tuple[dict[str, Reference], Holdings]:
    """Mark the reference sets, and the data that they are rows of, with their class where an attack says so."""
    kind = reference_mark(attacks)
    if kind is None:
        return reference, data
    if not reference:
        raise BadInput(
            f"attack '{kind}' is to mark the reference images, and there are none: add [reference.scoring]",
            code="missing-reference",
        )
    assert isinstance(data, ImageSet)
    out, pixels = {}, data.pixels.copy()
    for name, entry in reference.items():
        drawn = entry.select_from(data)
        assert isinstance(drawn, ImageSet)
        marked = mark_reference(drawn, kind, like=data)
        if entry.images is None:
            pixels[entry.rows] = marked.pixels
        out[name] = replace(entry, sha256=marked.sha256(), images=None if entry.images is None else marked)
    return out, replace(data, pixels=pixels)


def _hash_rows(data: Holdings, rows: Array) -> str:
    part = data.take(rows)
    return part.sha256() if isinstance(part, ImageSet) else part.table.sha256()
