"""Training, validation and test: rows inside one site, and sites of a consortium.

A split inside a site depends on (seed, site) and on that site's own rows in their order, so a
hospital that holds only its own file finds the very split a simulation of all hospitals uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grandrounds.data.partition import codes, majority
from grandrounds.errors import BadInput, nearest
from grandrounds.rng import generator

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


def split_rows(
    rows: np.ndarray,
    *,
    val: float,
    test: float,
    seed: int,
    site: str,
    y: np.ndarray | None = None,
    patient: np.ndarray | None = None,
    time: np.ndarray | None = None,
    by: str = "row",
) -> Rows:
    """The rows of one site, dealt to training, validation and test.

    `y`, `patient` and `time` are columns of the whole table; `rows` picks from them. `by="row"`
    keeps the classes of `y` in proportion, `by="patient"` keeps all rows of a patient on one side
    (and the classes in proportion as far as whole patients allow), `by="time"` trains on the
    earliest rows and tests on the latest (numbers, or text that sorts, such as ISO dates; rows of
    one moment stay in file order).
    Shares are rounded to whole rows. With three units (rows or patients) or more, a share above
    zero gets one at least; training always keeps one, so a site of one row only trains.
    """
    rows = np.sort(np.asarray(rows, dtype=np.int64))
    if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
        raise BadInput(f"val = {val:g} and test = {test:g} leave nothing to train on; keep their sum below 1")
    if by not in WAYS:
        raise BadInput(f"split by '{by}' is unknown; {nearest(by, WAYS)}")
    if len(rows) == 0:
        raise BadInput(f"site '{site}' has no rows to split")
    rng = generator(seed, purpose=f"split/{by}", site=site)
    if by == "time":
        latest_first = np.argsort(_known(time, rows, what="time", site=site), kind="stable")[::-1]
        of_row = np.empty(len(rows), dtype=np.int64)
        of_row[latest_first] = _sides(np.ones(len(rows), dtype=np.int64), val=val, test=test)
    else:
        unit_of_row = np.arange(len(rows))
        if by == "patient":
            unit_of_row = codes(_known(patient, rows, what="patient", site=site))
        cls = np.zeros(len(rows), dtype=np.int64) if y is None else codes(np.asarray(y)[rows])
        order = _stratified(majority(cls, unit_of_row), rng)
        side = np.empty(len(order), dtype=np.int64)
        side[order] = _sides(np.bincount(unit_of_row)[order], val=val, test=test)
        of_row = side[unit_of_row]
    return Rows(train=rows[of_row == TRAIN], val=rows[of_row == VAL], test=rows[of_row == TEST])


def roles(
    site_names: Sequence[str],
    *,
    scheme: str,
    seed: int,
    fold: int = 0,
    folds: int = 5,
    holdout: Iterable[str] = (),
) -> dict[str, Role]:
    """Which sites train and which are only tested on, in sorted order of their names.

    `within`: all train. `leave-one-site-out`: the fold-th site is tested. `group-kfold`: sites
    shuffled by `seed` into `folds` groups whose sizes differ by one at most, the fold-th is tested:
    hospitals unseen in training. `holdout`: the sites named there are tested.
    """
    names = sorted(site_names)
    if scheme not in SCHEMES:
        raise BadInput(f"scheme '{scheme}' is unknown; {nearest(scheme, SCHEMES)}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"two sites are called '{twice}'; give each its own name")
    tested = _tested(names, scheme=scheme, seed=seed, fold=fold, folds=folds, holdout=tuple(holdout))
    if names and len(tested) == len(names):
        raise BadInput(f"scheme '{scheme}' tests on all {len(names)} sites and trains on none; leave one out")
    return {name: "test" if name in tested else "train" for name in names}


def _tested(names: list[str], *, scheme: str, seed: int, fold: int, folds: int, holdout: tuple[str, ...]) -> set[str]:
    if scheme == "within":
        return set()
    if scheme == "holdout":
        if not holdout:
            raise BadInput(f"scheme 'holdout' needs the names of the test sites; {nearest('', names)}")
        for name in holdout:
            if name not in names:
                raise BadInput(f"holdout site '{name}' is not in the data; {nearest(name, names)}")
        return set(holdout)
    if scheme == "leave-one-site-out":
        folds = len(names)
    if not 2 <= folds <= len(names):
        raise BadInput(
            f"scheme '{scheme}' cannot make {folds} folds of {len(names)} sites; give 2 folds or more, "
            f"and no more than there are sites"
        )
    if not 0 <= fold < folds:
        raise BadInput(f"fold = {fold}: the {folds} folds of scheme '{scheme}' are numbered 0 to {folds - 1}")
    if scheme == "leave-one-site-out":
        return {names[fold]}
    shuffled = generator(seed, purpose="roles/group-kfold").permutation(len(names))
    return {names[i] for i in np.array_split(shuffled, folds)[fold]}


def _stratified(cls: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An order of units whose every stretch holds the classes in proportion, to within one unit.

    Each class is shuffled and spread evenly over (0, 1) from a start drawn by lot; sorting by place
    interleaves them. Cutting this order anywhere is a stratified split.
    """
    place = np.empty(len(cls))
    for c in np.unique(cls):
        mine = rng.permutation(np.flatnonzero(cls == c))
        place[mine] = (np.arange(len(mine)) + rng.random()) / len(mine)
    return np.argsort(place, kind="stable")


def _sides(size: np.ndarray, *, val: float, test: float) -> np.ndarray:
    """TEST, VAL or TRAIN for units laid end to end and cut in that order; `size` is rows of each.

    With units of one row the cuts are exact. Larger units go where their middle falls, which can
    leave a side empty; it is then given the smallest unit of a side that has more than one.
    """
    total = int(size.sum())
    least = 1 if len(size) >= 3 else 0
    n_test, n_val = (max(int(share * total + 0.5), least) if share > 0 else 0 for share in (test, val))
    while n_test + n_val > max(total - 1, 0):
        n_test, n_val = (n_test - 1, n_val) if n_test > n_val else (n_test, n_val - 1)
    middle = np.cumsum(size) - size / 2
    side = np.where(middle < n_test, TEST, np.where(middle < n_test + n_val, VAL, TRAIN))
    if not (side == TRAIN).any():
        side[-1] = TRAIN
    for wanted, which in ((n_test, TEST), (n_val, VAL)):
        if wanted and len(size) >= 3 and not (side == which).any():
            spare = np.flatnonzero(np.bincount(side, minlength=3)[side] > 1)
            side[spare[np.argmin(size[spare])]] = which
    return side


def _known(column: np.ndarray | None, rows: np.ndarray, *, what: str, site: str) -> np.ndarray:
    """The column at these rows, in a form that sorts; every row must have a value."""
    if column is None:
        raise BadInput(f"a split by {what} needs a {what} column; name one, or split by row")
    values = np.asarray(column)[rows]
    if values.dtype == object:
        gaps = np.array([v is None or v == "" for v in values], dtype=bool)
    else:
        gaps = np.not_equal(values, values)  # NaN
    if gaps.any():
        raise BadInput(
            f"site '{site}' has {int(gaps.sum())} of {len(rows)} rows without a {what}; "
            f"fill them in or drop them, or split by row"
        )
    return np.asarray(values, dtype=str) if values.dtype == object else np.asarray(values)
