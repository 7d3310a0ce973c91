"""Risk card from sums over hospitals: steps of columns, whole-number points, and the risk of every total.

Route "distilled": an additive model is fitted first, and the card is fitted to its log-odds eta, moved half a Newton step
towards the outcomes, with weights w = mu(1 - mu).
Route "direct": the card is fitted to outcomes, with few and small exchanges.

1. Candidates are steps `x <= quantile`, levels and missing values. Sites add the products of each with the target; the server
   keeps the 60 that explain most alone (u^2/v).
2. Sites add the products of these with each other. The server searches (card_search.py).
3. Sites count rows and events by total of points: the printed risks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.boosting_bins import Bins, agree_bins
from grandrounds.capabilities.statistics.card_search import (
    RIDGE,
    Points,
    drop_repeats,
    find_risks,
    round_points,
    search_steps,
)
from grandrounds.capabilities.statistics.gam import GAMTerms, fit_gam, gam_terms
from grandrounds.capabilities.statistics.gam_result import GAMResult
from grandrounds.capabilities.statistics.models.card import card_arrays
from grandrounds.capabilities.statistics.models.column_model import ColumnModel
from grandrounds.capabilities.statistics.models.column_trees import MOST_BINS
from grandrounds.capabilities.statistics.models.columns import Column, write_columns
from grandrounds.capabilities.statistics.models.gam import AdditiveModel
from grandrounds.capabilities.statistics.question import Fit, Question, Total
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.models.risk_card import ABOVE, AT_MOST, KINDS, LEVEL, MISSING, Card, Term
from grandrounds.protocol.messages import Value

DISTILLED, DIRECT = "distilled", "direct"
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of a column at which steps may lie."""
KEPT = 60
"""Candidates whose products are asked for."""
NEWTON_STEPS = 2
"""Exchanges in which the direct route moves from least squares to the logistic likelihood."""

_DIGITS = 3  # of the value of a step: it is used as it is printed
_NEARLY_WHOLE = 1e-6  # a column of whole numbers has steps at whole numbers: "at most 0", not "at most 0.546"
_FEW_GAPS = 0.01  # share of rows without a value up to which "at most" and "above" are opposites


@dataclass(frozen=True)
class CardTerms:
    """Settings of the fit of a card.

    Attributes:
        columns: The columns of the inputs.
        features: Number of inputs.
        gam: Terms of the additive model; not used by the direct route.
        terms: Number of terms.
        points: Most points of a term.
        route: "distilled" or "direct".
        least: Fewest rows of a step, of its opposite, and of a printed range of totals.
    """

    columns: tuple[Column, ...]
    features: int
    gam: GAMTerms
    terms: int = 10
    points: int = 5
    route: str = DISTILLED
    least: int = 5


@dataclass(frozen=True)
class Candidates:
    """Steps, levels and missing values that may become terms, as arrays (m,)."""

    column: Array
    kind: Array
    value: Array

    def __len__(self) -> int:
        return len(self.column)

    def take(self, places: Array) -> Candidates:
        return Candidates(self.column[places], self.kind[places], self.value[places])

    def values(self) -> dict[str, Value]:
        """Return what a question carries."""
        return {"column": self.column, "kind": self.kind, "value": self.value}


@dataclass(frozen=True)
class CardResult:
    """A fitted card.

    Attributes:
        card: The card.
        arrays: The arrays of its model.
        route: "distilled" or "direct".
        scale: Points of one unit of log-odds.
        base: Log-odds of a total of 0 in the fit; the printed risks are observed ones.
        notes: Notes for the reader.
        additive: The additive model behind the card; None for the direct route.
    """

    card: Card
    arrays: Mapping[str, Array]
    route: str
    scale: float
    base: float
    notes: tuple[str, ...] = ()
    additive: GAMResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            **self.card.to_dict(),
            "route": self.route,
            "scale": self.scale,
            "base": self.base,
            "notes": list(self.notes),
            "arrays": {name: np.asarray(a).tolist() for name, a in self.arrays.items()},
            "additive": None if self.additive is None else self.additive.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CardResult:
        """Read what `to_dict` wrote."""
        return cls(
            Card.from_dict(values),
            {name: np.array(a, float) for name, a in values["arrays"].items()},
            str(values["route"]),
            float(values["scale"]),
            float(values["base"]),
            tuple(values["notes"]),
            None if values["additive"] is None else GAMResult.from_dict(values["additive"]),
        )


def list_candidates(columns: Sequence[Column], quantiles: Sequence[Sequence[float]]) -> Candidates:
    """List the candidates of columns.

    Args:
        columns: The columns.
        quantiles: For each column its quantiles at `SHARES`; anything for a category.

    Returns:
        Steps, then missing values, then levels, column by column. The value of a step has the digits that are printed.
    """
    found: list[tuple[int, str, float]] = []
    for c, column in enumerate(columns):
        if column.is_category:
            found += [(c, LEVEL, float(level)) for level in range(len(column.words))]
            found.append((c, MISSING, 0.0))
            continue
        cuts = sorted({float(f"{q:.{_DIGITS}g}") for q in quantiles[c]})
        found += [(c, AT_MOST, cut) for cut in cuts]
        if column.missing >= 0:  # without gaps, "above" is the opposite of "at most"
            found += [(c, ABOVE, cut) for cut in cuts]
            found.append((c, MISSING, 0.0))
    c_, k, v = ([f[i] for f in found] for i in range(3))
    return Candidates(np.array(c_, float), np.array([KINDS.index(str(w)) for w in k], float), np.array(v, float))


def card_options(method: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a card's model: the settings of its fit, and those of the additive model behind it.

    Args:
        method: The section [method] as a dict, or its parts `card` and `gam`.
    """
    return {**method["card"], "gam": dict(method["gam"])}


def card_terms(model: ColumnModel, least: int) -> CardTerms:
    """Return the terms of the fit of a card.

    Args:
        model: The model, with the options of `card_options`.
        least: Fewest rows of a cell (method.exact.least).

    Raises:
        BadInput: The outcome is not one of two classes.
    """
    if model.task != CLASSIFICATION or model.outputs != 1:
        raise BadInput(
            "a risk card prints the risk of one event, and the label has another task or more classes: choose a label with two "
            "values, or model 'gam'",
            code="card-needs-two-classes",
        )
    options = model.options or {}
    return CardTerms(
        model.columns,
        model.features,
        gam_terms(options["gam"], model.columns, least=least),
        int(options["terms"]),
        int(options["points"]),
        str(options["route"]),
        least,
    )


def fit_card(terms: CardTerms) -> Fit[CardResult]:
    """Fit a risk card by the route that the terms name.

    Args:
        terms: The settings.

    Returns:
        The card.

    Raises:
        BadInput: There are fewer different steps than terms, or the rows are of one class.
    """
    if terms.route == DIRECT:
        bins = yield from agree_bins(terms.columns, bins=MOST_BINS, least=terms.least)
        return (yield from fit_steps(terms, _bin_quantiles(bins), None))
    found = yield from fit_gam(terms.gam)
    scores = AdditiveModel(terms.features, terms.columns).pack(found.arrays)
    card = yield from fit_steps(terms, _model_quantiles(found.arrays, terms.columns), scores)
    return replace(card, additive=found)


def _bin_quantiles(bins: Bins) -> list[list[float]]:
    """Return for each column the edges of bins that are nearest to the quantiles at `SHARES`."""
    out = []
    for c, count in enumerate(bins.edge_counts.tolist()):
        below = np.cumsum(bins.rows[c, 1 : count + 1]) / max(1, int(bins.rows[c, 1 : count + 2].sum()))
        places = {int(np.argmin(np.abs(below - share))) for share in SHARES} if count else set()
        out.append([float(bins.edges[c, p]) for p in sorted(places)])
    return out


def _model_quantiles(arrays: Mapping[str, Array], columns: Sequence[Column]) -> list[list[float]]:
    """Return for each column its quantiles at `SHARES`, by the agreed distribution function of an additive model."""
    out: list[list[float]] = []
    for c, column in enumerate(columns):
        size = int(arrays["sizes"][c])
        knots, ranks = arrays["knots"][c, :size], arrays["ranks"][c, :size]
        if column.is_category or not size:
            out.append([])
        elif size == 1:  # two values: the knot is the higher one, and the step lies below it
            out.append([_below(float(knots[0]))])
        else:
            cuts = np.interp(SHARES, ranks, knots)
            is_whole = bool((np.abs(knots - np.rint(knots)) < _NEARLY_WHOLE).all())
            out.append((np.floor(cuts + _NEARLY_WHOLE) if is_whole else cuts).tolist())
    return out


def _below(value: float) -> float:
    """Return a number below a value that is printed as another: 0.5 below a whole number."""
    if value == round(value):
        return value - 0.5
    return value - abs(value) * 10.0 ** (1 - _DIGITS)


def fit_steps(
    terms: CardTerms, quantiles: Sequence[Sequence[float]], scores: Array | None, notes: Sequence[str] = ()
) -> Fit[CardResult]:
    """Fit a card: choose steps, give them points, and count totals.

    Args:
        terms: The settings.
        quantiles: For each column its quantiles at `SHARES`.
        scores: The packed additive model whose log-odds are the target; None: outcomes (route "direct").
        notes: Notes that come first.

    Returns:
        The card.

    Raises:
        BadInput: There are fewer different steps than terms, or the rows are of one class.
    """
    shared: dict[str, Value] = {
        "columns": write_columns(terms.columns),
        **({} if scores is None else {"scores": scores}),
    }
    every = list_candidates(terms.columns, quantiles)
    m = len(every)
    blocks: dict[str, tuple[int, ...]] = {"rows": (m,), "zw": (m,), "zt": (m,), "n": (), "w": (), "t": (), "y": ()}
    total = yield _question("card.steps", shared, every, blocks, "steps of every column", whole=scores is None)
    few = _screen(total, terms.least)
    gaps = every.kind == KINDS.index(MISSING)
    share = {int(c): n / float(total["n"]) for c, n in zip(every.column[gaps], total["rows"][gaps], strict=True)}
    flips = frozenset(c for c in range(len(terms.columns)) if share.get(c, 0.0) < _FEW_GAPS)
    if len(few) < terms.terms:
        raise _too_many_terms(terms.terms, len(few))
    kept = every.take(few)
    m = len(kept)
    blocks = {"zz": (m * (m + 1) // 2,), "zt": (m,), "w": (), "t": ()}
    total = yield _question("card.pairs", shared, kept, blocks, "products of steps", whole=scores is None)
    a, u, weight, mean = _quadratic(total, m, is_outcome=scores is None)
    fresh = drop_repeats(_square(total["zz"], m), weight, float(total["w"]))
    if len(fresh) < terms.terms:
        raise _too_many_terms(terms.terms, len(fresh))
    kept, a, u, weight = kept.take(fresh), a[np.ix_(fresh, fresh)], u[fresh], weight[fresh]
    if scores is None:
        steps = np.array(search_steps(a, u, terms=terms.terms)[0])
        slopes = np.linalg.solve(a[np.ix_(steps, steps)], u[steps])
        first = float(np.log(mean / (1 - mean)) - slopes @ weight[steps] / total["w"])
        a, u = yield from _newton(shared, kept.take(steps), start=np.array([first, *slopes]))
        kept, weight = kept.take(steps), weight[steps]
        found = round_points(a, u, range(len(steps)), most=terms.points)
    else:
        sets = search_steps(a, u, terms=terms.terms)
        found = min((_rounded(a, u, s, terms.points) for s in sets), key=lambda f: round(f[1], 9))[0]
    base = (np.log(mean / (1 - mean)) if scores is None else mean) - float(
        weight[list(found.steps)] @ np.array(found.points) / total["w"]
    ) / found.scale
    card_terms, shift = _write_terms(terms.columns, kept, found, flips)
    return (yield from _print_risks(terms, shared, card_terms, found.scale, base + shift / found.scale, notes))


def _rounded(a: Array, u: Array, steps: Sequence[int], most: int) -> tuple[Points, float]:
    """Round the points of a set of steps; also return the loss in units that can be compared between sets."""
    found = round_points(a, u, steps, most=most)
    chosen = np.asarray(steps)
    most_gain = float(u[chosen] @ np.linalg.solve(a[np.ix_(chosen, chosen)], u[chosen]))
    return found, found.loss * most_gain


def _question(
    kind: str,
    shared: Mapping[str, Value],
    steps: Candidates,
    blocks: Mapping[str, tuple[int, ...]],
    step: str,
    *,
    whole: bool,
) -> Question:
    cells = ("rows",) if "rows" in blocks else ()
    return Question(kind, {**shared, **steps.values()}, blocks, step=step, cells=cells, whole=whole)


def _screen(total: Total, least: int) -> Array:
    """Return the candidates that explain most alone, in their order; steps with few rows on one side are left out."""
    n, w = float(total["n"]), float(total["w"])
    if not 0 < total["y"] < n:
        raise BadInput(
            "all rows have the same outcome: a card needs patients with and without the event", code="one-class"
        )
    sides = (total["rows"] >= least) & (n - total["rows"] >= least)
    v = total["zw"] - total["zw"] ** 2 / w
    u = total["zt"] - total["zw"] * (total["t"] / w)
    score = np.where(sides & (v > 1e-9 * w), u**2 / np.maximum(v, 1e-300), 0.0)
    order = np.lexsort((np.arange(len(score)), -np.round(score / max(float(score.max()), 1e-300), 9)))
    chosen: Array = np.sort(order[:KEPT][score[order[:KEPT]] > 0])
    return chosen


def _too_many_terms(terms: int, steps: int) -> BadInput:
    return BadInput(
        f"the card has {terms} terms, and the columns offer {steps} different steps with enough patients: set "
        f"method.card.terms = {max(2, steps)} or fewer, or use more columns",
        code="too-many-terms",
    )


def _square(upper: Array, m: int) -> Array:
    """Return the symmetric matrix of an upper triangle by rows."""
    out = np.zeros((m, m))
    out[np.triu_indices(m)] = upper
    return out + np.triu(out, 1).T


def _quadratic(total: Total, m: int, *, is_outcome: bool) -> tuple[Array, Array, Array, float]:
    """Return A with the ridge on its diagonal, u, Z'w, and the mean of the target.

    Outcomes are fitted by a step of Newton's method from the model without terms: weights r(1 - r), working response.
    """
    square, w = _square(total["zz"], m), float(total["w"])
    weight = np.diag(square).copy()
    mean = float(total["t"] / w)
    a = square - np.outer(weight, weight) / w
    u = total["zt"] - weight * mean
    if is_outcome:
        a = a * (mean * (1 - mean))
    return a + RIDGE * np.eye(m), u, weight, mean


def _newton(shared: Mapping[str, Value], steps: Candidates, *, start: Array) -> Fit[tuple[Array, Array]]:
    """Fit a logistic regression on steps, with the ridge, and return the quadratic about its optimum."""
    k, beta = len(steps), start
    blocks: dict[str, tuple[int, ...]] = {"u": (k + 1,), "h": ((k + 1) * (k + 2) // 2,)}
    penalty = np.diag([0.0, *[RIDGE] * k])
    h = np.eye(k + 1)
    for number in range(1, NEWTON_STEPS + 1):
        asked = {**shared, "beta": beta}
        total = yield _question("card.newton", asked, steps, blocks, f"Newton step {number}", whole=False)
        h = _square(total["h"], k + 1) + penalty
        beta = beta + np.linalg.solve(h, total["u"] - penalty @ beta)
    a = h[1:, 1:] - np.outer(h[1:, 0], h[1:, 0]) / h[0, 0]
    return a, a @ beta[1:]


def _write_terms(
    columns: Sequence[Column], steps: Candidates, found: Points, flips: frozenset[int]
) -> tuple[tuple[Term, ...], int]:
    """Write the terms of a card, columns with the most points first; a step that lowers the risk becomes its opposite.

    "At most" and "above", or two levels, are opposites in columns that are never or hardly ever missing (`flips`). Points then
    move from the one to the other, and every total by the same number. The risks are counted afterwards.

    Returns:
        The terms, and the points that a total of 0 stands for.
    """
    written: list[tuple[int, Term]] = []
    shift = 0
    for place, points in zip(found.steps, found.points, strict=True):
        c, kind, value = int(steps.column[place]), KINDS[int(steps.kind[place])], float(steps.value[place])
        column = columns[c]
        if kind in (AT_MOST, ABOVE) and points < 0 and c in flips:
            kind, points, shift = (ABOVE if kind == AT_MOST else AT_MOST), -points, shift + points
        elif kind == LEVEL and points < 0 and c in flips and len(column.words) == 2:
            value, points, shift = 1 - value, -points, shift + points
        told: float | str | None = column.words[int(value)] if kind == LEVEL else None if kind == MISSING else value
        written.append((c, Term(_text(column.name, kind, told), column.name, kind, told, points)))
    weight = {c: max(abs(t.points) for d, t in written if d == c) for c, _ in written}
    order = sorted(written, key=lambda w: (-weight[w[0]], w[0], KINDS.index(w[1].kind), _order(w[1].value)))
    return tuple(term for _, term in order), shift


def _order(value: float | str | None) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, float) else (0.0, str(value))


def _text(name: str, kind: str, value: float | str | None) -> str:
    if kind == MISSING:
        return f"{name} missing"
    return f"{name} = {value}" if kind == LEVEL else f"{name} {kind} {value:.12g}"


def _print_risks(
    terms: CardTerms,
    shared: Mapping[str, Value],
    written: tuple[Term, ...],
    scale: float,
    base: float,
    notes: Sequence[str],
) -> Fit[CardResult]:
    """Count rows and events by total of points, and print the risks."""
    draft = card_arrays(Card(written, ()), terms.columns)
    points = draft["points"]
    low, high = int(points[points < 0].sum()), int(points[points > 0].sum())
    size = high - low + 1
    values = {"columns": shared["columns"], **{n: draft[n] for n in ("column", "kind", "value", "points")}, "low": low}
    blocks: dict[str, tuple[int, ...]] = {"rows": (size,), "events": (size,)}
    total = yield Question(
        "card.totals", values, blocks, step="rows and events by total", cells=("rows", "events"), whole=True
    )
    ranges, said = find_risks(total["rows"], total["events"], first=low, least=terms.least)
    card = Card(written, ranges)
    return CardResult(card, card_arrays(card, terms.columns), terms.route, scale, base, (*notes, *said))
