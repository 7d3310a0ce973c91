"""Generalised linear models from sums: logistic, linear and Poisson regression equal to a fit of the pooled rows.

Each exchange asks all sites for score U, information H and log-likelihood at beta; the server takes the Newton step
beta + (H + P)^-1 (U - P beta). The sites' half is in `glm_answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.estimates import INTERCEPT, PATIENTS_APART, Estimates
from grandrounds.capabilities.statistics.families import Family, find_family
from grandrounds.capabilities.statistics.firth import climb_firth
from grandrounds.capabilities.statistics.glm_answers import GLM_ANSWERS
from grandrounds.capabilities.statistics.glm_terms import GLMTerms, check_terms
from grandrounds.capabilities.statistics.intercepts import COMMON, OWN, RANDOM, own_intercept
from grandrounds.capabilities.statistics.newton import (
    ALIASED,
    NO_ROWS,
    Path,
    count_upper,
    find_aliased,
    invert,
    name_columns,
    solve,
    unpack_upper,
)
from grandrounds.capabilities.statistics.question import Fit, Question, Rows, Total, fit_in_memory
from grandrounds.capabilities.statistics.variance_grid import VarianceGrid
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.protocol.messages import Value

__all__ = ["GLMTerms", "describe_small_hospitals", "fit_glm", "fit_rows", "own_intercept"]

FEW_HOSPITALS = 20

_LONGEST = 2.0  # largest step of a coefficient in Poisson regression, in standard deviations
_MOST_SHARE, _HIGH_SHARE = 0.33, 0.1  # of coefficients to rows: refuse, note
_DISPERSED = 1.2  # Pearson dispersion of counts from which on advice is given
_SMALL = 30  # rows of the median hospital below which intercepts of hospitals bias log-odds by more than about 3%
_NEAR = 1e-4  # a decrement at which variances can be compared


def fit_glm(terms: GLMTerms) -> Fit[Estimates]:
    """Fit a generalised linear model.

    Args:
        terms: The terms.

    Returns:
        A generator of questions that returns the estimates, in the units of X.

    Raises:
        BadInput: The terms, or sums over all sites, do not allow the fit (one class, separated, too many columns).
        RunFailed: The fit diverged or took too many exchanges.
    """
    check_terms(terms)
    run = _Run(terms, find_family(terms.family))
    yield from run.start()
    if terms.firth:
        run.last = yield from climb_firth(run.ask, run.paths[0], run.paths[0].information)
        run.notes.append("Firth's correction: p-values and intervals are Wald's, not those of the profile likelihood")
        return run.conclude(0, None)
    while True:
        best = yield from run.climb()
        if terms.errors == "model":
            return run.conclude(best, None)
        meat = yield from run.ask_sandwich(best)
        if not meat.is_new_roster:
            return run.conclude(best, meat)


@dataclass
class _Run:
    """The state of one fit at the server."""

    terms: GLMTerms
    family: Family
    exchanges: int = 0
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    columns: list[int] = field(default_factory=list)  # of X, not left out
    grid: VarianceGrid = field(default_factory=lambda: VarianceGrid([0.0]))
    last: Total | None = None  # of "glm"
    events: float | None = None
    mean: float = 0.0  # of the outcome
    means: Array | None = None  # of the columns, where free intercepts come without their mean

    def __post_init__(self) -> None:
        self.columns = list(range(len(self.terms.names)))
        if self.terms.intercept == RANDOM:
            self.grid = VarianceGrid(self.terms.tau2)

    @property
    def paths(self) -> list[Path]:
        return self.grid.paths

    @property
    def has_intercept(self) -> bool:
        return self.terms.intercept != OWN

    @property
    def size(self) -> int:
        return len(self.columns) + self.has_intercept

    def ask(self, kind: str, step: str, blocks: dict[str, tuple[int, ...]], **values: Value) -> Fit[Total]:
        """Ask all sites, and note it if one of them has left."""
        terms = self.terms
        if self.exchanges >= terms.most_exchanges:
            raise RunFailed(
                f"the fit did not converge within {terms.most_exchanges} exchanges; set a ridge penalty or allow more",
                code="not-converged",
            )
        common: dict[str, Value] = {
            "family": terms.family,
            "intercept": terms.intercept,
            "columns": np.array(self.columns, np.int64),
            "tau2": np.array(self.grid.tau2, float),
            "offset": terms.offset,
            "centre": float(terms.centre),
            "unit": float(terms.unit),
        }
        self.exchanges += 1
        total = yield Question(kind, common | values, blocks, step)
        if total.is_new_roster:
            for path in self.paths:
                path.forget()
            self.events = None
            self.notes.append(
                f"site dropped out in exchange {self.exchanges}: estimates are over the {len(total.sites)} sites left"
            )
        return total

    def start(self) -> Fit[None]:
        """Check the data by sums, leave out aliased columns, and find the first beta of each path."""
        scalars: dict[str, tuple[int, ...]] = {"n": (), "y": (), "wrong": ()}
        mean, is_count = 0.0, self.family.name == "poisson"
        if is_count:
            scalars["fractional"] = ()
            total = yield from self.ask("glm.mean", "mean outcome", scalars)
            self.check(total)
            mean = float(total["y"] / total["n"])
        points, q = len(self.grid.tau2), self.size
        blocks = {"score": (points, q), "information": (points, count_upper(q)), **scalars}
        if not self.has_intercept:
            blocks |= {"squares": (q,), "used": ()} | ({} if self.terms.mean_intercept else {"sums": (q,)})
        null = np.zeros((points, q))
        if is_count:
            blocks["log_likelihood"] = (points,)
            null[:, : int(self.has_intercept)] = self.family.intercept(mean)
        begin: dict[str, Value] = {"start": np.array(self.terms.start)} if self.terms.start else {}
        total = yield from self.ask("glm.start", "start", blocks, mean=mean, null=null, **begin)
        self.check(total)
        self.events = float(total["y"]) if not self.family.is_scaled else None
        self.mean = float(total["y"] / total["n"])
        if "sums" in blocks:
            self.means = total["sums"] / total["n"]
        information = unpack_upper(total["information"], q)
        keep = self.leave_out_aliased(information[0], None if self.has_intercept else total["squares"])
        penalty = np.full(self.size, float(self.terms.ridge))
        penalty[: int(self.has_intercept)] = 0.0
        for i, (score, matrix) in enumerate(zip(total["score"], information, strict=True)):
            beta = solve(matrix[np.ix_(keep, keep)] + np.diag(penalty), score[keep])
            self.paths.append(Path(beta, penalty, information=matrix[np.ix_(keep, keep)]))
            if is_count:
                self.paths[i].longest = _LONGEST
                self.paths[i].begin_from(null[i, keep], float(total["log_likelihood"][i]))

    def check(self, total: Total) -> None:
        """Check outcomes and the number of rows by sums over all sites."""
        n, y = float(total["n"]), float(total["y"])
        if total["wrong"] > 0.5:
            wanted = {"logistic": "0 or 1", "poisson": "a count of zero or more"}.get(
                self.family.name, "a finite number"
            )
            raise BadInput(
                f"rows of at least one site cannot be used by a {self.family.name} regression: the outcome must be {wanted} "
                "and every input finite; check the label's column, or name another family",
                code="bad-outcome",
            )
        if n <= 0:
            raise BadInput("no site has a row for this regression; check the columns and the split", code="no-rows")
        if self.family.name == "logistic" and (y <= 1e-6 or y >= n - 1e-6):
            raise BadInput(
                "all rows of all sites have the same outcome, so there is nothing to fit; check the label's column",
                code="one-class",
            )
        if "used" in total.values and total["used"] < 0.5:
            raise BadInput(
                "every hospital's outcomes are all alike, so nothing is left for the columns; use random or common intercepts",
                code="one-class",
            )
        if self.family.name == "poisson" and y <= 1e-6:
            raise BadInput("all counts of all sites are zero; check the label's column", code="one-class")
        if self.size > _MOST_SHARE * n:
            raise BadInput(
                f"{self.size} coefficients for {n:.0f} rows of all sites are too many (at most {_MOST_SHARE:g} for each row): "
                "the sums would give rows away; leave columns out",
                code="too-many-columns",
            )
        many = f"{self.size} coefficients for {n:.0f} rows: more than one for ten rows, estimates may be unstable"
        if self.size > _HIGH_SHARE * n and many not in self.notes:
            self.notes.append(many)
        odd = "some counts are not whole numbers; Poisson regression was fitted to them as they are"
        if self.family.name == "poisson" and total["fractional"] > 0.5 and odd not in self.notes:
            self.notes.append(odd)

    def leave_out_aliased(self, information: Array, squares: Array | None) -> list[int]:
        """Leave out columns that are constant, empty or combinations of others; return the places of those that stay."""
        aliased = find_aliased(information, squares, has_intercept=self.has_intercept)
        first = int(self.has_intercept)
        for j, reason in aliased.items():
            if squares is not None and reason != NO_ROWS and information[j, j] <= ALIASED * squares[j]:
                reason = "constant within every hospital"
            self.left_out[self.terms.names[self.columns[j - first]]] = reason
        self.columns = [column for j, column in enumerate(self.columns, first) if j not in aliased]
        return [j for j in range(len(information)) if j not in aliased]

    def climb(self) -> Fit[int]:
        """Take Newton steps on all paths side by side until the best has converged; return its place."""
        step = 0
        while True:
            points, q = len(self.grid.tau2), self.size
            blocks: dict[str, tuple[int, ...]] = {
                "score": (points, q),
                "information": (points, count_upper(q)),
                "log_likelihood": (points,),
                "n": (),
            }
            if self.family.name == "poisson":
                blocks |= {"saturated": (), "far": (points,), "pearson": (points,)}
            if self.terms.intercept == OWN:
                blocks["used"] = ()
                if self.terms.mean_intercept:
                    blocks |= {"intercept": (), "intercept_weight": ()}
            if self.terms.intercept == RANDOM:
                blocks["log_det"] = (points,)
            step += 1
            beta = np.stack([path.beta for path in self.paths])
            total = yield from self.ask("glm", f"Newton step {step}", blocks, beta=beta)
            self.last = total
            scores, information = total["score"], unpack_upper(total["information"], q)
            if total.is_new_roster:  # a column may have had all its rows at the site that left
                squares = None if self.has_intercept else np.diag(self.paths[0].information)
                keep = self.leave_out_aliased(information[0], squares)
                scores, information = scores[:, keep], information[:, keep][:, :, keep]
                for path in self.paths:
                    path.keep(keep)
            for i, path in enumerate(self.paths):
                value = float(total["log_likelihood"][i])
                if "far" in blocks and total["far"][i] > 0.5:
                    path.shorten()
                    continue
                scale = self.scale(path.beta, information[i], value, total)
                path.advance(scores[i], information[i], value, scale=scale)
            merits = self.merits(total)
            best = int(np.argmax(merits))
            self.refuse_separated(self.paths[best])
            if total.is_new_roster:
                self.grid.restore(best)
            elif not self.grid.extend(best):
                if self.paths[best].has_converged and all(path.decrement < _NEAR for path in self.paths):
                    return best
                self.grid.drop(merits, best)

    def scale(self, beta: Array, information: Array, value: float, total: Total) -> float:
        """Return the residual variance of linear regression at a point; 1 for the other families."""
        if not self.family.is_scaled:
            return 1.0
        fitted = float(beta @ information @ beta) / float(total["n"])
        return max(-2 * float(value) / self.degrees(total), 1e-16 * fitted, 1e-300)

    def degrees(self, total: Total) -> float:
        """Return rows less coefficients; free intercepts count."""
        used = float(total["used"]) if self.terms.intercept == OWN else 0.0
        return max(float(total["n"]) - self.size - used, 1.0)

    def merits(self, total: Total) -> Array:
        """Return the log-likelihood of each path; with shrunk intercepts Laplace's approximation of the marginal one."""
        value = np.array([path.value for path in self.paths])
        if self.terms.intercept != RANDOM:
            return value
        if self.family.is_scaled:
            n = float(total["n"])
            value = -0.5 * n * (np.log(np.maximum(-2 * value, 1e-300) / n) + np.log(2 * np.pi) + 1)
        return np.asarray(value - total["log_det"])

    def refuse_separated(self, path: Path) -> None:
        """End the fit if coefficients grow without end."""
        if self.family.is_scaled or self.terms.ridge:
            return
        spans = np.asarray(self.terms.spans or np.ones(len(self.terms.names)))[self.columns]
        found = path.find_runaways(np.concatenate([np.zeros(int(self.has_intercept)), spans]))
        if len(found):
            names = [self.terms.names[self.columns[j - self.has_intercept]] for j in found]
            firth = ", or use firth with a common intercept" if self.family.name == "logistic" else ""
            raise BadInput(
                f"outcomes are separated by {name_columns(names)}: estimates grow without end. Set a ridge penalty or merge the "
                f"category with another{firth}",
                code="outcome-separated",
            )

    def ask_sandwich(self, best: int) -> Fit[Total]:
        """Ask for the middle of the sandwich at the final beta."""
        blocks: dict[str, tuple[int, ...]] = {"meat": (count_upper(self.size),), "clusters": ()}
        point: dict[str, Value] = {"beta": self.paths[best].beta[None], "tau2": np.array([self.grid.tau2[best]])}
        return (yield from self.ask("glm.sandwich", "robust errors", blocks, errors=self.terms.errors, **point))

    def conclude(self, best: int, meat: Total | None) -> Estimates:
        """Make the table of estimates from the last totals."""
        terms, path, total = self.terms, self.paths[best], self.last
        assert total is not None
        degrees = self.degrees(total)
        inverse = invert(path.information + np.diag(path.penalty))
        gain = path.decrement * self.scale(path.beta, path.information, path.value, total)  # of the last step
        rest = max(-2 * path.value - gain, 0.0)
        phi = rest / degrees if self.family.is_scaled else 1.0
        covariance = phi * (inverse @ path.information @ inverse if terms.ridge else inverse)
        if meat is not None:
            covariance = inverse @ unpack_upper(meat["meat"], self.size) @ inverse
            clusters = float(meat["clusters"])
            if terms.correction:
                covariance = covariance * (clusters / max(clusters - 1, 1.0))
            if terms.errors == "hospitals" and clusters < FEW_HOSPITALS:
                self.notes.append(f"{clusters:.0f} hospitals are few clusters: intervals are too short")
            if terms.errors == "patients":
                self.notes.append(PATIENTS_APART)
        facts = self.collect_facts(best, total, rest)
        unit = np.full(self.size, float(terms.unit))
        beta = path.beta * unit
        if self.has_intercept:
            beta[0] += terms.centre
        return Estimates.build(
            terms.family,
            [INTERCEPT, *terms.names] if self.has_intercept else terms.names,
            beta,
            covariance * np.outer(unit, unit),
            left_out=self.left_out,
            errors="penalised" if terms.ridge and meat is None else terms.errors,
            degrees=degrees if self.family.is_scaled and meat is None else None,
            tests=not terms.ridge,
            facts=facts,
            notes=self.notes,
        )

    def collect_facts(self, best: int, total: Total, rest: float) -> dict[str, Any]:
        """Collect the facts of a fit beside its coefficients; `rest` is the residual sum of squares of linear regression."""
        terms, path = self.terms, self.paths[best]
        n, degrees = float(total["n"]), self.degrees(total)
        facts: dict[str, Any] = {"n": n, "events": self.events, "hospitals": len(total.sites) or None}
        value = path.value + path.decrement / 2
        if self.family.is_scaled:
            value = -0.5 * n * (np.log(2 * np.pi * max(rest, 1e-300) / n) + 1) - n * np.log(terms.unit)
        count = self.size
        facts |= {"ridge": terms.ridge, "intercept": terms.intercept, "firth": terms.firth}
        if terms.intercept == OWN:
            used = float(total["used"])
            count += round(used)
            if self.means is None:
                mean = float(total["intercept"]) / max(float(total["intercept_weight"]), 1e-300)
            else:
                mean = self.family.intercept(self.mean) - float(self.means[self.columns] @ path.beta)
                self.notes.append(
                    "the intercept for new hospitals is that of the mean outcome at the mean of all columns"
                )
            facts["mean_intercept"] = mean * terms.unit + terms.centre
            facts["silent_sites"] = len(total.sites) - round(used)
            if facts["silent_sites"]:
                self.notes.append(
                    f"{facts['silent_sites']} of {len(total.sites)} hospitals say nothing about slopes: "
                    "their outcomes are all alike or they have no rows"
                )
        if terms.intercept == RANDOM:
            value -= float(total["log_det"][best])
            phi = rest / degrees * terms.unit**2 if self.family.is_scaled else 1.0
            facts |= {
                "mean_intercept": float(path.beta[0]) * terms.unit + terms.centre,
                "silent_sites": 0,
                "tau2": self.grid.tau2[best] * phi,
                "tau2_ratio": self.grid.tau2[best],
                "tau2_at_edge": bool(edge := self.grid.describe_edge(best)),
            }
            count += len(terms.tau2) > 1
            self.notes += [edge] if edge else []
        deviance = -2 * value
        if self.family.is_scaled:
            deviance = rest * terms.unit**2
            facts["dispersion"] = float(deviance) / degrees
        elif self.family.name == "poisson":
            deviance = 2 * (float(total["saturated"]) - value)
            facts["dispersion"] = float(total["pearson"][best]) / degrees
            if terms.errors == "model":
                self.notes += describe_dispersion(facts["dispersion"], degrees)
        return facts | {
            "log_likelihood": float(value),
            "deviance": float(deviance),
            "aic": float(2 * count - 2 * value),
            "exchanges": self.exchanges,
        }


def describe_dispersion(dispersion: float, degrees: float) -> list[str]:
    """Say that counts vary more than a Poisson regression expects, and what to do; nothing where they clearly do not.

    Args:
        dispersion: Pearson's statistic over its degrees of freedom; 1 is expected.
        degrees: Degrees of freedom.
    """
    if dispersion <= _DISPERSED or dispersion - 1 <= 3 * (2 / degrees) ** 0.5:
        return []
    return [
        f"counts vary more than Poisson regression expects (Pearson dispersion {dispersion:.3g}, and 1 is expected): standard "
        f"errors of the model are about {dispersion**0.5:.2g} times too small; use robust ones (--errors rows, errors=\"rows\")"
    ]


def describe_small_hospitals(family: str, intercept: str, rows: Sequence[int]) -> list[str]:
    """Say that intercepts of small hospitals bias the slopes of a logistic regression; nothing where they do not.

    With m rows, a free intercept moves log-odds away from zero by about 1 / (m - 1) (incidental parameters); penalised
    quasi-likelihood moves them towards it.

    Args:
        family: The family. Slopes of linear and Poisson regression are not biased.
        intercept: The kind of intercept.
        rows: Rows of each hospital.
    """
    median = float(np.median(rows)) if rows else 0.0
    if family != "logistic" or intercept == COMMON or median >= _SMALL:
        return []
    where = f"the median hospital has {median:g} rows, fewer than {_SMALL}"
    if intercept == OWN:
        return [f"{where}: own intercepts make log-odds ratios too large; compare with random and common ones"]
    return [f"{where}: random intercepts are approximate and make log-odds ratios too small; compare with own and common ones"]


def fit_rows(terms: GLMTerms, rows: Rows) -> tuple[Array, Array] | None:
    """Fit the model to the rows of one site alone, with an intercept of its own and errors of the model.

    Args:
        terms: The terms; intercept and errors are not used.
        rows: The site's rows.

    Returns:
        Estimates (1 + p,), the intercept first, and their covariance; None where the site cannot fit all columns.
    """
    terms = replace(terms, intercept=COMMON, errors="model")
    try:
        estimates = fit_in_memory(fit_glm(terms), {"site": rows}, GLM_ANSWERS)
    except GrandRoundsError:
        return None
    if len(estimates.names) < 1 + len(terms.names):
        return None
    return estimates.beta, np.asarray(estimates.covariance)
