"""Sketches: global feature importances of a model, as shares that sum to one.

Raw importances cannot be compared across sites: a sharper model has larger ones. On the simplex they can (SSE-AGG
eq. 3). A sketch carries the sampling error of every share, because smaller differences between sketches are not significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.explain.explainer import Importances

_NEAR_ONE = 1e-5
"""Tolerance of the sum of shares of a sketch: they may be 32-bit numbers."""


def simplex(importances: Array) -> tuple[Array, Array]:
    """Normalise importances to sketches E = P / sum P, P = max(0, importances), (..., F); flag flat ones (SSE-AGG eq. 3).

    A model that uses no feature (sum P = 0), or whose importances are not finite, gets the uniform sketch and is flagged
    flat. The paper adds eps to the sum instead: such a model's sketch is then all zeros, at distance 1 from every other
    sketch where those may be at distance 2, so a model at chance could get the largest agreement weight.
    """
    positive = np.maximum(np.ascontiguousarray(importances, float), 0)
    count = positive.shape[-1]
    if count == 0:
        raise BadInput(
            "a sketch needs at least one feature", code="no-features"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        total = positive.sum(axis=-1, keepdims=True)
    usable = np.isfinite(total) & (total > 0)
    shares: Array = np.full(positive.shape, 1 / count)
    np.divide(positive, total, out=shares, where=usable)
    return shares, ~usable[..., 0]


def simplex_error(importances: Array, error: Array) -> Array:
    """Propagate the standard error of each importance to each share of `simplex`, (..., F) (delta method).

    Var E_f = ((1 - E_f)^2 s_f^2 + E_f^2 sum_{g != f} s_g^2) / (sum P)^2. Features are taken as independent, which
    errs to the high side where all of them rise and fall together; clipping at zero, which only shrinks a spread, is
    left out. A share lies in [0, 1], so its error is at most 1/2, which is used if the sum of importances is within its own
    error of zero. A flat sketch is uniform by definition and has no error.
    """
    shares, flat = simplex(importances)
    positive = np.maximum(np.ascontiguousarray(importances, float), 0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        squares = (np.asarray(error, float) / positive.sum(axis=-1, keepdims=True)) ** 2
        rest = np.maximum(squares.sum(axis=-1, keepdims=True) - squares, 0)
        deviation = np.sqrt((1 - shares) ** 2 * squares + shares**2 * rest)
    return np.where(flat[..., None], 0.0, np.fmin(deviation, 0.5))


def largest(values: Array, n: int) -> Array:
    """Mark the n largest entries along the last axis, (..., F) of bool; of equal ones the first."""
    values = np.asarray(values)
    mask = np.zeros(values.shape, bool)
    np.put_along_axis(mask, np.argsort(-values, axis=-1, kind="stable")[..., :n], True, axis=-1)
    return mask


def keep_top(sketches: Array, q: int) -> Array:
    """Keep the q largest shares of sketches (..., F), made to add up to one (Algorithm 3); 0 keeps all."""
    if q < 0:
        raise BadInput(f"a sketch cannot keep {q} features: give how many to keep, or 0 for all", code="bad-top-count")
    sketches = np.asarray(sketches, float)
    if q == 0 or q >= sketches.shape[-1]:
        return sketches
    return simplex(np.where(largest(sketches, q), sketches, 0))[0]


def add_noise(sketches: Array, sigma: float, rng: np.random.Generator) -> Array:
    """Add Gaussian noise to sketches (..., F), clipped at zero and made to add up to one; uniform where nothing is left.

    It gives no privacy guarantee by itself, and large noise destroys a sketch: before clipping its expected L1 norm is 0.8 F
    sigma, which at the paper's 0.05 and 64 features exceeds the largest distance of two sketches, 2.
    """
    if not (math.isfinite(sigma) and sigma >= 0):
        raise BadInput(
            f"the noise on a sketch is {sigma}, but a standard deviation is a number of 0 or more", code="bad-noise"
        )
    sketches = np.asarray(sketches, float)
    if sigma == 0:
        return sketches
    return simplex(sketches + rng.normal(0, sigma, sketches.shape))[0]


@dataclass(frozen=True, eq=False)
class Sketch:
    """Shares (F,) of one model or site with their standard errors (F,), and the settings that gave them."""

    values: Array
    names: tuple[str, ...]
    error: Array
    top_count: int = 0  # features kept by top-q; 0: all
    noise: float = 0.0  # standard deviation of the noise that was added
    flags: tuple[str, ...] = ()  # "flat": the model uses no feature
    explainer: str = ""
    rows: int = 0

    @property
    def density(self) -> float:
        """Share of features that are not zero: SSE-AGG's communication cost ||E||_0 (sec. V) as a share of F."""
        return float(np.count_nonzero(self.values) / len(self.names))

    def ranked(self, n: int | None = None) -> list[tuple[str, float, float]]:
        """Return name, share and standard error of the n largest shares (all without n), largest first."""
        order = np.argsort(-self.values, kind="stable")[:n]
        return [(self.names[f], float(self.values[f]), float(self.error[f])) for f in order]

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of a sketch; `metadata` is the rest."""
        return {"sketch": self.values, "sketch_error": self.error}

    def metadata(self) -> dict[str, object]:
        """Return all that is not an array, as plain JSON."""
        return {
            "names": list(self.names),
            "kept": self.top_count,
            "noise": self.noise,
            "flags": list(self.flags),
            "explainer": self.explainer,
            "rows": self.rows,
        }

    def to_dict(self) -> dict[str, object]:
        """Convert to plain JSON."""
        return {"values": self.values.tolist(), "error": self.error.tolist(), **self.metadata()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, object], metadata: Mapping[str, Any]) -> Sketch:
        """Read a sketch from `arrays()` and `metadata()`; refuse one that is not on the simplex."""
        try:
            values, error = (np.asarray(arrays[name], float) for name in ("sketch", "sketch_error"))
            sketch = cls(
                values=values,
                names=_read_words(metadata["names"]),
                error=error,
                top_count=int(metadata["kept"]),
                noise=float(metadata["noise"]),
                flags=_read_words(metadata["flags"]),
                explainer=str(metadata["explainer"]),
                rows=int(metadata["rows"]),
            )
        except KeyError as e:
            raise BadInput(
                f"a sketch without {e} cannot be read: write it with Sketch.to_dict", code="damaged-sketch"
            ) from None
        except (TypeError, ValueError, OverflowError) as e:
            raise BadInput(
                f"a sketch cannot be read ({e}): write it with Sketch.to_dict", code="damaged-sketch"
            ) from None
        sketch._check()
        return sketch

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Sketch:
        """Read a sketch from `to_dict()`, checked like `from_arrays`."""
        if not isinstance(data, Mapping):
            raise BadInput(
                f"a sketch is read from a JSON object, not from {type(data).__name__}", code="damaged-sketch"
            )
        return cls.from_arrays({"sketch": data.get("values"), "sketch_error": data.get("error")}, data)

    def _check(self) -> None:
        count = len(self.names)
        for part, array in (("shares", self.values), ("errors", self.error)):
            if count == 0 or array.shape != (count,):
                raise BadInput(
                    f"a sketch of {count} names has {part} of shape {array.shape}: give one for each feature",
                    code="mismatched-shapes",
                )
            if not (np.isfinite(array).all() and (array >= 0).all()):
                raise BadInput(f"the {part} of a sketch must be finite and not below zero", code="bad-shares")
        if abs(self.values.sum() - 1) > _NEAR_ONE:
            raise BadInput(
                f"the shares of a sketch add up to {self.values.sum():.6g}, not to 1: divide by their sum",
                code="bad-shares",
            )
        if self.top_count < 0 or self.rows < 0 or not (math.isfinite(self.noise) and self.noise >= 0):
            raise BadInput(
                "'kept', 'rows' and 'noise' of a sketch must be finite and not below zero", code="damaged-sketch"
            )


def _sampling_blur(halves: Array | None, q: int) -> Array | None:
    """Half the L1 distance (K,) between the sketches of either half of the rows, each of half as many.

    Two independent halves differ by twice the deviation of the whole. Unlike standard errors it accounts for correlated shares
    and for those clipped at zero.
    """
    if halves is None:
        return None
    one, other = (keep_top(simplex(half)[0], q) for half in halves)
    distance: Array = np.abs(one - other).sum(axis=-1) / 2
    return distance


def _read_words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise TypeError("names and flags are lists of words")
    return tuple(value)


@dataclass(frozen=True, eq=False)
class Sketches:
    """The shares (K, F) of K sites side by side, their standard errors (K, F), and which sites are flat, (K,).

    `blur` (K,) is the expected L1 distance by sampling from the sketch of infinitely many rows. It is known if sites have their
    own rows; on shared rows sampling affects all sites alike, and their distances not at all.
    """

    sites: tuple[str, ...]
    names: tuple[str, ...]
    values: Array
    error: Array
    flat: Array
    top_count: int = 0
    blur: Array | None = None

    @classmethod
    def from_importances(
        cls, sites: Sequence[str], names: Sequence[str], importances: Importances, *, q: int = 0
    ) -> Sketches:
        """Build sketches of importances (K, F), of which the q largest are kept (0: all).

        A flat sketch stays uniform: its first q features are no more important than the others. Dropped features have no error,
        and the choice of dropped features is taken as certain.
        """
        shape = (len(sites), len(names))
        if importances.values.shape != shape or importances.error.shape != shape:
            raise BadInput(
                f"importances of shape {importances.values.shape} with errors {importances.error.shape} do not fit "
                f"{shape[0]} sites and {shape[1]} features: give one row for each site",
                code="mismatched-shapes",
            )
        values, flat = simplex(importances.values)
        raw, error = importances.values, importances.error
        if 0 < q < len(names):
            keep = largest(values, q) | flat[:, None]
            raw, error = np.where(keep, raw, 0), np.where(keep, error, 0)
            values = np.where(flat[:, None], values, keep_top(values, q))
        return cls(
            tuple(sites),
            tuple(names),
            values,
            simplex_error(raw, error),
            flat,
            q,
            _sampling_blur(importances.halves, q),
        )

    @property
    def consensus(self) -> Array:
        """The mean sketch of the sites that are not flat, (F,); uniform where all are.

        The paper's mean (above eq. 5) takes all sites; a uniform sketch has no information, and would only flatten the mean.
        """
        if self.flat.all():
            return np.full(len(self.names), 1 / len(self.names))
        mean: Array = self.values[~self.flat].mean(axis=0)
        return mean

    @property
    def density(self) -> float:
        """Mean share of features that are not zero: SSE-AGG's communication cost C (sec. V) as a share of F."""
        return float(np.count_nonzero(self.values) / max(1, self.values.size))

    def for_site(self, site: str) -> Sketch:
        """Return one site's sketch."""
        if site not in self.sites:
            raise BadInput(f"there is no sketch of site '{site}'; {nearest(site, self.sites)}", code="unknown-site")
        k = self.sites.index(site)
        flags = ("flat",) if self.flat[k] else ()
        return Sketch(self.values[k], self.names, self.error[k], top_count=self.top_count, flags=flags)
