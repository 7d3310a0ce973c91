"""Sums of a linear regression by site, from which the fit over fewer sites follows without asking anybody.

Score, information and residual sum of squares of a linear regression at any coefficients follow from those at others:

    U(b) = U(a) - H (b - a),   RSS(b) = RSS(a) - 2 (b - a)'U(a) + (b - a)'H (b - a)

So a fit over the sites that are left needs no exchange: the sums of the site that withdrew are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.newton import count_upper, pack_upper, unpack_upper
from grandrounds.capabilities.statistics.question import Blocks, Question, unpack_blocks
from grandrounds.core.arrays import Array

KINDS = ("glm.start", "glm")
"""Kinds of question that the sums answer."""

_ARRAYS = ("n", "y", "information", "beta", "score", "value")


@dataclass(frozen=True, eq=False)
class LinearSums:
    """Sums of K sites over p columns with an intercept, q = 1 + p.

    Attributes:
        n: (K,) rows.
        y: (K,) summed outcome.
        information: (K, q (q + 1) / 2) products of columns.
        beta: (q,) coefficients of the last exchange.
        score: (K, q) score at beta.
        value: (K,) minus half of the residual sum of squares at beta.
    """

    n: Array
    y: Array
    information: Array
    beta: Array
    score: Array
    value: Array

    @classmethod
    def read(cls, start: tuple[Question, Array], last: tuple[Question, Array]) -> LinearSums | None:
        """Read the sums from the answers (K, numbers) to the first and the last question of a fit.

        Returns:
            The sums; None where a site dropped out in between, or a column was left out.
        """
        if len(start[1]) != len(last[1]) or start[0].blocks["score"] != last[0].blocks["score"]:
            return None
        first = [unpack_blocks(start[0], vector) for vector in start[1]]
        end = [unpack_blocks(last[0], vector) for vector in last[1]]
        return cls(
            np.array([float(b["n"]) for b in first]),
            np.array([float(b["y"]) for b in first]),
            np.array([b["information"][0] for b in first]),
            np.asarray(last[0].values["beta"], float)[0],
            np.array([b["score"][0] for b in end]),
            np.array([float(b["log_likelihood"][0]) for b in end]),
        )

    def arrays(self) -> dict[str, Array]:
        """Return the sums as named arrays."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> LinearSums:
        return cls(**{name: np.asarray(arrays[name]) for name in _ARRAYS})

    def drop(self, place: int) -> LinearSums:
        """Leave out the sums of one site."""
        rest = {name: np.delete(getattr(self, name), place, axis=0) for name in ("n", "y", "information", "score", "value")}
        return LinearSums(beta=self.beta, **rest)

    def counts(self) -> Array:
        """Return the sum of each column over all sites, (p,); of a 0/1 column the number of its rows."""
        return np.asarray(self._products()[0, 1:])

    def _products(self) -> Array:
        size = round((np.sqrt(8 * self.information.shape[1] + 1) - 1) / 2)
        assert count_upper(size) == self.information.shape[1]
        return unpack_upper(self.information.sum(axis=0), size)

    def answer(self, question: Question) -> Blocks:
        """Answer a question as the sum over all sites.

        Args:
            question: A question of KINDS about the same columns.

        Returns:
            The summed blocks.
        """
        asked = np.concatenate([[0], 1 + np.asarray(question.values["columns"], np.int64)])
        products, score = self._products(), self.score.sum(axis=0)
        beta = np.zeros(len(products))
        beta[asked] = 0.0 if question.kind == "glm.start" else np.asarray(question.values["beta"], float)[0]
        step = beta - self.beta
        blocks = {
            "score": (score - products @ step)[asked][None],
            "information": pack_upper(products[np.ix_(asked, asked)])[None],
            "n": self.n.sum(),
        }
        if question.kind == "glm.start":
            return blocks | {"y": self.y.sum(), "wrong": np.zeros(())}
        value = self.value.sum() + step @ score - 0.5 * step @ products @ step
        return blocks | {"log_likelihood": np.array([value])}
