"""Training, validation and test: rows inside one site, and sites of a consortium.

The role of a row follows from a keyed hash of its patient alone (of its content, where rows are split one by one):
taking a patient out of the data changes no other patient's role. The key is (seed, purpose), so a hospital that
holds only its own file finds the very split a simulation of all hospitals uses, and a patient of two hospitals has
one role at both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import Keys, draw_by_key, generator, hash_words, mix_bits
from grandrounds.data.dataset import Dataset
from grandrounds.data.images import ImageSet

Role = Literal["train", "test"]
WAYS = ("row", "patient", "time")
SCHEMES = ("within", "leave-one-site-out", "group-kfold", "holdout")
TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class Rows:
    """Row numbers of one site by use: sorted, disjoint, together all rows of the site."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def row_keys(data: Dataset | ImageSet) -> Keys:
    """Compute a 64-bit key (n,) of the content of each row: its features and its label, whatever their order in the file."""
    keys = hash_words(data.label.tolist())
    if isinstance(data, ImageSet):
        digests = b"".join(hashlib.blake2b(one.tobytes(), digest_size=8).digest() for one in data.pixels)
        return mix_bits(keys + np.frombuffer(digests, dtype="<u8").astype(np.uint64))
    if data.duration is not None:
        keys = keys + mix_bits((data.duration + 0.0).view(np.uint64))
    for salt, column in zip(hash_words(data.numeric_names), np.ascontiguousarray(data.numeric.T), strict=True):
        normalised = np.where(np.isnan(column), np.nan, column + 0.0)  # one NaN, and no -0.0
        keys = keys + mix_bits(normalised.view(np.uint64) ^ salt)
    for j, name in enumerate(data.categorical_names):
        words = hash_words(
            [f"{name}\x1f{word}" for word in (*data.vocabulary[j], "")]
        )  # the last is for a missing value
        keys = keys + mix_bits(words[data.codes[:, j]])
    return mix_bits(keys)


def split_rows(
    rows: np.ndarray,
    *,
    val: float,
    test: float,
    seed: int,
    site: str,
    keys: Keys | None = None,
    patient: np.ndarray | None = None,
    time: np.ndarray | None = None,
    unit: str = "row",
    purpose: str = "split",
) -> Rows:
    """Give each row of one site a role: training, validation or test.

    `unit="row"` and `unit="patient"` draw a number in [0, 1) for each row or patient from its keyed hash: below `test` it
    is tested, below `test + val` it validates, else it trains. Shares are therefore met on average, and classes are
    not kept in proportion: both would make one patient's role depend on the others. `unit="time"` trains on the earliest
    rows and tests on the latest (numbers, or text that sorts, such as ISO dates; rows of one moment stay in file
    order), so there one patient more moves the cuts.

    With three rows or patients at the least, a part whose share is above zero and that nobody fell to is given the one
    drawn nearest to it; training always has one, so a site of one row only trains. Only there, at sites of few rows,
    does a role depend on somebody else.

    Args:
        rows: Row numbers of the site; `keys`, `patient` and `time` are columns of the whole table.
        val: Share of rows for validation.
        test: Share of rows for the test.
        seed: The experiment's seed.
        site: The site's name, for messages.
        keys: `row_keys` of the table, for `unit="row"`.
        patient: The patient of each row, for `unit="patient"`.
        time: Sortable times, for `unit="time"`.
        unit: "row", "patient" or "time".
        purpose: Draws of different purposes are independent of each other.

    Returns:
        Row numbers by role, sorted.

    Raises:
        BadInput: Shares that leave nothing to train on, or a column that is missing or has gaps.
    """
    rows = np.sort(np.asarray(rows, dtype=np.int64))
    if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
        raise BadInput(
            f"val = {val:g} and test = {test:g} leave nothing to train on; keep their sum below 1", code="out-of-range"
        )
    if unit not in WAYS:
        raise BadInput(f"split by '{unit}' is unknown; {nearest(unit, WAYS)}", code="unknown-split")
    if len(rows) == 0:
        raise BadInput(f"site '{site}' has no rows to split", code="too-few-rows")
    if unit == "time":
        latest_first = np.argsort(_require_values(time, rows, noun="time", site=site), kind="stable")[::-1]
        of_row = np.empty(len(rows), dtype=np.int64)
        of_row[latest_first] = _cut(len(rows), val=val, test=test)
    else:
        units, unit_of_row = _draw_units(rows, keys=keys, patient=patient, unit=unit, site=site)
        draws = draw_by_key(units, seed=seed, purpose=f"{purpose}/{unit}")
        of_row = _roles_of(draws, val=val, test=test)[unit_of_row]
    return Rows(train=rows[of_row == TRAIN], val=rows[of_row == VAL], test=rows[of_row == TEST])


def unit_keys(rows: np.ndarray, keys: Keys) -> Keys:
    """Compute the keys of these rows; rows of equal content are numbered 0, 1, 2 ... to distinguish them.

    Of equal rows any may be taken out: the same contents with the same draws are left.
    """
    mine: Keys = keys[rows]
    order = np.argsort(mine, kind="stable")
    first = np.ones(len(mine), bool)
    first[1:] = mine[order][1:] != mine[order][:-1]
    place = np.arange(len(mine))
    number = np.empty(len(mine), np.uint64)
    number[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    numbered: Keys = mine + number * np.uint64(0x9E3779B97F4A7C15)
    return numbered


def assign_roles(
    site_names: Sequence[str],
    *,
    scheme: str,
    seed: int,
    fold: int = 0,
    folds: int = 5,
    holdout: Iterable[str] = (),
) -> dict[str, Role]:
    """Choose which sites train and which are only tested on, in sorted order of their names.

    Args:
        site_names: The names of all sites.
        scheme: `within`: all train. `leave-one-site-out`: the fold-th site is tested. `group-kfold`: sites shuffled by
            `seed` into `folds` groups whose sizes differ by one at most, the fold-th is tested: hospitals unseen in
            training. `holdout`: the sites named there are tested.
        seed: The seed that shuffles sites.
        fold: The fold to test.
        folds: The number of folds.
        holdout: The names of the test sites.

    Raises:
        BadInput: A name or a fold is unknown, or no site is left to train.
    """
    names = sorted(site_names)
    if scheme not in SCHEMES:
        raise BadInput(f"scheme '{scheme}' is unknown; {nearest(scheme, SCHEMES)}", code="unknown-scheme")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"two sites are called '{twice}'; give each its own name", code="repeated-site")
    tested = _test_sites(names, scheme=scheme, seed=seed, fold=fold, folds=folds, holdout=tuple(holdout))
    if names and len(tested) == len(names):
        raise BadInput(
            f"scheme '{scheme}' tests on all {len(names)} sites and trains on none; leave one out",
            code="no-training-sites",
        )
    return {name: "test" if name in tested else "train" for name in names}


def _test_sites(
    names: list[str], *, scheme: str, seed: int, fold: int, folds: int, holdout: tuple[str, ...]
) -> set[str]:
    if scheme == "within":
        return set()
    if scheme == "holdout":
        if not holdout:
            raise BadInput(
                f"scheme 'holdout' needs the names of the test sites; {nearest('', names)}", code="missing-setting"
            )
        for name in holdout:
            if name not in names:
                raise BadInput(f"holdout site '{name}' is not in the data; {nearest(name, names)}", code="unknown-site")
        return set(holdout)
    if scheme == "leave-one-site-out":
        folds = len(names)
    if not 2 <= folds <= len(names):
        raise BadInput(
            f"scheme '{scheme}' cannot make {folds} folds of {len(names)} sites; give 2 folds or more, "
            f"and no more than there are sites",
            code="too-many-folds",
        )
    if not 0 <= fold < folds:
        raise BadInput(
            f"fold = {fold}: the {folds} folds of scheme '{scheme}' are numbered 0 to {folds - 1}", code="out-of-range"
        )
    if scheme == "leave-one-site-out":
        return {names[fold]}
    shuffled = generator(seed, purpose="roles/group-kfold").permutation(len(names))
    return {names[i] for i in np.array_split(shuffled, folds)[fold]}


def _draw_units(
    rows: np.ndarray, *, keys: Keys | None, patient: np.ndarray | None, unit: str, site: str
) -> tuple[Keys, np.ndarray]:
    """Find the keys of the units that get a role, and the unit of each row."""
    if unit == "patient":
        words, unit_of_row = np.unique(
            _require_values(patient, rows, noun="patient", site=site).astype(str), return_inverse=True
        )
        return hash_words(words.tolist()), unit_of_row
    if keys is None:
        raise ValueError("a split by row needs the rows' keys: pass keys=row_keys(data)")
    return unit_keys(rows, keys), np.arange(len(rows))


def _roles_of(draws: np.ndarray, *, val: float, test: float) -> np.ndarray:
    """TEST, VAL or TRAIN by draw; a part that nobody fell to gets the nearest draw of a part that has several."""
    edges = np.array([test, test + val])
    role = np.array([TEST, VAL, TRAIN])[np.searchsorted(edges, draws, side="right")]
    wanted = [TRAIN, *([TEST, VAL] if len(draws) >= 3 else [])]
    span = {TEST: (0.0, test), VAL: (test, test + val), TRAIN: (test + val, 1.0)}
    for unit in wanted:
        low, high = span[unit]
        if high > low and not (role == unit).any():
            spare = np.flatnonzero((np.bincount(role, minlength=3)[role] > 1) | (unit == TRAIN))
            away = np.maximum(low - draws[spare], draws[spare] - high)
            role[spare[np.argmin(away)]] = unit
    return role


def _cut(n: int, *, val: float, test: float) -> np.ndarray:
    """TEST, VAL or TRAIN for n rows laid end to end and cut in that order, rounded to whole rows."""
    least = 1 if n >= 3 else 0
    n_test, n_val = (max(int(share * n + 0.5), least) if share > 0 else 0 for share in (test, val))
    while n_test + n_val > max(n - 1, 0):
        n_test, n_val = (n_test - 1, n_val) if n_test > n_val else (n_test, n_val - 1)
    place = np.arange(n)
    return np.where(place < n_test, TEST, np.where(place < n_test + n_val, VAL, TRAIN))


def _require_values(column: np.ndarray | None, rows: np.ndarray, *, noun: str, site: str) -> np.ndarray:
    """Take the column at these rows, in a form that sorts; every row must have a value."""
    if column is None:
        raise BadInput(f"a split by {noun} needs a {noun} column; name one, or split by row", code="column-not-set")
    values = np.asarray(column)[rows]
    if values.dtype == object:
        gaps = np.array([v is None or v == "" for v in values], dtype=bool)
    else:
        gaps = np.not_equal(values, values)  # NaN
    if gaps.any():
        raise BadInput(
            f"site '{site}' has {int(gaps.sum())} of {len(rows)} rows without a {noun}; "
            f"fill them in or drop them, or split by row",
            code="missing-values",
        )
    return np.asarray(values, dtype=str) if values.dtype == object else np.asarray(values)
