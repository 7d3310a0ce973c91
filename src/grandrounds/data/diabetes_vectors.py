"""Diabetes-130 as text: 12,000 stays, each told in plain English and turned into 384 numbers by a sentence encoder.

SSE-AGG's first experiment embeds this set with an "NBERT" that its paper does not define; all-MiniLM-L6-v2, mean-pooled
as there, stands in for it. All 99,343 stays would take two cores most of an hour, so 12,000 are drawn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data import diabetes, embeddings, sentence_encoder
from grandrounds.data.diabetes_text import tell_all
from grandrounds.data.sentence_encoder import Counted
from grandrounds.data.table import Table

NAME = "diabetes-130-text"
ROWS = 12_000
FILES = (diabetes.FILE, *sentence_encoder.FILES)
FOLDER = "diabetes130"


def load() -> Table:
    """`patient_nbr`, `gender`, e0 to e383, and `readmitted`: "NO", ">30" or "<30"."""
    stays = drawn()
    _, values = _embeddings(stays)
    columns = {f"e{j}": np.ascontiguousarray(values[:, j], np.float64) for j in range(values.shape[1])}
    first = {name: stays.column(name) for name in ("patient_nbr", "gender")}
    return Table({**first, **columns, "readmitted": stays.column("readmitted")}, NAME)


def prepare(progress: Counted | None = None) -> Path:
    """The file of embeddings, computed where it is not on this machine; `progress` counts stays."""
    return _embeddings(drawn(), progress)[0]


def is_ready() -> bool:
    """Whether the embeddings are on this machine, so that `load` need not compute them."""
    stays = drawn()
    return embeddings.find(_path(tell_all(stays)), rows=len(stays)) is not None


def drawn() -> Table:
    """12,000 stays of as many patients, in the order of the table.

    Stays are drawn one after another, and one of a patient who was drawn before is passed over.
    """
    table = diabetes.load_3class()
    order = generator(0, purpose=NAME).permutation(len(table))
    first = np.unique(table.column("patient_nbr")[order], return_index=True)[1]
    return table.take(np.sort(order[np.sort(first)[:ROWS]]))


def _embeddings(stays: Table, progress: Counted | None = None) -> tuple[Path, Array]:
    texts = tell_all(stays)
    return embeddings.kept(
        _path(texts),
        rows=len(texts),
        compute=lambda: sentence_encoder.embed(texts, name=NAME, progress=progress),
    )


def _path(texts: list[str]) -> str:
    encoder = " ".join(str(file.sha256) for file in sentence_encoder.FILES)
    return embeddings.kept_path(texts, encoder=encoder, folder=FOLDER)
