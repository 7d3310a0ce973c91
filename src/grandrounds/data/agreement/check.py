"""A site's own data, read and checked by what the consortium agreed on: the one place that tells tables from pictures."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.core.errors import BadInput
from grandrounds.data.agreement import check_images as fit_pictures
from grandrounds.data.agreement import check_table as fit
from grandrounds.data.agreement.check_table import Finding
from grandrounds.data.agreement.image_schema import PictureSchema
from grandrounds.data.agreement.images import held, is_pictures, read_own
from grandrounds.data.agreement.schema import Agreed, DataSchema
from grandrounds.data.formats import Format
from grandrounds.data.image_files import read_npz
from grandrounds.data.images import ImageSet
from grandrounds.data.readers import read_table
from grandrounds.data.table import Table

AUTOMATIC = Format()
"""A file shows by itself how it is written."""


@dataclass(frozen=True)
class Examined:
    """How many rows or pictures a site has, and what of them differs from what was agreed."""

    rows: int
    findings: list[Finding]
    assumed: tuple[str, ...] = ()  # to read the file: one sentence each


def examined(agreed: Agreed, data: str, *, query: str | None = None, form: Format = AUTOMATIC) -> Examined:
    """What differs, as a list; only what cannot be read at all is refused."""
    if isinstance(agreed, PictureSchema):
        pictures = held(data, agreed)
        return Examined(pictures.count, fit_pictures.check(pictures, agreed))
    table = _table(data, query, agreed, form)
    assumed = () if table.reading is None else table.reading.notes
    return Examined(len(table), fit.check(table, agreed), assumed)


def read_rows(
    agreed: Agreed | None, data: str, *, query: str | None = None, form: Format = AUTOMATIC
) -> Table | ImageSet:
    """The rows or pictures themselves, raw; the first fault is refused."""
    if isinstance(agreed, PictureSchema):
        if not is_pictures(data):
            raise BadInput(f"{data} holds no pictures, which the consortium agreed on")
        return read_own(data, agreed)
    if agreed is None:
        return read_npz(data) if is_pictures(data) else read_table(data, query=query, form=form)
    return _table(data, query, agreed, form)


def _table(data: str, query: str | None, agreed: DataSchema, form: Format) -> Table:
    if is_pictures(data):
        raise BadInput(f"{data} holds pictures, and the consortium agreed on a table: give a .csv or .parquet file")
    keep = [name for name in (agreed.label, agreed.patient) if name is not None]
    return read_table(data, query=query, missing=agreed.missing, form=form, kinds=agreed.kinds(), keep=keep)
