"""Additive models from sums: curves of numbers and values of levels, with smoothness chosen from the same sums.

Two exchanges of counts agree on the basis (`gam_counts`). Then each exchange asks for score U, information H and log-likelihood
at beta, as for a generalised linear model. Between exchanges the server chooses the weight of every penalty by the method of
Fellner and Schall (Wood and Fasiolo 2017): with r = H beta + U, V = (H + P)^-1 and b = V r, it repeats
lambda <- gamma (rank - lambda tr(V S)) / (b' S b). There is nothing to tune, no seed, and no rows are set aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from grandrounds.capabilities.statistics.families import Family, find_family
from grandrounds.capabilities.statistics.gam_counts import (
    FEWEST,
    ColumnCounts,
    answer_cells,
    answer_octaves,
    ask_cells,
    ask_octaves,
    make_basis,
    place_cuts,
    read_counts,
    screen_columns,
)
from grandrounds.capabilities.statistics.gam_penalties import Penalties
from grandrounds.capabilities.statistics.gam_result import Fitted, GAMResult, conclude
from grandrounds.capabilities.statistics.gam_terms import GAMTerms, gam_terms
from grandrounds.capabilities.statistics.models.column_basis import FEWEST_SPLINES, Basis
from grandrounds.capabilities.statistics.models.columns import parse_columns, read_columns, write_columns
from grandrounds.capabilities.statistics.newton import count_upper, pack_upper, unpack_upper
from grandrounds.capabilities.statistics.question import BOUND, Answer, Blocks, Fit, Question, Rows, Total
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.protocol.messages import Value

__all__ = ["GAM_ANSWERS", "GAMTerms", "fit_gam", "gam_terms"]

CLOSE = 0.02
"""The fit ends at steps of this root mean square, in standard errors."""

_HALVINGS = 10
_LONGEST = 10.0  # largest step of a coefficient in Poisson regression
_CHUNK = 8192  # rows whose inputs are in memory at a time


def fit_gam(terms: GAMTerms) -> Fit[GAMResult]:
    """Fit an additive model.

    Args:
        terms: The terms.

    Returns:
        A generator of questions that returns the model's arrays and shapes.

    Raises:
        BadInput: Sums over all sites do not allow the fit (one class, wrong outcomes, no rows, no column).
        RunFailed: The fit diverged or took too many exchanges.
    """
    if terms.splines < FEWEST_SPLINES:
        raise BadInput(f"splines = {terms.splines} must be {FEWEST_SPLINES} or more", code="bad-value")
    run = _Run(terms, find_family(terms.family))
    counts = yield from run.count()
    kept = list(range(len(terms.columns)))
    if terms.most_columns is not None:
        kept = screen_columns(terms.columns, counts, most=terms.most_columns)
    basis, left_out = make_basis(
        terms.columns, counts, splines=terms.splines, least=max(FEWEST, terms.least), kept=kept
    )
    if run.has_one_outcome(counts.rows):
        basis, left_out = make_basis(terms.columns, counts, splines=terms.splines, least=FEWEST, kept=[])
        return conclude(run.keep_intercept(basis, counts), counts, monotone={}, least=terms.least, left_out=left_out)
    if not basis.size and not terms.is_local:
        raise BadInput(
            f"no column has two values with {max(FEWEST, terms.least)} rows each over all sites; check the columns",
            code="no-rows",
        )
    fitted = yield from run.climb(basis, counts)
    return conclude(fitted, counts, monotone=terms.monotone, least=terms.least, left_out=left_out)


@dataclass
class _Run:
    """The state of one fit at the server."""

    terms: GAMTerms
    family: Family
    exchanges: int = 0
    notes: list[str] = field(default_factory=list)

    def ask(self, question: Question) -> Fit[Total]:
        """Ask all sites, and note it if one of them has left."""
        if self.exchanges >= self.terms.most_exchanges:
            raise RunFailed(
                f"the fit did not converge within {self.terms.most_exchanges} exchanges: allow more (method.rounds)",
                code="not-converged",
            )
        self.exchanges += 1
        total = yield question
        if total.is_new_roster:
            self.notes.append(
                f"site dropped out in exchange {self.exchanges}: the model is of the {len(total.sites)} sites left; counts of "
                "patients are those of earlier exchanges"
            )
        return total

    def count(self) -> Fit[ColumnCounts]:
        """Agree on distribution functions of columns and on levels, by counts."""
        terms = self.terms
        text, sides = write_columns(terms.columns), 1 if terms.most_columns is None else 2
        first = ask_octaves(text, terms.columns, family=terms.family, centre=terms.centre, unit=terms.unit, sides=sides)
        total = yield from self.ask(first)
        self.check(total)
        cuts = [place_cuts(o, p) for o, p in zip(total["octaves"], total["places"], strict=True)]
        cells = yield from self.ask(ask_cells(text, terms.columns, cuts, first, sides))
        return read_counts(terms.columns, cuts, total.values, cells.values)

    def check(self, total: Total) -> None:
        """Check outcomes by sums over all sites."""
        if total["wrong"] > 0.5:
            wanted = {"logistic": "0 or 1", "poisson": "a count of zero or more"}.get(
                self.family.name, "a finite number"
            )
            raise BadInput(
                f"rows of at least one site cannot be used by an additive model: the outcome must be {wanted}; check the "
                "label's column, or set data.task",
                code="bad-outcome",
            )
        if self.terms.is_local:
            return
        if total["rows"].sum() < 1:
            raise BadInput("no site has a row for this model; check the columns and the split", code="no-rows")
        if self.has_one_outcome(total["rows"]):
            raise BadInput(
                "all rows of all sites have the same outcome, so there is nothing to fit; check the label's column",
                code="one-class",
            )

    def has_one_outcome(self, rows: Array) -> bool:
        """Check by counts (2,) that rows have no outcomes that differ: one class, or no rows at all."""
        return not rows.all() if self.family.name == "logistic" else rows.sum() < 1

    def keep_intercept(self, basis: Basis, counts: ColumnCounts) -> Fitted:
        """Return a model without shapes: log-odds of the rows, with half a patient more of either class."""
        without, event = (counts.rows + 0.5).tolist()
        beta = np.array([np.log(event / without)])
        one, notes = np.ones((1, 1)), ("all rows have the same outcome: the model has no shapes",)
        return Fitted(
            basis, self.family.name, beta, one, one, 1.0, (), self.exchanges, self.terms.centre, self.terms.unit, notes
        )

    def climb(self, basis: Basis, counts: ColumnCounts) -> Fit[Fitted]:
        """Take Newton steps with penalties chosen between them, until a step is short."""
        beta = np.zeros(1 + basis.size)
        if self.family.name == "logistic":
            beta[0] = np.log(counts.rows[1] / counts.rows[0])
        penalties = Penalties.build(basis)
        base, step, halvings = _Base(beta, -np.inf), np.zeros_like(beta), 0
        while True:
            total = yield from self.ask(self.question(basis, beta))
            score, information = total["score"], unpack_upper(total["information"], len(beta))
            if total.is_new_roster:
                basis, kept = self.drop_small_cells(basis, total)
                beta, score, information = beta[kept], score[kept], information[np.ix_(kept, kept)]
                base, penalties = _Base(beta, -np.inf), Penalties.build(basis)
            value = float(total["log_likelihood"])
            penalised = value - 0.5 * float(beta @ penalties.matrix() @ beta)
            if penalised < base.value - 1e-9 * (1 + abs(base.value)) or total["far"] > 0.5:
                halvings += 1
                if halvings > _HALVINGS or not np.isfinite(base.value):
                    raise RunFailed(
                        "the fit diverged: the log-likelihood falls along the step; check columns with extreme values",
                        code="fit-diverged",
                    )
                step = 0.5 * step
                beta = base.beta + step
                continue
            halvings = 0
            penalties, found, inverse, phi = penalties.choose(
                information,
                information @ beta + score,
                gamma=self.terms.gamma,
                residual=(-2 * value, float(total["n"])) if self.family.is_scaled else None,
                beta=beta,
            )
            step = found - beta
            length = float(np.sqrt(max(float(step @ information @ step), 0.0) / len(beta)))
            if self.family.is_scaled or length < CLOSE:
                return Fitted(
                    *(basis, self.family.name, found, inverse, information, phi),
                    penalties=tuple(penalties.weights.tolist()),
                    exchanges=self.exchanges,
                    centre=self.terms.centre,
                    unit=self.terms.unit,
                    notes=tuple(self.notes),
                )
            if self.family.name == "poisson":
                step = step * min(1.0, _LONGEST / max(float(np.abs(step).max()), 1e-300))
            base = _Base(beta, value - 0.5 * float(beta @ penalties.matrix() @ beta))
            beta = beta + step

    def question(self, basis: Basis, beta: Array) -> Question:
        """Build the question for score, information and log-likelihood at beta."""
        q = len(beta)
        kept = np.array([level in chosen for chosen, c in zip(basis.levels, basis.columns, strict=True)
                         for level in range(len(c.levels))], np.uint8)  # fmt: skip
        values: dict[str, Value] = {
            "columns": write_columns(basis.columns),
            "family": self.family.name,
            "centre": float(self.terms.centre),
            "unit": float(self.terms.unit),
            "splines": basis.splines,
            "knots": basis.knots,
            "ranks": basis.ranks,
            "sizes": basis.sizes,
            "levels": kept,
            "gaps": basis.gaps.astype(np.uint8),
            "beta": beta,
        }
        blocks: dict[str, tuple[int, ...]] = {
            "score": (q,),
            "information": (count_upper(q),),
            "log_likelihood": (),
            "n": (),
            "rows": (len(_indicators(basis)),),
            "far": (),
        }
        return Question("gam", values, blocks, f"Newton step {self.exchanges - 1}")

    def drop_small_cells(self, basis: Basis, total: Total) -> tuple[Basis, list[int]]:
        """Drop levels and missing values that have too few rows left after a site has dropped out.

        Returns:
            The basis without them, and the places of the coefficients that stay, the intercept first.
        """
        indicators = _indicators(basis)
        small = [j for j, rows in zip(indicators, total["rows"], strict=True) if np.rint(rows) < self.terms.least]
        if small:
            self.notes.append(
                f"{len(small)} levels or missing values have fewer than {self.terms.least} rows at the sites left, and no effect"
            )
        return basis.without(small), [0, *(1 + j for j in range(basis.size) if j not in small)]


@dataclass(frozen=True, eq=False)
class _Base:
    """The last point whose penalised log-likelihood was accepted, and that value."""

    beta: Array
    value: float


def _indicators(basis: Basis) -> list[int]:
    """Return the coefficients of levels and missing values, the intercept excepted."""
    return [j for s in basis.spans if s.part in ("levels", "missing") for j in range(s.first, s.first + s.size)]


def read_basis(question: Question) -> Basis:
    """Read the basis of a question.

    Args:
        question: The question "gam".

    Returns:
        The basis.
    """
    v = question.values
    columns = parse_columns(str(v["columns"]))
    kept, used, levels = np.asarray(v["levels"]), 0, []
    for column in columns:
        levels.append(tuple(np.flatnonzero(kept[used : used + len(column.levels)]).tolist()))
        used += len(column.levels)
    return Basis(
        columns,
        int(np.asarray(v["splines"])),
        np.asarray(v["knots"], float),
        np.asarray(v["ranks"], float),
        np.asarray(v["sizes"]).astype(np.int64),
        tuple(levels),
        np.asarray(v["gaps"]).astype(bool),
    )


def answer_gam(question: Question, rows: Rows) -> Blocks:
    """Answer "gam": score, information and log-likelihood at beta, and the rows behind levels and missing values.

    Of a count, the linear predictor is the log of its ratio to the agreed mean. A site whose sums would be out of range says so
    (`far`) and sends zeros; the server then shortens the step.
    """
    v, basis = question.values, read_basis(question)
    family, beta = find_family(str(v["family"])), np.asarray(v["beta"], float)
    centre, unit = float(np.asarray(v["centre"])), float(np.asarray(v["unit"]))
    is_count = family.name == "poisson"
    offset, y = (np.log(unit), rows.y) if is_count else (0.0, (rows.y - centre) / unit)
    values = read_columns(rows.x, basis.columns)
    q = len(beta)
    score, information, value = np.zeros(q), np.zeros((q, q)), 0.0
    indicators = [1 + k for k in _indicators(basis)]
    behind = np.zeros(len(indicators))
    for first in range(0, len(y), _CHUNK):
        some = slice(first, first + _CHUNK)
        x = np.column_stack([np.ones(len(y[some])), basis.design(values[some])])
        eta = x @ beta + offset
        mu, slope = family.predict(eta)
        score += (y[some] - mu) @ x
        information += (x * slope[:, None]).T @ x
        value += float(family.log_likelihood(y[some], eta).sum())
        behind += x[:, indicators].sum(axis=0)
    blocks = {"score": score, "information": pack_upper(information), "log_likelihood": np.asarray(value)}
    is_far = not all(np.abs(b).max(initial=0.0) < BOUND for b in blocks.values())
    blocks = {name: np.zeros_like(b) for name, b in blocks.items()} if is_far else blocks
    return {**blocks, "n": np.asarray(float(len(y))), "rows": behind, "far": np.asarray(float(is_far))}


GAM_ANSWERS: Mapping[str, Answer] = {"gam": answer_gam, "gam.cells": answer_cells, "gam.octaves": answer_octaves}
"""The site's half of additive models, by kind of question."""
