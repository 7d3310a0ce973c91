"""VEIL by sums: noisy sums over patients, from which the server selects features and fits them.

It is not in the paper. With secure aggregation the whole consortium needs one draw of noise per sum. Counts of patients for
percentiles are such sums too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.plan_types import VeilSettings
from grandrounds.core.records import Stage
from grandrounds.explain.noised_percentiles import COLUMNS, COUNTS, NOISE, ROWS, select_columns
from grandrounds.methods.base import Server
from grandrounds.methods.secure import STATISTIC_BITS, SumResult, secure_sum
from grandrounds.methods.veil.budget import MAX_SUM_ENTRY, Spending
from grandrounds.methods.veil.regression import Curvature, fit_moments, fit_step, strongest_features, unpack_moments
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import MOMENTS, PERCENTILES, SCORES


def fit_from_sums(
    server: Server,
    sites: tuple[str, ...],
    spent: Spending,
    census: Mapping[str, Array],
    *,
    settings: VeilSettings,
    config: Mapping[str, Value],
    start: Array,
) -> Generator[Ask, Answers, tuple[Array, Stage, dict[str, float], dict[str, Array]]]:
    """Select features or fit the selected ones, by the round's place in its stage."""
    v, d, task = settings, len(server.model) - 1, spent.task(server.round)
    selected = np.asarray(server.state.get("chosen", np.empty(0)), np.int64)
    features = selected if task == "fit" and v.features else np.arange(d)
    name = "moments" if task == "moments" else "scores"
    config = {**config, **({} if len(features) == d else {"features": features.astype(np.uint16)})}
    ask = Ask(MOMENTS if task == "moments" else SCORES, shared=config, to=sites, report=(name,))
    summed = yield from sum_reports(server, ask, name, noise=spent.noise(task))
    sums = summed.values[name]
    model, prior = start, float(census["prior"][0])
    noise = spent.deviation("moments", len(sites))
    state = {n: server.state[n] for n in ("gram",) if n in server.state}
    if task == "moments":
        gram, towards = unpack_moments(sums, d + 1, outcome=spent.outcome)
        selected, model = fit_moments(gram, towards, prior=prior, features=v.features, noise=noise)
        state["gram"] = gram
        why = f"{len(selected)} of {d} features by regression on the consortium's second moments"
    elif task == "select":
        more = strongest_features(
            sums[:-1], spent.wanted(server.round, d, selected=len(selected)), exclude=selected
        )
        selected = np.concatenate([selected, more])
        why = f"{len(more)} more features by the largest sums of scores, {len(selected)} of {d} in all"
    else:
        curve = Curvature(state["gram"], prior, noise) if "gram" in state else None
        rows = float(census["rows"].sum()) * len(summed.sites) / len(server.sites) if "rows" in census else 1.0
        model = fit_step(model, sums, features, rows=rows, lr=v.lr, curve=curve, centre=census.get("centre"))
        why = f"a step on {len(features)} of {d} features"
    weights = dict.fromkeys(summed.sites, 1 / len(summed.sites))
    stage = Stage("sums", f"{why}; every patient has the same weight at any site", weights)
    return model, stage, weights, {"chosen": selected, **state}


def count_percentiles(
    server: Server, spent: Spending, model: Array
) -> Generator[Ask, Answers, tuple[dict[str, Array], tuple[str, ...]]]:
    """Ask for noisy counts of the columns with the largest weights in the last round; also return notes on sites without
    them.

    The columns follow from the model, which is already private. The model is finished, so a site that refuses the counts, or
    an unfinished sum, only affects percentiles.
    """
    if not spent.columns or server.round != spent.rounds:
        return {}, ()
    chosen = select_columns(server.columns, model[:-1], spent.columns)
    config: dict[str, Value] = {"columns": json.dumps([server.columns[j].to_dict() for j in chosen.tolist()])}
    if not spent.secure:
        config["noise"] = spent.noise("percentiles")
    ask = Ask(PERCENTILES, shared=config, to=server.available_sites, report=("cells",))
    try:
        summed = yield from sum_reports(server, ask, "cells", noise=spent.noise("percentiles"))
    except RunFailed as e:
        return {}, (f"no percentiles: {e}",)
    heard = {
        COLUMNS: chosen,
        COUNTS: np.asarray(summed.values["cells"], float),
        NOISE: np.array([noise_deviation(spent.noise("percentiles"), server, summed.sites)]),
        ROWS: np.array([sum(server.rows.get(s, 0) for s in summed.sites)]),
    }
    unheard = [f"{s} ({why})" for s, why in summed.missing.items()]
    return heard, (f"percentiles are without {', '.join(unheard)}",) if unheard else ()


def sum_reports(server: Server, ask: Ask, name: str, *, noise: float) -> Generator[Ask, Answers, SumResult]:
    """Return the sum of the requested reports; `noise`: its smallest standard deviation, which sites add in shares in a secure
    sum."""
    if server.secure is None:
        answers: Answers = yield ask
        if not len(answers):
            raise RunFailed(f"round {server.round}: no site answered", code="too-few-sites")
        return SumResult(answers.sites, {name: np.asarray(answers[name], float).sum(axis=0)}, {}, answers.missing)
    withheld: Answers = yield ask.withholding(name)
    summed = yield from secure_sum(server.secure, withheld, bits=STATISTIC_BITS, bound=MAX_SUM_ENTRY, noise=noise)
    return summed


def noise_deviation(noise: float, server: Server, sites: Sequence[str]) -> float:
    """Return the standard deviation of the actual noise in a sum over these sites, each of which added its own or its share."""
    if server.secure is None:
        return noise * math.sqrt(len(sites))
    from grandrounds.privacy.secagg import fewest_honest

    return noise * math.sqrt(max(1.0, len(sites) / fewest_honest(max(1, len(sites)))))
