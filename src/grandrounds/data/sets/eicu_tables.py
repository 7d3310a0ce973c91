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


def no_progress(name: str, read_bytes: int, size: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class RawTable:
    """One table's file, and what its columns are called in it (in whatever case)."""

    path: Path
    spelled: Mapping[str, str]

    def read(self, columns: Mapping[str, str], *, progress: Progress = no_progress) -> pd.DataFrame:
        """Read the whole table, for the small ones."""
        return pd.concat(self.pieces(columns, progress=progress), ignore_index=True)

    def pieces(self, columns: Mapping[str, str], *, progress: Progress = no_progress) -> Iterator[pd.DataFrame]:
        """Read the table piece by piece; `columns` maps those wanted to their types."""
        absent = [name for name in columns if name not in self.spelled]
        if absent:
            raise BadInput(
                f"{self.path} has no column '{absent[0]}'; its columns are: {', '.join(self.spelled)[:300]} "
                "(the tables of eICU 2.0 are wanted, as PhysioNet has them)",
                code="missing-columns",
            )
        name_by_spelling = {self.spelled[name]: name for name in columns}
        types = {self.spelled[name]: kind for name, kind in columns.items()}
        size = self.path.stat().st_size
        with _faults_of(self.path), self.path.open("rb") as raw:
            text = _unpacked(self.path, raw)
            for piece in pd.read_csv(text, usecols=list(name_by_spelling), dtype=types, chunksize=ROWS):
                progress(self.path.name, raw.tell(), size)
                yield piece.rename(columns=name_by_spelling)
        progress(self.path.name, size, size)


def find_table(folder: Path, name: str) -> RawTable | None:
    """Find the table called `name` in a folder, packed or not; None where there is none."""
    wanted = (f"{name}.csv".lower(), f"{name}.csv.gz".lower())
    paths = sorted((p for p in folder.iterdir() if p.name.lower() in wanted), key=lambda p: len(p.name))
    if not paths:
        return None
    with _faults_of(paths[0]), paths[0].open("rb") as raw:
        header = pd.read_csv(_unpacked(paths[0], raw), nrows=0)
    return RawTable(paths[0], {str(c).strip().lower(): str(c) for c in header.columns})


def need_tables(folder: Path, names: Sequence[str]) -> dict[str, RawTable]:
    """Find the tables called `names`; absent ones are refused together."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the one with eICU's .csv.gz files", code="folder-not-found")
    tables = {name: table for name in names if (table := find_table(folder, name)) is not None}
    absent = [f"{name}.csv.gz" for name in names if name not in tables]
    if absent:
        verb, them = ("is", "it") if len(absent) == 1 else ("are", "them")
        raise BadInput(
            f"{', '.join(absent)} {verb} not in {folder}; download {them} from PhysioNet with your credentials",
            code="file-not-found",
        )
    return tables


def _unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.name.lower().endswith(".gz") else raw


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into one sentence."""
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
"""Rows of the flowsheet with urine."""


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
    def empty(cls, stays: int, about: Array) -> Sums:
        zero = np.zeros((stays, len(about)))
        return cls(zero, zero.copy(), zero.copy(), zero + np.inf, zero - np.inf, about)

    def add(self, stay: Array, measure: Array, value: Array) -> None:
        """Values (n,) of stays `stay` (n,) and measures (n,)."""
        shape = self.count.shape
        cell = stay * shape[1] + measure
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

    def extreme(self, candidates: Array) -> Array:
        return np.where(self.count > 0, candidates, np.nan)


@dataclass
class Measurements:
    """The sums of a cohort's stays, and how many rows of each table were read and used."""

    stays: pd.Index
    vitals: Sums
    labs: Sums
    urine: Sums
    rows: dict[str, dict[str, int]]

    @classmethod
    def empty(cls, stays: pd.Series) -> Measurements:
        n = len(stays)
        middle = np.array([(low + high) / 2 for low, high in VITALS.values()])
        return cls(
            pd.Index(stays), Sums.empty(n, middle), Sums.empty(n, np.zeros(len(LABS))), Sums.empty(n, np.zeros(1)), {}
        )

    def add_vitals(self, table: RawTable, names: Mapping[str, str], *, progress: Progress) -> None:
        """Add columns of `vitalPeriodic` or `vitalAperiodic`."""
        types = {KEY: "int64", "observationoffset": "float64", **dict.fromkeys(names, "float64")}
        for piece in table.pieces(types, progress=progress):
            piece = self._of_the_day(table, piece, "observationoffset")
            for column, vital in names.items():
                self._add_vital(piece["at"], piece[column], vital)

    def add_nursed(self, table: RawTable, *, progress: Progress) -> None:
        """Temperatures that nurses wrote down."""
        kind, value = "nursingchartcelltypevalname", "nursingchartvalue"
        types = {KEY: "int64", "nursingchartoffset": "float64", kind: "str", value: "str"}
        for piece in table.pieces(types, progress=progress):
            piece = self._of_the_day(table, piece[piece[kind].isin(NURSED)], "nursingchartoffset", size=len(piece))
            numbers = pd.to_numeric(piece[value], errors="coerce")
            for name, vital in NURSED.items():
                mine = piece[kind] == name
                self._add_vital(piece["at"][mine], numbers[mine], vital)

    def add_labs(self, table: RawTable, *, progress: Progress) -> None:
        """Results of `lab`, in everybody's unit."""
        place = {word: j for j, words in enumerate(LABS.values()) for word in words}
        ends = np.array([LIMITS.get(name, (0.0, np.inf)) for name in LABS])
        types = {KEY: "int64", "labresultoffset": "float64", "labname": "str", "labresult": "float64",
                 "labmeasurenamesystem": "str"}  # fmt: skip
        for piece in table.pieces(types, progress=progress):
            results = piece[piece["labname"].isin(place) & piece["labresult"].notna()]
            results = self._of_the_day(table, results, "labresultoffset", size=len(piece))
            measure = results["labname"].map(place).to_numpy(np.int64)
            value = results["labresult"].to_numpy() * _factors(measure, results["labmeasurenamesystem"])
            fine = (value >= ends[measure, 0]) & (value <= ends[measure, 1])
            self.labs.add(results["at"].to_numpy()[fine], measure[fine], value[fine])

    def add_urine(self, table: RawTable, *, progress: Progress) -> None:
        """Urine of the flowsheet, in ml."""
        types = {KEY: "int64", "intakeoutputoffset": "float64", "cellpath": "str", "cellvaluenumeric": "float64"}
        for piece in table.pieces(types, progress=progress):
            flows = piece["cellpath"].str.contains(URINE, case=False, na=False) & (piece["cellvaluenumeric"] >= 0)
            mine = self._of_the_day(table, piece[flows], "intakeoutputoffset", size=len(piece))
            stay = mine["at"].to_numpy()
            self.urine.add(stay, np.zeros(len(stay), np.int64), mine["cellvaluenumeric"].to_numpy())

    def table(self) -> pd.DataFrame:
        """Build one row a stay: vitals by mean, min, max and std, laboratory values by mean, urine by sum."""
        v = self.vitals
        figures = {"mean": v.mean, "min": v.extreme(v.least), "max": v.extreme(v.largest), "std": v.std}
        columns = {f"{vital}_{part}": x[:, j] for j, vital in enumerate(VITALS) for part, x in figures.items()}
        columns |= {f"{lab}_mean": self.labs.mean[:, j] for j, lab in enumerate(LABS)}
        columns["urine_sum"] = self.urine.extreme(self.urine.total)[:, 0]
        return pd.DataFrame(columns, index=self.stays)

    def _of_the_day(
        self, table: RawTable, piece: pd.DataFrame, offset: str, *, size: int | None = None
    ) -> pd.DataFrame:
        """Select the cohort's rows of the first day, with the place of their stay as `at`; counts them."""
        stay = self.stays.get_indexer(piece[KEY])
        first_day = piece.assign(at=stay)[(stay >= 0) & piece[offset].between(0, DAY).to_numpy()]
        rows = self.rows.setdefault(table.path.name, {"read": 0, "used": 0})
        rows["read"] += len(piece) if size is None else size
        rows["used"] += len(first_day)
        return first_day

    def _add_vital(self, stay: pd.Series, value: pd.Series, vital: str) -> None:
        fine = value.between(*VITALS[vital]).to_numpy()
        stays = stay.to_numpy()[fine]
        self.vitals.add(stays, np.full(len(stays), list(VITALS).index(vital)), value.to_numpy(float)[fine])


def _factors(measure: Array, unit: pd.Series) -> Array:
    """Find the factor that each result is to be multiplied by."""
    factors = np.ones(len(measure))
    words, names = unit.str.strip().str.lower(), list(LABS)
    for (lab, word), factor in UNITS.items():
        factors[(measure == names.index(lab)) & (words == word).to_numpy()] = factor
    return factors
