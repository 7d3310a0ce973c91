"""VEIL at a site: proposals of features, and sums over patients of clipped vectors. No model leaves the site.

Each task states its sensitivity to one patient, which is the same for any other patients and any model from the server. Draws
and noise come from the site's own secret, not from the experiment's seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset
from grandrounds.explain.noised_percentiles import ColumnCells
from grandrounds.methods.veil.bounded_fits import convex_weights, gradient_descent_weights
from grandrounds.methods.veil.extractor import Extractor, client_update, draw_candidates
from grandrounds.models.dense import probabilities
from grandrounds.privacy.discrete import discrete_laplace, laplace_scale
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.tasks import CENSUS, MOMENTS, PERCENTILES, PROPOSE, SCORES
from grandrounds.site.plugin import Columns, SitePlugin, Task


class VeilSite(SitePlugin):
    """The tasks of VEIL for the sites of one host."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {
            CENSUS: self._census,
            PROPOSE: self._propose,
            SCORES: self._scores,
            MOMENTS: self._moments,
            PERCENTILES: self._percentiles,
        }

    def _census(self, ask: Ask, members: Array) -> Columns:
        """Count training rows and events, (2,): one patient is in both, or in the first.

        With a `norm` R, also sum clip(x_i, c) / R over patients i, with vectors of norm at most 1: (2 + d,).
        """
        config = ask.shared
        counts = np.array([self._counts(config, x, y) for x, y in self._rows(members)], float)
        if "epsilon" in config:
            scale = laplace_scale(float(config["epsilon"]), sensitivity=2)  # one patient may be in both counts
            counts += self._noise(ask, members, 2, lambda rng, size: discrete_laplace(scale, size, rng=rng))
        return {"census": counts + self._gaussian(ask, members, counts.shape[1])}

    @staticmethod
    def _counts(config: Mapping[str, Value], x: Array, y: Array) -> Array:
        rows = np.array([len(y), y.sum()])
        if "norm" not in config:
            return rows
        c, r = _clip_value(config), float(config["norm"])
        return np.concatenate([rows, _clip_rows(np.clip(x, -c, c), r).sum(axis=0) / r])

    def _propose(self, ask: Ask, members: Array) -> Columns:
        """Propose k candidates of 2 d + 2: feature j with a sign, numbered j and j + d + 1; the last feature is the intercept.

        With `features`, only they and the intercept are candidates. By `paper`: Algorithm 1 of the paper. By all others, feature
        and sign are drawn together: by `score` at the model from the server, by `strongly_convex` and `non_expansive` by the
        weights of a small local model in units of their sensitivity to one patient.
        """
        config = ask.shared
        k, epsilon, selection = int(config["k"]), float(config.get("epsilon", 0.0)), str(config["selection"])
        size = int(config["inputs"]) + 1
        among = np.append(_asked_features(config), size - 1)
        votes = []
        for (x, y), site in zip(self._rows(members), self.site.names_of(members), strict=True):
            fit = np.random.default_rng(self._key(ask, site, 1))
            draw = np.random.Generator(np.random.Philox(key=self._key(ask, site, 0)))
            if selection == "paper":
                chosen, negative = client_update(
                    Extractor.from_values(config), x, y, epsilon=epsilon, k=k, fit=fit, draw=draw
                )
            else:
                utility = (
                    score_statistic(config, x, y)[among]
                    if selection == "score"
                    else _BOUNDED_FITS[selection](Extractor.from_values(config), x, y, fit)
                )
                drawn = draw_candidates(np.concatenate([utility, -utility]), epsilon, k, draw)
                chosen, negative = drawn % len(utility), drawn >= len(utility)
            votes.append(among[chosen] + negative * size)
        candidate_count = 2 * size
        return {"votes": np.array(votes, np.uint8 if candidate_count <= 256 else np.uint16)}

    def _scores(self, ask: Ask, members: Array) -> Columns:
        """Sum (y_i - p_i) (clip(x_i, c), 1) over patients i on the requested features, with vectors of norm at most R.

        Values are relative to the `centre`, if one is sent: clipping shortens the vectors of patients with the event most, which
        would bias features that are off centre.
        """
        config = ask.shared
        model, chosen, c, r = _read_model(config), _asked_features(config), _clip_value(config), float(config["norm"])
        centre = np.asarray(config["centre"], float)[chosen] if "centre" in config else 0.0
        out = []
        for x, y in self._rows(members):
            z = _add_intercept(np.clip(x[:, chosen], -c, c) - centre)
            residual = y - _probability(model, x, c)
            length = np.abs(residual) * np.linalg.norm(z, axis=1)
            out.append((residual * np.minimum(1.0, r / np.maximum(length, 1e-12))) @ z)
        sums = np.array(out)
        return {"scores": sums + self._gaussian(ask, members, sums.shape[1])}

    def _moments(self, ask: Ask, members: Array) -> Columns:
        """Sum z_i z_i' (the upper half) and a z_i (y_i - prior) over patients i, for z_i = (clip(x_i, c), 1) of norm at most R.

        Off-diagonal entries are multiplied by the square root of 2, so that the vector of one patient has norm sqrt(||z||^4 +
        a^2 ||z||^2 (y - prior)^2).
        """
        config = ask.shared
        c, r, prior, a = _clip_value(config), float(config["norm"]), float(config["prior"]), float(config["outcome"])
        out = []
        for x, y in self._rows(members):
            z = _clip_rows(_add_intercept(np.clip(x, -c, c)), r)
            gram = z.T @ z
            upper = np.triu_indices(len(gram))
            packed_gram = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0)) * gram[upper]
            out.append(np.concatenate([packed_gram, a * ((y - prior) @ z)]))
        sums = np.array(out)
        return {"moments": sums + self._gaussian(ask, members, sums.shape[1])}

    def _percentiles(self, ask: Ask, members: Array) -> Columns:
        """Count training rows in each agreed cell of the requested columns: a patient is in one cell per column."""
        columns = [ColumnCells.from_dict(values) for values in json.loads(str(ask.shared["columns"]))]
        stack = self.site.stack
        if not isinstance(stack.data, Dataset):
            raise BadInput("percentiles need the columns of a table, but this site has images", code="needs-table")
        train = stack.parts["train"]
        rows = [stack.rows[k].train for k in members.tolist()]
        if train.patients is not None:
            rows = [mine[train.patients[k].chosen] for mine, k in zip(rows, members.tolist(), strict=True)]
        counts = np.array([np.concatenate([c.count(stack.data, mine) for c in columns]) for mine in rows], float)
        return {"cells": counts + self._gaussian(ask, members, counts.shape[1])}

    def _gaussian(self, ask: Ask, members: Array, size: int) -> Array:
        """Draw noise of the requested standard deviation, if no secure sum adds it."""
        sigma = float(ask.shared.get("noise", 0.0))
        if not sigma:
            return np.zeros((len(members), size))
        return self._noise(ask, members, size, lambda rng, size: rng.normal(0.0, sigma, size))

    def _noise(self, ask: Ask, members: Array, size: int, draw: Callable[[np.random.Generator, int], Array]) -> Array:
        keys = [self._key(ask, site, 2) for site in self.site.names_of(members)]
        return np.array([draw(np.random.Generator(np.random.Philox(key=key)), size) for key in keys])

    def _key(self, ask: Ask, site: str, purpose: int) -> Array:
        """Derive 128 bits from the site's secret for one Ask."""
        words = self.site.secret(site).bytes(f"{ask.id}: {ask.task} {purpose}", 16)
        return np.frombuffer(words, "<u8")

    def _rows(self, members: Array) -> Iterator[tuple[Array, Array]]:
        """Yield each member's training rows (n, d) and outcomes (n,), 0 or 1; one row per patient if the privacy unit is a
        patient."""
        part = self.site.stack.parts.get("train")
        if part is None:
            raise BadInput("this site has not prepared its data yet: ask 'prepare' first", code="site-not-prepared")
        if part.target.shape[1] != 1:
            raise BadInput("VEIL needs two classes", code="too-many-classes")
        for k in members.tolist():
            mine = part.one_each(k)
            yield np.asarray(part.x[mine], float), np.asarray(part.y[mine], float)


def score_statistic(config: Mapping[str, Value], x: Array, y: Array) -> Array:
    """Compute sum_i (y_i - p_i) clip(x_ij, c) / c for each feature, and for the intercept sum_i (y_i - p_i): (d + 1,).

    One patient changes an entry by 1 at most, whatever the model.
    """
    c = _clip_value(config)
    residual = y - _probability(_read_model(config), x, c)
    out: Array = residual @ _add_intercept(np.clip(x, -c, c) / c)
    return out


_BOUNDED_FITS = {"strongly_convex": convex_weights, "non_expansive": gradient_descent_weights}
"""Local fits by whose weights features and signs are drawn."""


def _probability(model: Array, x: Array, c: float) -> Array:
    """Predict these rows, with values clipped as they are in sums."""
    out: Array = probabilities(np.clip(x, -c, c) @ model[:-1, None] + model[-1])[:, 0]
    return out


def _clip_rows(z: Array, longest: float) -> Array:
    """Clip the rows to this norm."""
    out: Array = z * np.minimum(1.0, longest / np.maximum(np.linalg.norm(z, axis=1), 1e-12))[:, None]
    return out


def _add_intercept(x: Array) -> Array:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def _asked_features(config: Mapping[str, Value]) -> Array:
    """Return the requested features; all if none are named."""
    return np.asarray(config["features"], np.int64) if "features" in config else np.arange(int(config["inputs"]))


def _clip_value(config: Mapping[str, Value]) -> float:
    return float(config["value"])


def _read_model(config: Mapping[str, Value]) -> Array:
    """Return the weights (d + 1,) from the server; if none were sent, zeros with the log-odds of the prior as intercept."""
    if "model" in config:
        return np.asarray(config["model"], float)
    out = np.zeros(int(config["inputs"]) + 1)
    prior = float(config["prior"])
    out[-1] = np.log(prior / (1 - prior))
    return out
