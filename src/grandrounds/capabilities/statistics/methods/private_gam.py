"""Method 'private-gam': an additive model with differential privacy, from one exchange of noisy counts.

Model 'gam' under privacy.epsilon is fitted by this method. Each site counts its patients once, by bin and outcome of every column
(`private_scores.py`). With secure aggregation the sites add shares of one draw of Gaussian noise to the sum;
without it each site adds the whole noise to its own counts, so the guarantee also holds against the server, and the sum has more
noise. The whole budget is charged once, before the exchange.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.methods.private_gam_task import COUNT_CELLS, COUNTS
from grandrounds.capabilities.statistics.methods.site import event_sign
from grandrounds.capabilities.statistics.models.column_model import turn_sign
from grandrounds.capabilities.statistics.models.columns import find_columns
from grandrounds.capabilities.statistics.models.steps import StepModel
from grandrounds.capabilities.statistics.private_scores import PrivateScores, ScoreBins, count_cells, fit_scores
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision, Stage
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Method, Outcome, Round, Server
from grandrounds.methods.platt import MAX_ROWS
from grandrounds.methods.secure import STATISTIC_BITS, secure_sum
from grandrounds.methods.sums import ENDED, RESULT, digest, read_result
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import MASKED, TALLIES
from grandrounds.site.plugin import Columns, SitePlugin, Task


class PrivateGAMSite(SitePlugin):
    """The sites' half: counts of training rows, one of each patient, with the site's own noise unless a secure sum adds it."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {COUNT_CELLS: self._count}

    def _count(self, ask: Ask, members: Array) -> Columns:
        bins = ScoreBins.from_values(ask.shared)
        part = self.site.stack.parts.get("train")
        if part is None:
            raise BadInput("this site has not prepared its data yet: ask 'prepare' first", code="site-not-prepared")
        if part.target.shape[1] != 1 or part.time is not None:
            raise BadInput("the private additive model needs two classes", code="too-many-classes")
        event = self.site.stack.event
        counts = []
        for k in members.tolist():
            mine = part.one_each(k)
            counts.append(count_cells(bins, np.asarray(part.x[mine], float), part.y[mine] == event))
        return {"cells": np.array(counts) + self._noise(ask, members, bins.cells)}

    def _noise(self, ask: Ask, members: Array, size: int) -> Array:
        """Draw whole-number noise of the requested standard deviation from each site's secret; none for a secure sum."""
        from grandrounds.privacy.discrete import discrete_gaussian

        sigma = float(ask.shared.get("noise", 0.0))
        if not sigma:
            return np.zeros((len(members), size), np.int64)
        keys = [
            np.frombuffer(self.site.secret(name).bytes(f"{ask.id}: {ask.task}", 16), "<u8")
            for name in self.site.names_of(members)
        ]
        draws = [discrete_gaussian(sigma, size, rng=np.random.Generator(np.random.Philox(key=key))) for key in keys]
        return np.array(draws, np.int64)


class PrivateGAM(Method):
    """The private additive model: one exchange, charged once."""

    name = "private-gam"
    title = "additive model with differential privacy: noisy counts of patients by bin and outcome, in one exchange"
    parts = frozenset[str]()
    site = (PrivateGAMSite,)
    scores_rounds = False
    needs_public = (
        "which tells about rows without noise: set data.encoding = 'public' for model 'gam' with privacy.epsilon, or remove "
        "privacy.epsilon"
    )

    @classmethod
    def asks(cls, plan: Plan) -> Mapping[str, Mapping[str, Value]]:
        return {COUNT_CELLS: {"noise": float(not plan.privacy.secure)}, MASKED: {"noise": 1.0}}

    def round(self, server: Server) -> Round:
        bins, sigma = self.bins(server), self.noise(server)
        counts, sites, missing = yield from self._exchange(server, bins, sigma)
        deviation = _deviation(sigma, server, sites)
        scores = fit_scores(bins, counts, noise=deviation)
        used = sum(c.is_used for c in scores.columns)
        shares = dict.fromkeys(sites, 1 / len(sites))
        why = (
            f"one exchange of {bins.cells} noisy counts (standard deviation {deviation:.3g}, sensitivity to one patient "
            f"{bins.sensitivity:.3g}); {used} of {len(bins.columns)} columns are used (total "
            f"{digest({'cells': counts})[:16]}); every patient has the same weight at any site"
        )
        notes = [f"{s} is not in the sum: {reason}" for s, reason in missing.items()]
        ended = f"{ENDED} after one exchange"
        decision = Decision(weights=shares, why=why, stages=(Stage("sums", why, shares),), notes=(*notes, ended))
        kept = {RESULT: np.frombuffer(json.dumps(_record(server, bins, scores, sites)).encode(), np.uint8)}
        model = StepModel(len(_table(server.encoding).features), bins.columns)
        arrays = model.join(
            [np.array(e) for e in bins.edges], [c.score for c in scores.columns], np.array([scores.intercept])
        )
        theta = model.pack(arrays)
        if event_sign(server.encoding) < 0:
            theta = turn_sign(theta)
        outcome = server.next(theta, decision, **kept)
        return Outcome(outcome.assignment, outcome.decision, outcome.state, ended=ended)

    def _exchange(
        self, server: Server, bins: ScoreBins, sigma: float
    ) -> Generator[Ask, Answers, tuple[Array, tuple[str, ...], Mapping[str, str]]]:
        """Ask for the counts: with each site's own noise, or as a secure sum with shares of the noise."""
        shared: dict[str, Value] = bins.to_values()
        sites = server.available_sites
        if server.secure is None:
            shared["noise"] = sigma
            answers: Answers = yield Ask(COUNT_CELLS, shared=shared, to=sites, report=("cells",))
            if not len(answers):
                raise RunFailed(f"round {server.round}: no site answered", code="too-few-sites")
            return np.asarray(answers["cells"], float).sum(axis=0), answers.sites, answers.missing
        ask = Ask(COUNT_CELLS, shared=shared, to=sites, report=("cells",))
        withheld: Answers = yield ask.withholding("cells")
        summed = yield from secure_sum(
            server.secure, withheld, bits=STATISTIC_BITS, bound=MAX_ROWS, purpose=TALLIES, noise=sigma
        )
        return np.asarray(summed.values["cells"], float), summed.sites, summed.missing

    def bins(self, server: Server) -> ScoreBins:
        """Return the bins of this run, which follow from public ranges and levels."""
        encoding = _table(server.encoding)
        return ScoreBins.from_ranges(find_columns(encoding), _ranges(encoding), bins=int(self.settings.gam.bins))

    def noise(self, server: Server) -> float:
        """Return the standard deviation of the noise: of the whole sum under secure aggregation, else of each site's counts."""
        from grandrounds.privacy.accounting import noise_for

        p = server.private
        if p is None or p.epsilon is None:
            raise BadInput("method 'private-gam' needs a budget: set privacy.epsilon", code="no-epsilon")
        return noise_for(p.epsilon, p.delta, steps=1) * self.bins(server).sensitivity

    def spends(self, server: Server) -> Sequence[Event]:
        """Return the one release, which is charged before the exchange."""
        if server.round != 1:
            return ()
        sigma = self.noise(server) / self.bins(server).sensitivity
        trust = "local" if server.secure is None else "secure aggregation"
        return (Event("gaussian", COUNTS, sigma=sigma, trust=trust),)

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        record = read_result(state)
        return {} if record is None else {"shapes": record}

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        p, g = plan.privacy, plan.method.gam
        if pictures:
            yield "method 'private-gam' needs the columns of a table, and the data are images: use 'fedavg' with 'dp-sgd'"
        if plan.model.name != "gam":
            yield f"method 'private-gam' fits model 'gam', not '{plan.model.name}': set model.name = 'gam'"
        elif model.task != CLASSIFICATION or model.outputs != 1:
            yield "the private additive model needs an outcome with two classes: remove privacy.epsilon, or choose another label"
        if p.epsilon is None:
            yield "method 'private-gam' needs a budget: set privacy.epsilon, or use method 'gam' without differential privacy"
        if plan.data.encoding != "public":
            yield "a fitted encoding tells about rows without noise: set data.encoding = 'public', or remove privacy.epsilon"
        if g.own_shapes or g.columns is not None or g.monotone.plain():
            named = "own_shapes" if g.own_shapes else "columns" if g.columns is not None else "monotone"
            yield f"the private additive model does not support method.gam.{named}: remove it, or remove privacy.epsilon"
        if plan.train.class_weights != "none":
            yield "method 'private-gam' counts every patient once: set train.class_weights = 'none'"
        if plan.train.early_stop or plan.train.finetune:
            yield "method 'private-gam' has no training steps: set train.early_stop = 0 and train.finetune = 0"
        if plan.tasks.plain():
            yield "method 'private-gam' fits one outcome: remove [tasks]"
        if plan.plain()["attacks"]:
            yield "method 'private-gam' has no local models to attack: remove [[attacks]]"

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        if plan.privacy.on_halt == "skip":
            yield "and 'private-gam' has one round, which cannot be skipped: set privacy.on_halt = 'retry' or 'stop'"


def _deviation(sigma: float, server: Server, sites: Sequence[str]) -> float:
    """Return the standard deviation of the actual noise in the sum over these sites."""
    if server.secure is None:
        return sigma * math.sqrt(len(sites))
    from grandrounds.privacy.secagg import fewest_honest

    return sigma * math.sqrt(max(1.0, len(sites) / fewest_honest(max(1, len(sites)))))


def _record(server: Server, bins: ScoreBins, scores: PrivateScores, sites: Sequence[str]) -> dict[str, Any]:
    """Return the shapes for summary.json. All numbers follow from noisy counts."""
    encoding = _table(server.encoding)
    model = StepModel(len(encoding.features), bins.columns)
    arrays = model.join([np.array(e) for e in bins.edges], [c.score for c in scores.columns])
    listed = []
    for shape, found in zip(model.shapes(arrays, _ranges(encoding)), scores.columns, strict=True):
        error, rows = found.error.tolist(), np.maximum(np.rint(found.rows), 0.0).astype(int).tolist()
        missing = shape.pop("missing")
        listed.append(
            {
                **shape,
                "se": error[1:],
                "rows": rows[1:],
                "missing": None if missing is None else {**missing, "se": error[0], "rows": rows[0]},
                "edf": None,
                "used": found.is_used,
                "monotone": None,
            }
        )
    rows_held = sum(server.rows.get(s, 0) for s in sites)
    held = rows_held * max(1, len(encoding.features))
    exchanges = {
        "count": 1,
        "numbers_sent": bins.cells,
        "numbers_held": held,
        "ratio": bins.cells / max(1, held),
        "bytes_up": bins.cells * STATISTIC_BITS // 8,
        "bytes_down": sum(len(v) if isinstance(v, str) else np.asarray(v).nbytes for v in bins.to_values().values()),
    }
    notes = [
        f"Numbers of patients and scores come from counts with noise of standard deviation {scores.noise:.3g}.",
        "Columns that tell the same are counted twice: the score ranks patients, and its probabilities are too extreme unless "
        "they are calibrated (evaluation.calibrate = 'platt'), which multiplies all effects by one slope.",
    ]
    if server.secure is None and len(sites) > 1:
        notes.append(
            f"Each of {len(sites)} sites added the whole noise; with privacy.secure = true the sum would have about "
            f"{1 - 1 / math.sqrt(len(sites)):.0%} less."
        )
    return {
        "intercept": scores.intercept,
        "family": "logistic",
        "private": True,
        "columns": listed,
        "exchanges": exchanges,
        "sites": list(sites),
        "rows": rows_held,
        "notes": notes,
    }


def _ranges(encoding: Encoding) -> dict[str, tuple[float, float]]:
    return {n.name: (float(n.low), float(n.high)) for n in encoding.numeric}


def _table(encoding: AnyEncoding | None) -> Encoding:
    assert isinstance(encoding, Encoding), "refused before the first round"
    return encoding
