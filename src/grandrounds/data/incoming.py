"""Reading new rows through a saved schema: for scoring, where a label may be absent and a column may be too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset, read_features
from grandrounds.data.schema import Schema
from grandrounds.data.table import Table, missing_mask, text_of


def read_through(table: Table, schema: Schema, *, labelled: bool = False) -> Dataset:
    """The rows as the training data were read. A feature column that the table lacks is left out of the schema,

    which the encoding then fills in and notes; a table that shares no feature at all is refused.
    """
    here = tuple(c for c in schema.columns if c.name in table.columns)
    if not any(c in schema.features for c in here):
        known = ", ".join(c.name for c in schema.features[:8])
        raise BadInput(f"{table.source} has none of the model's columns ({known} ...): is it the right file?")
    narrowed = replace(schema, columns=here)
    label = np.full(len(table), "", object)
    if labelled:
        values = table.column(schema.label, flag="the label the model was trained on")
        if missing_mask(values).any():
            raise BadInput(f"label column '{schema.label}' of {table.source} has rows without a value: remove them")
        label = np.array(text_of(values), object)
    numeric, codes, vocabulary = read_features(table, narrowed)
    site = table.columns.get(schema.site) if schema.site else None
    if site is not None and missing_mask(site).any():
        site = None
    return Dataset(
        name=table.source,
        schema=narrowed,
        table=table,
        numeric=numeric,
        codes=codes,
        vocabulary=vocabulary,
        label=label,
        site=None if site is None else np.array(text_of(site), object),
        patient=None,
        time=None,
    )
