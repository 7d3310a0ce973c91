"""XFed: sites train and score their accuracy and explanations; only the selected ones send their model.

The exchange has two steps. A site keeps its trained model and reports a few numbers on shared scoring images; the server ranks
sites by xai_share * XAI accuracy + (1 - xai_share) * accuracy and asks the best for their models. The others do not upload.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from math import ceil, exp
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Stage
from grandrounds.explain.rationale import REPORT, RationaleRule
from grandrounds.methods.aggregate import Aggregation, aggregate
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.weigh import WeightingResult, data_size
from grandrounds.methods.xfed.site import CandidateModels
from grandrounds.protocol.messages import KEEP, UPLOAD, Answers, Ask, Value

_SCORES = {"accuracy": "accuracy", "loss": "cross_entropy", "xai": "xai", "grid": "grid"}
"""Signal of each report; "loss" is that of the model before training, as in other selection rules."""


@dataclass(frozen=True)
class Ranking:
    """Sites ranked by their combined score: selected (K,), rank from 1 (K,), and score (K,)."""

    score: Array
    place: Array
    selected: Array


def fuse_scores(accuracy: Array, reasons: Array, xai_share: float) -> Array:
    """xai_share * XAI accuracy + (1 - xai_share) * accuracy; if no image could be scored, XAI accuracy is 0."""
    out: Array = xai_share * np.nan_to_num(reasons) + (1 - xai_share) * accuracy
    return out


def rank_sites(score: Array, accuracy: Array, sites: tuple[str, ...], *, keep: float) -> Ranking:
    """Rank sites and keep ceil(keep * K) of them, always leaving one out of several; ties by accuracy, then by name."""
    count = len(sites)
    most = max(1, min(ceil(keep * count - 1e-9), count - 1))
    order = sorted(range(count), key=lambda k: (-score[k], -accuracy[k], sites[k]))
    place = np.empty(count, np.int64)
    place[order] = np.arange(1, count + 1)
    return Ranking(score, place, place <= most)


def rank_weights(place: Array) -> Array:
    """Compute weights (m,) by rank, from 1 (sec. 5.5): the first of m has m times the weight of the last."""
    return data_size(place.max() + 1.0 - place)


class XFed(FedAvg):
    """FedAvg of the sites with the best accuracy and explanations; with stability 'proximal', FedProx."""

    name = "xfed"
    site = (CandidateModels,)
    title = "XFed: only sites with accurate models and correct explanations send them (images)"

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        from grandrounds.methods.xfed import checks  # which look methods up by name

        return checks.refusals(plan, sites=sites, pictures=pictures)

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        x = self.settings.xfed
        if x.until and server.round > x.until:
            return (yield from super().train_and_aggregate(server, ask))
        rule = RationaleRule.from_settings(server.seed, x)
        config: dict[str, Value] = {REPORT: rule.to_json(), f"{REPORT}_on": server.shared_reference, KEEP: True}
        report = tuple(r for r in ask.report if r != "model")
        answers: Answers = yield replace(ask, shared={**ask.shared, **config}, report=(*report, REPORT))
        scores = {name: np.asarray(answers[f"{REPORT}.{name}"], float) for name in _SCORES}
        ranking = self._rank(scores, answers.sites)
        chosen = tuple(s for s, selected in zip(answers.sites, ranking.selected, strict=True) if selected)
        sent: Answers = yield Ask(UPLOAD, shared={"of": str(answers.id)}, to=chosen, report=("model",))
        received = [k for k, s in enumerate(answers.sites) if s in sent.sites]
        models = answers.only(received, sent.missing)
        models.columns |= sent.columns
        server_scores = self._server_scores(server, models, rule)
        signals = {
            **{_SCORES[name]: v for name, v in scores.items() if np.isfinite(v).any()},
            "score": ranking.score,
            "place": ranking.place.astype(float),
        }
        aggregation = aggregate(server, models, self, self._rank_weighting(models, ranking, received))
        by_site = {n: dict(zip(answers.sites, v.tolist(), strict=True)) for n, v in signals.items()}
        stage = Stage("select", self._why(answers, chosen, len(server.model)))
        notes = (
            *aggregation.notes,
            *_find_discrepancies(models, scores, received, server_scores, tolerance=x.tolerance),
        )
        return replace(
            aggregation,
            signals={**aggregation.signals, **by_site, **server_scores},
            stages=(stage, *aggregation.stages),
            notes=notes,
        ), models

    def _rank(self, scores: dict[str, Array], sites: tuple[str, ...]) -> Ranking:
        x = self.settings.xfed
        right = scores["accuracy"] if x.measure == "accuracy" else _score_loss(scores["loss"])
        reasons = scores["grid" if x.score == "grid" else "xai"]
        return rank_sites(fuse_scores(right, reasons, x.xai_share), scores["accuracy"], sites, keep=x.keep)

    def _rank_weighting(self, models: Answers, ranking: Ranking, received: list[int]) -> WeightingResult | None:
        """Compute weights by rows, as FedAvg does, or by rank."""
        if self.settings.xfed.weights == "rows":
            return None
        weights = rank_weights(ranking.place[received].astype(float))
        return WeightingResult(
            weights, {}, "a site's weight follows its rank among the selected sites"
        )

    def _server_scores(self, server: Server, models: Answers, rule: RationaleRule) -> dict[str, dict[str, float]]:
        """Compute the scores of the received models at the server, where settings ask for it."""
        if self.settings.xfed.score_at != "server":
            return {}
        assert server.reference is not None
        scores = server.reference.rationale(models["model"], rule)
        return {
            f"seen_{signal}": dict(zip(models.sites, scores[f"{REPORT}.{name}"].tolist(), strict=True))
            for name, signal in _SCORES.items()
            if np.isfinite(scores[f"{REPORT}.{name}"]).any()
        }

    def _why(self, answers: Answers, chosen: tuple[str, ...], size: int) -> str:
        x = self.settings.xfed
        reasons = {"grid": "grid accuracy", "masks": "XAI accuracy"}[x.score]
        excluded = [s for s in answers.sites if s not in chosen]
        if not excluded:
            return f"{answers.sites[0]} is the only site that answered, so it sends its model"
        return (
            f"{len(chosen)} of {len(answers)} sites send their models, by {x.xai_share:g} x {reasons} + {1 - x.xai_share:g} x "
            f"{x.measure}; not asked: {', '.join(excluded)}, which saves the upload of {len(excluded) * size:,} numbers"
        )


def _score_loss(loss: Array) -> Array:
    """Convert cross-entropy to a score in (0, 1]: exp(-loss), the geometric mean of the probability of the true class."""
    out: Array = np.exp(-loss)
    return out


def _find_discrepancies(
    models: Answers,
    scores: dict[str, Array],
    received: list[int],
    server_scores: dict[str, dict[str, float]],
    *,
    tolerance: float,
) -> tuple[str, ...]:
    """List the sites whose reported scores differ from the server's."""
    out = []
    for name, signal in _SCORES.items():
        for site, reported in zip(models.sites, scores[name][received].tolist(), strict=True):
            computed = server_scores.get(f"seen_{signal}", {}).get(site)
            if computed is None:
                continue
            difference = (
                abs(exp(-reported) - exp(-computed)) if name == "loss" else abs(reported - computed)
            )  # a loss has no upper bound
            if difference > tolerance:
                out.append(
                    f"{site}: says {signal.replace('_', ' ')} {reported:.3f}, but the server computes {computed:.3f}"
                )
    return tuple(out)
