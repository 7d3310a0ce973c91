"""Readings of SHAP and NSDS that the paper leaves open: which of them gives its order of the three models, and its values?

All readings are of the same local models: each site trains once more from the final common model, as it would in another round
(a forest is fitted anew), and its rows are explained here. A run's own NSDS is beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.explain.trust import SMOOTHING, distribution, divergence, pool_shares
from grandrounds_studies.claims import Test, verdict
from grandrounds_studies.fedxchain.claims import known
from grandrounds_studies.fedxchain.measures import NSDS, signal
from grandrounds_studies.fedxchain.setting import BASE, ERRATA, FOREST, LOGISTIC, MLP, PAPER, PRINTED, QUICK, SETTLED
from grandrounds_studies.measures import ACCURACY, MAJORITY
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Claim, Headline, Measure, Point, Quick, Study, Verdict, merged

MOST_ROWS = 100
"""Training rows of a site that are explained, and that are its own background: the first at random."""

FEW_ROWS = 10
PRINTED_NSDS = (0.5768, 0.3748, 0.1926)
"""Of the logistic model, the MLP and the forest (Table I)."""

NEAR = 0.25
"""A value within this share of the printed one counts as the printed one."""


@dataclass(frozen=True)
class Explained:
    """Signed SHAP values (n, F) at each site, of its local model but for `common`."""

    own: tuple[Array, ...]  # the site's rows from shared reference rows
    own_background: tuple[Array, ...]  # the site's rows from the site's rows
    shared_rows: tuple[Array, ...]  # shared reference rows from themselves
    common: tuple[Array, ...]  # the site's rows from shared reference rows, by the common model
    trust: Array  # of the sites in the last round


def mean_size(values: Array) -> Array:
    """Mean of absolute values over rows, (F,)."""
    out: Array = np.abs(values).mean(axis=0)
    return out


def signed_mean(values: Array) -> Array:
    """Mean over rows, (F,): values of opposite sign cancel."""
    out: Array = values.mean(axis=0)
    return out


def positive_mean(values: Array) -> Array:
    """The same without negative means, which are no shares if eq. 3 is taken without absolute values."""
    return np.maximum(signed_mean(values), 0.0)


def nsds_of_shares(vectors: Array, trust: Array) -> float:
    """Mean NSDS of sites' vectors (K, F): the consortium's is the mean of their shares (eq. 3 to 6)."""
    shares = distribution(vectors)
    return float(divergence(shares, pool_shares(shares, trust)).mean())


def nsds_of_vectors(vectors: Array, trust: Array) -> float:
    """The same, but the vectors are averaged before they are made shares (eq. 2): a large vector counts for more."""
    consortium = distribution(np.average(vectors, axis=0, weights=trust if trust.any() else None))
    return float(divergence(distribution(vectors), consortium).mean())


Reading = Callable[[Explained], float]


def _reading(
    rows: str, vector: Callable[[Array], Array], pool: Callable[[Array, Array], float], most: int = MOST_ROWS
) -> Reading:
    return lambda e: pool(np.stack([vector(values[:most]) for values in getattr(e, rows)]), e.trust)


READINGS: Mapping[str, tuple[str, Reading]] = {
    "mean_abs": ("mean |SHAP|", _reading("own", mean_size, nsds_of_shares)),
    "signed": ("|mean SHAP|", _reading("own", signed_mean, nsds_of_shares)),
    "positive": ("mean SHAP, negative as 0", _reading("own", positive_mean, nsds_of_shares)),
    "own_background": ("mean |SHAP|, own background", _reading("own_background", mean_size, nsds_of_shares)),
    "shared_rows": ("mean |SHAP| of shared rows", _reading("shared_rows", mean_size, nsds_of_shares)),
    "few_rows": (f"mean |SHAP| of {FEW_ROWS} rows", _reading("own", mean_size, nsds_of_shares, FEW_ROWS)),
    "few_signed": (f"|mean SHAP| of {FEW_ROWS} rows", _reading("own", signed_mean, nsds_of_shares, FEW_ROWS)),
    "common": ("mean |SHAP| of the common model", _reading("common", mean_size, nsds_of_shares)),
    "common_signed": ("|mean SHAP| of the common model", _reading("common", signed_mean, nsds_of_shares)),
    "common_vectors": (
        "|mean SHAP| of the common model, vectors pooled",
        _reading("common", signed_mean, nsds_of_vectors),
    ),
    "vectors": ("mean |SHAP|, vectors pooled", _reading("own", mean_size, nsds_of_vectors)),
    "signed_vectors": ("|mean SHAP|, vectors pooled", _reading("own", signed_mean, nsds_of_vectors)),
}
"""Name -> words, and NSDS under this reading."""


@lru_cache(maxsize=2)
def _explained(folder: Path) -> Explained:
    """Several measures read the same SHAP values of a finished run."""
    from grandrounds.data.encoding import class_numbers
    from grandrounds.explain.explainers.shapley import Shap
    from grandrounds.explain.features import build_features
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows

    run = Run(folder)
    held, model = RunRows.read(run), run.model
    data: Any = held.consortium.data
    encoding: Any = model.encoding

    def encoded(rows: Array) -> Array:
        return np.asarray(encoding.encode(data.take(rows), np.float64))

    trains = [rows.train for rows in held.consortium.stack.rows if len(rows.train)]
    xs = [encoded(rows) for rows in trains]
    ys = [class_numbers(data.take(rows).label, list(encoding.classes), where=data.name) for rows in trains]
    common = np.asarray(model.theta, np.float64)
    models = local_models(model.net, common, xs, ys, run.plan)
    shared = encoded(held.consortium.reference["root"].rows)
    rng = generator(held.plan.seed, purpose="explained rows")
    chosen = [x[rng.permutation(len(x))[:MOST_ROWS]] for x in xs]
    features = build_features(encoding, grid=1)

    def signed(x: Array, theta: Array, background: Array) -> Array:
        return Shap(features, background).signed(model.net, theta, x, np.full(len(x), model.net.outputs - 1))

    pairs = list(zip(chosen, models, strict=True))
    trust = signal(run.rounds[-1], "trust")
    return Explained(
        tuple(signed(x, theta, shared) for x, theta in pairs),
        tuple(signed(x, theta, x) for x, theta in pairs),
        tuple(signed(shared, theta, shared) for theta in models),
        tuple(signed(x, common, shared) for x in chosen),
        np.array(list(trust.values())),
    )


def local_models(model: Any, theta: Array, xs: list[Array], ys: list[Array], plan: Mapping[str, Any]) -> list[Array]:
    """Train each site's model once more from the common one, with the run's settings; a forest is fitted to its rows."""
    from grandrounds.models.dense import targets
    from grandrounds.site.batches import BatchPlan
    from grandrounds.site.numpy_train import train
    from grandrounds.site.stack import Part
    from grandrounds.site.train_job import TrainConfig, TrainJob

    if model.kernel == "forest":
        return [model.fit(x, y, seed=plan["seed"] + k) for k, (x, y) in enumerate(zip(xs, ys, strict=True))]
    own = plan["train"]
    config = TrainConfig(
        plan["seed"],
        plan["method"]["rounds"] + 1,
        own["lr"],
        own["epochs"],
        batch=own["batch"],
        optimizer=own["optimizer"],
    )
    y = np.concatenate(ys)
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in xs])])
    part = Part(np.concatenate(xs), y, targets(y, model.outputs, np.float64), np.zeros(len(y), int), offsets)
    members, names = np.arange(len(xs)), tuple(f"site-{k}" for k in range(len(xs)))
    batches = BatchPlan.draw(part, members, names=names, config=config)
    return list(np.asarray(train(TrainJob(model, part, members, theta, config, names), batches).theta))


def _measure(name: str) -> Measure:
    words, reading = READINGS[name]
    return Measure(f"nsds_{name}", f"NSDS: {words}", lambda run: reading(_explained(run.folder)), lower=True, digits=4)


MEASURES = {name: _measure(name) for name in READINGS}
_MODELS = (LOGISTIC, MLP, FOREST)
SCALES = {"standard": "", "none": ", raw columns"}


def _point(model: Point, scale: str) -> Point:
    return Point(model.label + SCALES[scale], merged(model.settings, {"data": {"scale": scale}}), group=SCALES[scale])


ORDER = "some reading gives the paper's order: NSDS of the forest is lowest, of the logistic model highest"
POINTS = {scale: tuple(_point(model, scale) for model in _MODELS) for scale in SCALES}


def in_order(values: Sequence[float]) -> bool:
    """Check that NSDS of the logistic model is the highest and that of the forest the lowest."""
    logistic, mlp, forest = values
    return forest < mlp < logistic


def as_printed(values: Sequence[float]) -> bool:
    """Check that each value is within a quarter of the printed one."""
    return all(abs(value / printed - 1) <= NEAR for value, printed in zip(values, PRINTED_NSDS, strict=True))


def by_some_reading(holds: Callable[[Sequence[float]], bool]) -> Test:
    """Some reading, of scaled or of raw columns, gives NSDS of the three models, means over seeds, for which this is so."""

    def test(found: Results, arm: str) -> Verdict:
        held = {s: points for s, points in POINTS.items() if {p.label for p in points} <= set(found.points)}
        if not held:
            raise NotRun("it takes all three models")
        values = {
            f"{READINGS[name][0]}{SCALES[scale]}": [float(np.mean(known(found, p.label, arm, m.name))) for p in points]
            for name, m in MEASURES.items()
            for scale, points in held.items()
        }
        right = {what: three for what, three in values.items() if holds(three)}
        best = min(
            values, key=lambda what: sum(abs(np.log(v / w)) for v, w in zip(values[what], PRINTED_NSDS, strict=True))
        )
        shown = right or {best: values[best]}
        words = "; ".join(f"{what} {', '.join(f'{v:.3f}' for v in three)}" for what, three in shown.items())
        lead = f"{len(right)} of {len(values)} readings" + ("" if right else "; the closest to the printed values")
        return verdict(bool(right), f"{lead}: {words} (logistic, MLP, forest)")

    return test


READINGS_STUDY = Study(
    name="fedxchain/readings",
    title="Which reading of SHAP gives the printed NSDS of the three models?",
    headline=Headline(LOGISTIC.label, PRINTED.label, MEASURES["mean_abs"].name, ORDER),
    source=f"our own: {PAPER} does not say how SHAP values become one vector for each site (sec. III-B, C, Table I)",
    base=BASE,
    points=tuple(p for points in POINTS.values() for p in points),
    arms=(PRINTED,),
    measures=(ACCURACY, MAJORITY, NSDS, *MEASURES.values()),
    published={
        (p.label, PRINTED.label): {m.name: printed for m in (NSDS, *MEASURES.values())}
        for points in POINTS.values()
        for p, printed in zip(points, PRINTED_NSDS, strict=True)
    },
    claims=(
        Claim(
            ORDER,
            "our question to Fig. 8",
            (PRINTED.label,),
            by_some_reading(in_order),
        ),
        Claim(
            "some reading gives the printed NSDS .5768, .3748 and .1926 (read as: within a quarter of each)",
            "our question to Table I",
            (PRINTED.label,),
            by_some_reading(as_printed),
        ),
    ),
    settled=(
        *SETTLED[:1],
        "A site's rows are up to 100 of its training rows at random; the shared background is the 40 reference rows. Values "
        "explain the logit of the second class, of a forest its vote. Each site trains once more from the final common model, as "
        "in another round; a forest is fitted to the site's rows. 'NSDS' without a reading is that of the run itself: mean "
        "|SHAP| of local models in the last round.",
        "'Vectors pooled': the consortium's vector is the mean of SHAP vectors (eq. 2), not of shares (eq. 6). 'Raw columns': "
        "inputs are not scaled, in training as in explanations.",
        f"Not read: eq. 3 without its epsilon of {SMOOTHING:g}, which moves no digit that is shown; values of each class, since "
        "two classes have one logit and a forest's two votes add up to 1; the signed mean from a site's own background, which "
        "is 0 for a linear model.",
    ),
    remarks=(
        "Readings are compared on the same runs, so the one that comes closest is flattered by the choice among many.",
        "In bits instead of nats every value is 1.44 times as large, and the order of the models is the same.",
        ERRATA[3],
    ),
    quick=Quick(QUICK, points=tuple(p.label for p in POINTS["standard"])),
    seeds=10,
)
