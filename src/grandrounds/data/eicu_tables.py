"""The tables of the eICU Collaborative Research Database as PhysioNet ships them, read in pieces.

The largest has 146 million rows, so none but the small ones is ever in memory as a whole.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pandas as pd

from grandrounds.core.errors import BadInput

ROWS = 1_000_000
"""Rows in memory at a time."""

Told = Callable[[str, int, int], None]
"""Called with a file's name, the bytes of it that were read, and its size."""


def untold(name: str, done: int, size: int) -> None:
    """For those who do not ask how far it is."""


@dataclass(frozen=True)
class RawTable:
    """One table's file, and what its columns are called in it (in whatever case)."""

    path: Path
    spelled: Mapping[str, str]

    def read(self, columns: Mapping[str, str], *, told: Told = untold) -> pd.DataFrame:
        """The whole table, for the small ones."""
        return pd.concat(self.pieces(columns, told=told), ignore_index=True)

    def pieces(self, columns: Mapping[str, str], *, told: Told = untold) -> Iterator[pd.DataFrame]:
        """The table piece by piece; `columns` maps those wanted to their types."""
        absent = [name for name in columns if name not in self.spelled]
        if absent:
            raise BadInput(
                f"{self.path} has no column '{absent[0]}'; its columns are: {', '.join(self.spelled)[:300]} "
                "(the tables of eICU 2.0 are wanted, as PhysioNet has them)"
            )
        own = {self.spelled[name]: name for name in columns}
        types = {self.spelled[name]: kind for name, kind in columns.items()}
        size = self.path.stat().st_size
        with _faults_of(self.path), self.path.open("rb") as raw:
            text = _unpacked(self.path, raw)
            for piece in pd.read_csv(text, usecols=list(own), dtype=types, chunksize=ROWS):
                told(self.path.name, raw.tell(), size)
                yield piece.rename(columns=own)
        told(self.path.name, size, size)


def find_table(folder: Path, name: str) -> RawTable | None:
    """The table called `name` in a folder, packed or not; None where there is none."""
    wanted = (f"{name}.csv".lower(), f"{name}.csv.gz".lower())
    found = sorted((p for p in folder.iterdir() if p.name.lower() in wanted), key=lambda p: len(p.name))
    if not found:
        return None
    with _faults_of(found[0]), found[0].open("rb") as raw:
        header = pd.read_csv(_unpacked(found[0], raw), nrows=0)
    return RawTable(found[0], {str(c).strip().lower(): str(c) for c in header.columns})


def need_tables(folder: Path, names: Sequence[str]) -> dict[str, RawTable]:
    """The tables called `names`, all of which must be there; those that are not are said together."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the one with eICU's .csv.gz files")
    found = {name: table for name in names if (table := find_table(folder, name)) is not None}
    absent = [f"{name}.csv.gz" for name in names if name not in found]
    if absent:
        said, them = ("is", "it") if len(absent) == 1 else ("are", "them")
        raise BadInput(
            f"{', '.join(absent)} {said} not in {folder}; download {them} from PhysioNet with your credentials"
        )
    return found


def _unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.name.lower().endswith(".gz") else raw


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """What a damaged file brings up, as one sentence."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise BadInput(f"{path} is not a complete gzip file; download it again") from None
    except pd.errors.EmptyDataError:
        raise BadInput(f"{path} is empty; download it again") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}; check the file") from None
    except ValueError as error:  # pandas' own faults are ValueErrors, too
        reason = str(error).splitlines()[0][:120]
        raise BadInput(f"{path} is damaged: {reason}; download it again") from None
