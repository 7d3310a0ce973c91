"""Raw tables of the eICU Collaborative Research Database, read in pieces, and first-day measurements summed up from them.

The largest table has 146 million rows, so only the small ones are ever in memory as a whole.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import pandas as pd

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

KEY = "patientunitstayid"
ROWS = 1_000_000
"""Rows in memory at a time."""

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes of it that were read, and its size."""


def no_progress(name: str, done: int, size: int) -> None:
    """For those who do not ask how far it is."""


@dataclass(frozen=True)
class RawTable:
    """One table's file, and what its columns are called in it (in whatever case)."""

    path: Path
    spelled: Mapping[str, str]

    def read(self, columns: Mapping[str, str], *, told: Progress = no_progress) -> pd.DataFrame:
        """The whole table, for the small ones."""
        return pd.concat(self.pieces(columns, told=told), ignore_index=True)

    def pieces(self, columns: Mapping[str, str], *, told: Progress = no_progress) -> Iterator[pd.DataFrame]:
        """The table piece by piece; `columns` maps those wanted to their types."""
        absent = [name for name in columns if name not in self.spelled]
        if absent:
            raise BadInput(
                f"{self.path} has no column '{absent[0]}'; its columns are: {', '.join(self.spelled)[:300]} "
                "(the tables of eICU 2.0 are wanted, as PhysioNet has them)",
                code="missing-columns",
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
        raise BadInput(f"{folder} is not a folder; give the one with eICU's .csv.gz files", code="folder-not-found")
    found = {name: table for name in names if (table := find_table(folder, name)) is not None}
    absent = [f"{name}.csv.gz" for name in names if name not in found]
    if absent:
        said, them = ("is", "it") if len(absent) == 1 else ("are", "them")
        raise BadInput(
            f"{', '.join(absent)} {said} not in {folder}; download {them} from PhysioNet with your credentials",
            code="file-not-found",
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
        raise BadInput(f"{path} is not a complete gzip file; download it again", code="damaged-file") from None
    except pd.errors.EmptyDataError:
        raise BadInput(f"{path} is empty; download it again", code="empty-table") from None
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror or error}; check the file", code="unreadable-file"
        ) from None
    except ValueError as error:  # pandas' own faults are ValueErrors, too
        reason = str(error).splitlines()[0][:120]
        raise BadInput(f"{path} is damaged: {reason}; download it again", code="damaged-file") from None


DAY = 24 * 60
"""Minutes from admission to the unit that count; both ends do."""

# Beyond these a reading is an artefact (a fallen sensor, degrees Fahrenheit), and left out.
VITALS: dict[str, tuple[float, float]] = {
    "hr": (20, 300),
    "sbp": (20, 300),
    "dbp": (5, 225),
    "map": (10, 250),
    "resp": (1, 80),
    "o2sat": (40, 100),
    "temp": (25, 45),
}
PERIODIC = {
    "heartrate": "hr",
    "systemicsystolic": "sbp",
    "systemicdiastolic": "dbp",
    "systemicmean": "map",
    "respiration": "resp",
    "sao2": "o2sat",
    "temperature": "temp",
}
APERIODIC = {"noninvasivesystolic": "sbp", "noninvasivediastolic": "dbp", "noninvasivemean": "map"}
NURSED = {"Temperature (C)": "temp"}

LABS: dict[str, tuple[str, ...]] = {
    "alb": ("albumin",),
    "alp": ("alkaline phos.",),
    "alt": ("ALT (SGPT)",),
    "ast": ("AST (SGOT)",),
    "be": ("Base Excess",),
    "bicar": ("bicarbonate",),
    "bili": ("total bilirubin",),
    "bili_dir": ("direct bilirubin",),
    "bnd": ("-bands",),
    "bun": ("BUN",),
    "ca": ("calcium",),
    "cai": ("ionized calcium",),
    "ck": ("CPK",),
    "ckmb": ("CPK-MB",),
    "cl": ("chloride",),
    "crea": ("creatinine",),
    "crp": ("CRP",),
    "fgn": ("fibrinogen",),
    "fio2": ("FiO2",),
    "glu": ("glucose", "bedside glucose"),
    "hgb": ("Hgb",),
    "inr_pt": ("PT - INR",),
    "k": ("potassium",),
    "lact": ("lactate",),
    "lymph": ("-lymphs",),
    "mch": ("MCH",),
    "mchc": ("MCHC",),
    "mcv": ("MCV",),
    "methb": ("Methemoglobin",),
    "mg": ("magnesium",),
    "na": ("sodium",),
    "neut": ("-polys",),
    "pco2": ("paCO2",),
    "ph": ("pH",),
    "phos": ("phosphate",),
    "plt": ("platelets x 1000",),
    "po2": ("paO2",),
    "ptt": ("PTT",),
    "tnt": ("troponin - T",),
    "wbc": ("WBC x 1000",),
}
LIMITS = {"be": (-40.0, 40.0), "ph": (6.5, 8.0), "fio2": (21.0, 100.0)}
"""Of laboratory values with a limit other than "not below 0"."""

UNITS = {("crp", "mg/dl"): 10.0, ("ca", "mmol/l"): 4.0}
"""Units that some hospitals use, and what brings them to everybody's (mg/L, mg/dL)."""

URINE = r"\|Output \(ml\)\|(?:.*urin|.*foley|.*condom cath|.*straight *cath|.*urethral)"
"""Where the flowsheet has urine."""


@dataclass
class Sums:
    """Count, sum, sum of squares, least and largest of each measure of each stay, (stays, measures)."""

    count: Array
    total: Array  # of values less `about`, so that squares lose nothing
    squares: Array
    least: Array
    largest: Array
    about: Array  # (measures,)

    @classmethod
    def none(cls, stays: int, about: Array) -> Sums:
        zero = np.zeros((stays, len(about)))
        return cls(zero, zero.copy(), zero.copy(), zero + np.inf, zero - np.inf, about)

    def add(self, at: Array, measure: Array, value: Array) -> None:
        """Values (n,) of stays `at` (n,) and measures (n,)."""
        shape = self.count.shape
        cell = at * shape[1] + measure
        off = value - self.about[measure]
        for sums, weights in ((self.count, None), (self.total, off), (self.squares, off**2)):
            sums += np.bincount(cell, weights, minlength=self.count.size).reshape(shape)
        np.minimum.at(self.least.reshape(-1), cell, value)
        np.maximum.at(self.largest.reshape(-1), cell, value)

    @property
    def mean(self) -> Array:
        return np.where(self.count > 0, self.about + self.total / np.maximum(self.count, 1), np.nan)

    @property
    def std(self) -> Array:
        """The sample deviation; of one value there is none."""
        spread = self.squares - self.total**2 / np.maximum(self.count, 1)
        return np.where(self.count > 1, np.sqrt(np.maximum(spread, 0) / np.maximum(self.count - 1, 1)), np.nan)

    def extreme(self, which: Array) -> Array:
        return np.where(self.count > 0, which, np.nan)


@dataclass
class Measured:
    """The sums of a cohort's stays, and how many rows of each table were read and used."""

    stays: pd.Index
    vitals: Sums
    labs: Sums
    urine: Sums
    rows: dict[str, dict[str, int]]

    @classmethod
    def none(cls, stays: pd.Series) -> Measured:
        n = len(stays)
        middle = np.array([(low + high) / 2 for low, high in VITALS.values()])
        return cls(
            pd.Index(stays), Sums.none(n, middle), Sums.none(n, np.zeros(len(LABS))), Sums.none(n, np.zeros(1)), {}
        )

    def add_vitals(self, table: RawTable, names: Mapping[str, str], *, told: Progress) -> None:
        """Columns of `vitalPeriodic` or `vitalAperiodic`."""
        types = {KEY: "int64", "observationoffset": "float64", **dict.fromkeys(names, "float64")}
        for piece in table.pieces(types, told=told):
            piece = self._of_the_day(table, piece, "observationoffset")
            for column, vital in names.items():
                self._add_vital(piece["at"], piece[column], vital)

    def add_nursed(self, table: RawTable, *, told: Progress) -> None:
        """Temperatures that nurses wrote down."""
        which, value = "nursingchartcelltypevalname", "nursingchartvalue"
        types = {KEY: "int64", "nursingchartoffset": "float64", which: "str", value: "str"}
        for piece in table.pieces(types, told=told):
            piece = self._of_the_day(table, piece[piece[which].isin(NURSED)], "nursingchartoffset", of=len(piece))
            numbers = pd.to_numeric(piece[value], errors="coerce")
            for name, vital in NURSED.items():
                mine = piece[which] == name
                self._add_vital(piece["at"][mine], numbers[mine], vital)

    def add_labs(self, table: RawTable, *, told: Progress) -> None:
        """Results of `lab`, in everybody's unit."""
        place = {word: j for j, words in enumerate(LABS.values()) for word in words}
        ends = np.array([LIMITS.get(name, (0.0, np.inf)) for name in LABS])
        types = {KEY: "int64", "labresultoffset": "float64", "labname": "str", "labresult": "float64",
                 "labmeasurenamesystem": "str"}  # fmt: skip
        for piece in table.pieces(types, told=told):
            known = piece[piece["labname"].isin(place) & piece["labresult"].notna()]
            known = self._of_the_day(table, known, "labresultoffset", of=len(piece))
            measure = known["labname"].map(place).to_numpy(np.int64)
            value = known["labresult"].to_numpy() * _factors(measure, known["labmeasurenamesystem"])
            fine = (value >= ends[measure, 0]) & (value <= ends[measure, 1])
            self.labs.add(known["at"].to_numpy()[fine], measure[fine], value[fine])

    def add_urine(self, table: RawTable, *, told: Progress) -> None:
        """Urine of the flowsheet, in ml."""
        types = {KEY: "int64", "intakeoutputoffset": "float64", "cellpath": "str", "cellvaluenumeric": "float64"}
        for piece in table.pieces(types, told=told):
            flows = piece["cellpath"].str.contains(URINE, case=False, na=False) & (piece["cellvaluenumeric"] >= 0)
            mine = self._of_the_day(table, piece[flows], "intakeoutputoffset", of=len(piece))
            at = mine["at"].to_numpy()
            self.urine.add(at, np.zeros(len(at), np.int64), mine["cellvaluenumeric"].to_numpy())

    def table(self) -> pd.DataFrame:
        """One row a stay: vitals by mean, min, max and std, laboratory values by mean, urine by sum."""
        v = self.vitals
        figures = {"mean": v.mean, "min": v.extreme(v.least), "max": v.extreme(v.largest), "std": v.std}
        columns = {f"{vital}_{part}": x[:, j] for j, vital in enumerate(VITALS) for part, x in figures.items()}
        columns |= {f"{lab}_mean": self.labs.mean[:, j] for j, lab in enumerate(LABS)}
        columns["urine_sum"] = self.urine.extreme(self.urine.total)[:, 0]
        return pd.DataFrame(columns, index=self.stays)

    def _of_the_day(self, table: RawTable, piece: pd.DataFrame, offset: str, *, of: int | None = None) -> pd.DataFrame:
        """The cohort's rows of the first day, with the place of their stay as `at`; counts them."""
        at = self.stays.get_indexer(piece[KEY])
        kept = piece.assign(at=at)[(at >= 0) & piece[offset].between(0, DAY).to_numpy()]
        rows = self.rows.setdefault(table.path.name, {"read": 0, "used": 0})
        rows["read"] += len(piece) if of is None else of
        rows["used"] += len(kept)
        return kept

    def _add_vital(self, at: pd.Series, value: pd.Series, vital: str) -> None:
        fine = value.between(*VITALS[vital]).to_numpy()
        here = at.to_numpy()[fine]
        self.vitals.add(here, np.full(len(here), list(VITALS).index(vital)), value.to_numpy(float)[fine])


def _factors(measure: Array, unit: pd.Series) -> Array:
    """What each result is to be multiplied by."""
    factors = np.ones(len(measure))
    words, names = unit.str.strip().str.lower(), list(LABS)
    for (lab, word), factor in UNITS.items():
        factors[(measure == names.index(lab)) & (words == word).to_numpy()] = factor
    return factors
