"""Test which columns a hospital's outcomes follow differently from the common model: score tests with permuted patients.

The common model's score of each row is taken as given (an offset) and the hospital has an intercept of its own. For each column,
all inputs of a category together, Rao's score statistic tells whether the column explains the outcomes beyond that.

First the score is corrected for what all hospitals together show (`correct_misfit`), from sums over hospitals: a common model
that is off everywhere, because it had few rounds or took hospitals for features, is no difference of one hospital.

- **Null distribution.** Outcomes are permuted over patients, with the probability that the common model gives each order
  (`Patients`). Rows of one patient move together, and only patients with the same number of rows change places. So rows of one
  patient may be correlated.
- **Number of columns.** Statistics are brought to one scale (`_corrected`) and compared with the permutation distribution of the
  largest of all columns (Westfall and Young's max-T). The chance that any column is named at a hospital without a
  difference is 5%.
- **Which column.** Columns that are correlated with a column that differs seem to differ too. So the clearest column enters the
  null model with coefficients of its own, and the others are tested again, until none is clear (forward selection). A column
  that is no longer clear beside those found later is dropped.
- **The whole score** is one more candidate. If the common model is too timid or too bold as a whole (few rounds, a strong
  penalty), this one is found in place of many columns.
- **Size.** The difference of the coefficient of an input, given the columns that differ, with a 95% interval (by patient where
  patients have several rows). Intervals are not corrected for the number of columns. A column is named only if its interval
  excludes 0 too. A hospital with fewer than five patients of a second class is not tested.

The test uses training and validation rows; validation rows alone for models that can memorise their training rows (networks,
trees). The common model was trained on the training rows too. That makes residuals smaller where they would show a difference:
the test is conservative, and more so at a hospital with a large share of all rows. It sees differences that rise or fall with a
number, not a U-shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.guard.candidates import derivatives, minimise
from grandrounds.metrics.differences import LEVEL, PERMUTATIONS
from grandrounds.models.losses import CROSS_ENTROPY

FEWEST_PATIENTS = 20
"""Patients that a hospital needs for the test."""

FEWEST_OF_CLASS = 5
"""Patients of each of two classes that a hospital needs: two events that the model tells apart from all others say nothing."""

FEWEST_WITH_VALUE = 5
"""Patients who need another value than the usual one; an input with fewer is not tested."""

MOST_FOUND = 10
"""Columns that are named at one hospital, at most."""

SWEEPS = 20
"""Pairings of patients between the observed outcomes and a permutation, half the way back and forth."""

_FIRST, _HOPELESS = 99, 0.2  # permutations after which a hospital stops if no p-value is below this
_LEAST_VARIANCE = 0.002  # of an outcome, in units of training: one that the model is sure of has no weight without end
_FAR = 2.5  # standard deviations that an input is drawn in to for the test: one extreme patient is not evidence
_COLLINEAR = 1e-6  # share of an input's variance that is its own; with less it is taken as a copy of others
_MISFIT_VARIANCE = 0.25
_WEAK = 0.16  # precision of coefficients of scaled inputs (a deviation of 2.5): keeps them finite where a level has events only
_CELLS = 4_000_000  # permuted outcomes in memory at a time
_TIE = 1e-4  # permuted statistics are computed with single precision
_Z = 1.959964


@dataclass(frozen=True)
class Effect:
    """A column at one hospital, against the common model.

    Attributes:
        difference: Difference of the coefficient of `input`, for each unit of it.
        low: Lower end of the 95% interval.
        high: Upper end.
        p: Probability of a statistic this large at a hospital without differences, corrected for the number of columns.
        differs: The column was found.
        input: Place of the input with the clearest difference.
        output: Place of the output (class) with the clearest difference.
        common: Coefficient of `input` in the common model, by least squares of its scores on all inputs.
        deviation: Standard deviation of the input at the hospital.
    """

    difference: float
    low: float
    high: float
    p: float
    differs: bool
    input: int
    output: int
    common: float
    deviation: float


@dataclass(frozen=True)
class SiteRows:
    """Rows of one hospital that are tested.

    Attributes:
        loss: The loss of training.
        scores: (n, C) scores of the common model.
        target: (n, C) targets.
        x: (n, d) inputs.
        units: (n,) patient of each row.
    """

    loss: str
    scores: Array
    target: Array
    x: Array
    units: Array


class Patients:
    """Patients of one hospital, whose outcomes are permuted: those of one patient stay together.

    Patients with the same number of rows change places. A permutation is drawn with the probability that the null model gives
    it: outcomes are dealt anew to patients, so that a patient of high risk gets a bad outcome as often as the model expects
    (the conditional permutation test of Berrett, Wang, Barber and Samworth, 2020). For this, patients are paired at random, each
    pair swaps its outcomes with the odds of the two orders, and so on for `SWEEPS` pairings. All copies start from one state that
    lies as many steps behind the observed outcomes, so that copies and observed outcomes are exchangeable under the null model
    after any number of steps.
    """

    def __init__(self, units: Array) -> None:
        self.rows = len(units)
        _, place, sizes = np.unique(units, return_inverse=True, return_counts=True)
        self.by_patient = np.argsort(place.ravel(), kind="stable")
        self.starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.count = len(sizes)
        self.repeated = bool((sizes > 1).any())
        self.blocks = []
        for size in np.unique(sizes):
            first = self.starts[sizes == size]
            if len(first) > 1:
                self.blocks.append(self.by_patient[first[:, None] + np.arange(size)])

    @property
    def movable(self) -> int:
        """Number of patients who can change places."""
        return sum(len(block) for block in self.blocks)

    def permute(
        self, scores: Array, target: Array, residual: Array, rng: np.random.Generator, counts: Sequence[int]
    ) -> Iterator[Array]:
        """Yield permuted outcomes in batches, drawn under a null model.

        Args:
            scores: (n, C) scores of the null model, divided by the dispersion.
            target: (n, C) outcomes.
            residual: (n, C) standardised residuals: where those of one patient go together, several rows tell less than as
                many patients.
            rng: Random numbers.
            counts: Number of permutations in each batch.

        Yields:
            (n, C, m) outcomes, float32.
        """
        blocks = [_Block.of(rows, scores, target, residual) for rows in self.blocks]
        steps = [[rng.permutation(block.patients) for block in blocks] for _ in range(SWEEPS)]
        start = [block.start() for block in blocks]
        for orders in reversed(steps):
            for block, state, order in zip(blocks, start, orders, strict=True):
                block.swap(state, order, rng)
        for m in counts:
            states = [np.repeat(state, m, axis=1) for state in start]
            for orders in steps:
                for block, state, order in zip(blocks, states, orders, strict=True):
                    block.swap(state, order, rng)
            out = np.repeat(target.astype(np.float32)[:, :, None], m, axis=2)
            for block, state in zip(blocks, states, strict=True):
                block.write(state, out)
            yield out

    def sum(self, values: Array) -> Array:
        """Sum values (n, q) over the rows of each patient."""
        return np.asarray(np.add.reduceat(values[self.by_patient], self.starts, axis=0))


@dataclass(frozen=True)
class _Block:
    """Patients with the same number of rows, who change places.

    Attributes:
        rows: (p, r) rows of each patient.
        values: (p, r * C) outcomes of each patient.
        scores: (p, r * C) scores.
        is_binary: One outcome of 0 or 1 for each patient; the state is then the outcome at each place, (p, m) of bool. Else it is
            the patient whose outcomes are at each place.
    """

    rows: Array
    values: Array
    scores: Array
    is_binary: bool

    @classmethod
    def of(cls, rows: Array, scores: Array, target: Array, residual: Array) -> _Block:
        """Gather the outcomes and scores of these patients, (p, r) rows."""
        values = target[rows].reshape(len(rows), -1).astype(np.float32)
        level = (scores[rows].reshape(len(rows), -1) / _together(residual[rows])).astype(np.float32)
        return cls(rows, values, level, values.shape[1] == 1 and bool(np.isin(values, (0, 1)).all()))

    @property
    def patients(self) -> int:
        return len(self.rows)

    def start(self) -> Array:
        """Return the observed state, (p, 1)."""
        return self.values > 0 if self.is_binary else np.arange(self.patients)[:, None].copy()

    def swap(self, state: Array, order: Array, rng: np.random.Generator) -> None:
        """Pair patients by a random order, and put the outcomes of each pair in either order with its odds, in place."""
        half = self.patients // 2
        a, b = order[:half], order[half : 2 * half]
        left, right = state[a], state[b]
        chance = rng.random(left.shape, np.float32)
        if self.is_binary:
            here = chance < _expit(self.scores[a] - self.scores[b])  # the event of a pair is at a
            differ = left != right
            state[a], state[b] = np.where(differ, here, left), np.where(differ, ~here, right)
            return
        gain = np.zeros(left.shape, np.float32)
        for q in range(self.values.shape[1]):
            y = np.ascontiguousarray(self.values[:, q])
            gain += (y[right] - y[left]) * (self.scores[a, q] - self.scores[b, q])[:, None]
        swapped = chance < _expit(gain)
        state[a], state[b] = np.where(swapped, right, left), np.where(swapped, left, right)

    def write(self, state: Array, out: Array) -> None:
        """Write the permuted outcomes into (n, C, m)."""
        if self.is_binary:
            out[self.rows[:, 0], 0] = state
            return
        p, r = self.rows.shape
        dealt = self.values.reshape(p, r, -1)[state]  # (p, m, r, C)
        out[self.rows] = dealt.transpose(0, 2, 3, 1)


def _expit(value: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -30, 30))))


def _together(residual: Array) -> float:
    """Return how much more sums over patients vary than independent rows would let them; residual (patients, rows, C)."""
    rows = residual.shape[1]
    if rows == 1:
        return 1.0
    return max(1.0, float((residual.sum(axis=1) ** 2).sum() / max((residual**2).sum(), 1e-12)))


def _fit(rows: SiteRows, design: Array, members: Sequence[int]) -> tuple[Array, Array, Array]:
    """Fit intercepts and coefficients of some inputs, given the common scores; return their design, values and curvature."""
    n, c = rows.scores.shape
    own = [np.broadcast_to(np.eye(c), (n, c, c)), *(design[:, :, i, None] * np.eye(c) for i in members)]
    columns = np.concatenate(own, axis=2)
    precision = np.concatenate([np.full(c, 1e-3), np.full(c * len(members), _WEAK)])
    w, curvature, _ = minimise(rows.loss, columns, rows.scores, rows.target, precision)
    return columns, w, curvature


class NullModel:
    """The common model with the hospital's intercept and the columns found so far, fitted to its rows."""

    def __init__(self, rows: SiteRows, design: Array, members: Sequence[int]) -> None:
        """Fit. `design` (n, C, m): candidates' inputs by output; `members`: inputs with coefficients of their own."""
        n, c = rows.scores.shape
        own, w, _ = _fit(rows, design, members)
        first, second = derivatives(rows.loss, rows.scores + own @ w, rows.target)
        variance = np.maximum(np.einsum("ncc->nc", second), _LEAST_VARIANCE)
        self.weight = np.sqrt(variance)
        self.scores, self.target, self.mean = rows.scores + own @ w, rows.target, rows.target + first
        self.residual = -first / self.weight
        self.dispersion = 1.0
        if rows.loss != CROSS_ENTROPY:
            self.dispersion = float((self.residual**2).sum() / max(1, n * c - len(w)))
        self.adjusted = np.empty(design.shape)
        self.is_own = np.zeros((c, design.shape[2]), bool)
        for k in range(c):
            scaled = self.weight[:, k, None] * design[:, k]
            q = _orthonormal(np.concatenate([self.weight[:, k, None], scaled[:, list(members)]], axis=1))
            out = scaled - q @ (q.T @ scaled)
            out -= q @ (q.T @ out)
            self.is_own[k] = (out**2).sum(axis=0) > _COLLINEAR * (scaled**2).sum(axis=0)
            self.adjusted[:, k] = np.where(self.is_own[k], out, 0.0)


def score_statistics(null: NullModel, groups: Sequence[Array]) -> tuple[Array, Array, list[Array], Array]:
    """Compute Rao's score statistic of each group of inputs.

    Returns:
        (G,) statistics, (G,) degrees of freedom, and by output an orthonormal basis (n, m) with (m,) the group of each vector.
    """
    outputs = null.residual.shape[1]
    bases: list[list[Array]] = [[] for _ in range(outputs)]
    owner: list[int] = []
    for g, places in enumerate(groups):
        found = [_orthonormal(null.adjusted[:, k][:, places[null.is_own[k, places]]]) for k in range(outputs)]
        width = max(b.shape[1] for b in found)
        for k, b in enumerate(found):
            bases[k].append(b if b.shape[1] == width else np.pad(b, ((0, 0), (0, width - b.shape[1]))))
        owner += [g] * width
    basis = [np.concatenate(b, axis=1) for b in bases]
    degrees = np.zeros(len(groups))
    for b in basis:
        np.add.at(degrees, owner, (b**2).sum(axis=0).round())
    of = np.array(owner, int)
    squares = sum((null.residual[:, k] @ b) ** 2 for k, b in enumerate(basis))
    return np.asarray(squares @ _members(of, len(groups)) / null.dispersion), degrees, basis, of


def _members(owner: Array, groups: int) -> Array:
    """Return (m, G): 1 where a vector belongs to a group."""
    member = np.zeros((len(owner), groups))
    member[np.arange(len(owner)), owner] = 1
    return member


def _orthonormal(columns: Array) -> Array:
    """Return an orthonormal basis of the space of these columns (n, q)."""
    size = np.sqrt((columns**2).sum(axis=0))
    columns = columns[:, size > 0] / size[size > 0]
    if columns.shape[1] < 2:
        return columns
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, values > np.sqrt(_COLLINEAR) * values[0]])


def to_normal(statistic: Array, degrees: Array) -> Array:
    """Bring chi-squared statistics of different degrees of freedom to one scale, nearly normal (Wilson and Hilferty)."""
    shift = 2 / (9 * degrees)
    return np.asarray((np.cbrt(statistic / degrees) - (1 - shift)) / np.sqrt(shift))


def find_differences(
    rows: SiteRows, groups: Sequence[Array], rng: np.random.Generator, *, permutations: int = PERMUTATIONS
) -> list[Effect | None] | None:
    """Test each column, and the whole score, of one hospital.

    Args:
        rows: The hospital's rows.
        groups: Inputs of each column that are tested together.
        rng: Random numbers of the permutations.
        permutations: Number of permutations.

    Returns:
        The effect of each column, and last that of the whole score; None for a column that does not vary enough. None in place
        of the list where the hospital has too few patients or outcomes that are all alike.
    """
    patients = Patients(rows.units)
    if patients.movable < FEWEST_PATIENTS or not np.ptp(rows.target, axis=0).any() or not np.isfinite(rows.scores).all():
        return None
    if rows.loss == CROSS_ENTROPY and _second_class(rows.target, patients) < FEWEST_OF_CLASS:
        return None
    n, c = rows.scores.shape
    x, z = np.asarray(rows.x, np.float64), np.asarray(rows.scores, np.float64)
    given = SiteRows(rows.loss, z, np.asarray(rows.target, np.float64), x, rows.units)
    unusual = patients.sum((x != np.median(x, axis=0)).astype(float)) > 0
    usable, deviation = unusual.sum(axis=0) >= FEWEST_WITH_VALUE, x.std(axis=0)
    scaled = np.where(usable, (x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1), 0.0)
    spread = z.std(axis=0)
    strength = np.where(spread > 1e-9, (z - z.mean(axis=0)) / np.where(spread > 1e-9, spread, 1), 0.0)
    design = np.concatenate([np.broadcast_to(scaled[:, None, :], (n, c, x.shape[1])), strength[:, :, None]], axis=2)
    bounded = np.clip(design, -_FAR, _FAR)
    candidates = [g[usable[g]] for g in groups] + [np.array([x.shape[1]])]
    found: list[int] = []
    p_of: dict[int, float] = {}

    def test_others(own: Sequence[int]) -> tuple[Array, int | None]:
        null = NullModel(given, bounded, [i for g in own for i in candidates[g].tolist()])
        rest = [np.array([], int) if g in own else places for g, places in enumerate(candidates)]
        return _max_test(null, rest, patients, rng, permutations)

    while True:
        p, clearest = test_others(found)
        p_of |= {g: float(v) for g, v in enumerate(p) if g not in found}
        if clearest is None or p[clearest] > LEVEL or len(found) == MOST_FOUND:
            break
        p_of[clearest] = max([float(p[clearest]), *(p_of[g] for g in found)])
        found.append(clearest)
    for g in found[:-1]:  # one that was found first may only go together with one that was found later
        p = test_others([o for o in found if o != g])[0]
        if p[g] > LEVEL:
            p_of[g] = float(p[g])
            found.remove(g)

    def measure(g: int) -> tuple[int, int, float, float]:
        """Return output, input, difference and standard error of a found column, fitted with the other found ones."""
        others = [i for o in found if o != g for i in candidates[o].tolist()]
        k, i, _, _ = _largest(NullModel(given, design, others), candidates[g], patients)
        return k, i, *_fitted(given, design, [*others, i], i, k, patients)

    for g in list(found):  # a difference is named if the test and the interval of its size both exclude none
        _, _, size, error = measure(g)
        if abs(size) <= _Z * error:
            found.remove(g)
    null = NullModel(given, design, [i for g in found for i in candidates[g].tolist()])
    sizes = np.append(np.where(deviation > 0, deviation, 1), 1.0)
    common = _common_coefficients(scaled, z)
    out: list[Effect | None] = []
    for g, places in enumerate(candidates):
        if not len(places) or not (null.is_own[:, places].any() or g in found):
            out.append(None)
            continue
        if g in found:
            k, i, size, error = measure(g)
        else:
            k, i, size, error = _largest(null, places, patients)
        unit = float(spread[k]) if i == x.shape[1] else float(sizes[i])
        common_of = 1.0 if i == x.shape[1] else float(common[i, k]) / unit
        low, high = (size - _Z * error) / unit, (size + _Z * error) / unit
        out.append(Effect(size / unit, low, high, p_of[g], g in found, i, k, common_of, unit))
    return out


def _second_class(target: Array, patients: Patients) -> int:
    """Count the patients of the second most common class of targets (n, C): of 0 and 1 in one column, or one column a class."""
    one_hot = np.concatenate([target, 1 - target], axis=1) if target.shape[1] == 1 else target
    return int(np.sort((patients.sum(one_hot) > 0).sum(axis=0))[-2])


def misfit_sums(rows: SiteRows) -> Array:
    """Sum what one hospital tells about coefficients that fit all hospitals better than the common scores.

    Args:
        rows: The hospital's rows.

    Returns:
        For each output the gradient (d,), the curvature (d * d,) and the weight of the rows, given an intercept of the
        hospital's own; zeros where its outcomes are all alike.
    """
    x = np.asarray(rows.x, np.float64)
    d, outputs = x.shape[1], rows.scores.shape[1]
    out = np.zeros((outputs, d + d * d + 1))
    if len(x) < 2 or not np.ptp(rows.target, axis=0).any() or not np.isfinite(rows.scores).all():
        return out.ravel()
    given = SiteRows(rows.loss, np.asarray(rows.scores, np.float64), np.asarray(rows.target, np.float64), x, rows.units)
    null = NullModel(given, np.broadcast_to(x[:, None, :], (len(x), outputs, d)), [])
    for k in range(outputs):
        column, residual = null.adjusted[:, k], null.residual[:, k]
        out[k] = np.concatenate([residual @ column, (column.T @ column).ravel(), [(null.weight[:, k] ** 2).sum()]])
    return out.ravel()


def correct_misfit(sums: Array, inputs: int) -> Array:
    """Compute the change of coefficients that the hospitals together ask for: one penalised Newton step.

    Args:
        sums: Sums of `misfit_sums` over hospitals.
        inputs: Number of inputs d.

    Returns:
        (d, C) changes; the penalty is that of a normal prior with a standard deviation of 0.5 for each standard deviation of an
        input within hospitals.
    """
    out = []
    for row in np.asarray(sums, np.float64).reshape(-1, inputs + inputs**2 + 1):
        gradient, curvature, weight = row[:inputs], row[inputs:-1].reshape(inputs, inputs), max(float(row[-1]), 1e-12)
        penalty = np.diag(curvature) / weight / _MISFIT_VARIANCE + 1e-9
        out.append(np.linalg.solve(curvature + np.diag(penalty), gradient))
    return np.stack(out, axis=1)


def _max_test(
    null: NullModel, groups: Sequence[Array], patients: Patients, rng: np.random.Generator, permutations: int
) -> tuple[Array, int | None]:
    """Return the corrected p-value (G,) of each group of inputs, and the clearest group; None if none can be tested."""
    value, degrees, basis, owner = score_statistics(null, groups)
    if not degrees.any():
        return np.ones(len(groups)), None
    per_outcome = [b / null.weight[:, k, None] for k, b in enumerate(basis)]
    expected = [null.mean[:, k] @ b for k, b in enumerate(per_outcome)]
    member = _members(owner, len(groups)) / null.dispersion
    per_outcome = [b.astype(np.float32) for b in per_outcome]
    statistics, drawn = [value[None]], 0
    counts = _batches(patients.rows * len(basis), permutations)
    for dealt in patients.permute(null.scores / null.dispersion, null.target, null.residual, rng, counts):
        squares = sum((dealt[:, k].T @ b - expected[k]) ** 2 for k, b in enumerate(per_outcome))
        statistics.append(squares @ member)
        drawn += dealt.shape[2]
        if drawn == _FIRST and _corrected(np.concatenate(statistics), degrees)[0].min() > _HOPELESS:
            break
    p, normal = _corrected(np.concatenate(statistics), degrees)
    return p, int(np.argmax(normal > normal.max() - 1e-6))


def _corrected(statistics: Array, degrees: Array) -> tuple[Array, Array]:
    """Return the p-value (G,) of each column, corrected for their number (max-T), and its statistic on the common scale.

    Statistics (1 + m, G): the observed ones, then those of permutations. Each column is scaled by the mean and the variance of
    its permuted statistics, as a multiple of a chi-squared variable, so that a rare level with its long tail counts no more than
    the others.
    """
    mean, variance = statistics[1:].mean(axis=0), statistics[1:].var(axis=0)
    is_tested = (degrees > 0) & (variance > _TIE**2)  # less is rounding: the model is sure of every outcome
    safe_mean, safe_variance = np.where(is_tested, mean, 1.0), np.where(is_tested, variance, 2.0)
    scale, freedom = safe_variance / (2 * safe_mean), 2 * safe_mean**2 / safe_variance
    normal = np.where(is_tested, to_normal(statistics / scale, freedom), -np.inf)
    reached = (normal[1:].max(axis=1)[:, None] >= normal[0] - _TIE).sum(axis=0)
    return (1 + reached) / len(statistics), normal[0]


def _batches(rows: int, permutations: int) -> list[int]:
    """Divide permutations into batches that fit in memory; the first ends where most hospitals without differences stop."""
    most = max(1, _CELLS // max(rows, 1))
    out = []
    for size in (min(_FIRST, permutations), max(0, permutations - _FIRST)):
        out += [most] * (size // most) + ([size % most] if size % most else [])
    return out


def _largest(null: NullModel, places: Array, patients: Patients) -> tuple[int, int, float, float]:
    """Return output, input, difference and standard error of the input of a column with the clearest difference: one step."""
    best = (0, int(places[0]), 0.0, 0.0)
    clearest = -1.0
    for k in range(null.residual.shape[1]):
        for i in places[null.is_own[k, places]].tolist():
            column = null.adjusted[:, k, i]
            information = float((column**2).sum())
            size = float(column @ null.residual[:, k]) / information
            error = np.sqrt(null.dispersion / information)
            if patients.repeated:
                sums = patients.sum((column * (null.residual[:, k] - size * column))[:, None])
                by_patient = np.sqrt((sums**2).sum() * patients.count / (patients.count - 1)) / information
                error = max(error, by_patient)  # few patients with an outcome make the second too small
            if error > 0 and abs(size) / error > clearest:
                clearest, best = abs(size) / error, (k, i, size, float(error))
    return best


def _fitted(
    rows: SiteRows, design: Array, members: Sequence[int], place: int, output: int, patients: Patients
) -> tuple[float, float]:
    """Return the difference of an input with its standard error, fitted together with those of other columns.

    Of several classes it is that from the mean of the classes.
    """
    n, c = rows.scores.shape
    columns, w, curvature = _fit(rows, design, members)
    first_of = c + c * list(members).index(place)
    weights = np.zeros(len(w))
    weights[first_of + output] = 1.0
    if c > 1:  # of several classes only differences of coefficients are in the data: compare with the mean of all classes
        weights[first_of : first_of + c] -= 1.0 / c
    first, second = derivatives(rows.loss, rows.scores + columns @ w, rows.target)
    inverse = np.linalg.inv(curvature)
    pearson = first**2 / np.maximum(np.einsum("ncc->nc", second), _LEAST_VARIANCE)
    spread = 1.0 if rows.loss == CROSS_ENTROPY else float(pearson.sum() / max(1, n * c - len(w)))
    variance = float(weights @ inverse @ weights) * spread
    if patients.repeated:
        sums = patients.sum(np.einsum("nc,ncq->nq", first, columns))
        by_patient = weights @ inverse @ (sums.T @ sums) @ inverse @ weights * patients.count / (patients.count - 1)
        variance = max(variance, float(by_patient))
    return float(weights @ w), float(np.sqrt(variance))


def _common_coefficients(scaled: Array, scores: Array) -> Array:
    """Return the coefficients (d, C) of a linear model that comes closest to the scores; of a linear model its own."""
    if not scaled.shape[1]:
        return np.zeros((0, scores.shape[1]))
    solution, *_ = np.linalg.lstsq(scaled, scores - scores.mean(axis=0), rcond=1e-8)
    return np.asarray(solution)
