"""XFed (Zhao et al. 2023): only the sites with the most accurate and best explained models send them.

`XFed.train_and_aggregate` is a round of Fig. 3. Step 1 gives each site the scoring images: it is task `lend`, before the rounds.
Step 3 is in `site.py`, Algorithm 1 and the IoU-ratio (eq. 6) in `explain/agreement.py`. Not in the paper: `verification.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.method_facts import MethodFact
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RoundRecord, RunSummary, Stage
from grandrounds.explain.rationale import REPORT, RationaleRule
from grandrounds.methods.aggregate import Aggregation, aggregate
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.weigh import WeightingResult
from grandrounds.methods.xfed.ranking import EXPLANATIONS, Ranking, SiteScores, fuse_scores, rank_sites, rank_weights
from grandrounds.methods.xfed.site import CandidateModels
from grandrounds.methods.xfed.summary import describe_selection, selection_summary
from grandrounds.methods.xfed.verification import find_discrepancies, score_at_server
from grandrounds.protocol.messages import KEEP, UPLOAD, Answers, Ask, Value


class XFed(FedAvg):
    """FedAvg of the sites with the best accuracy and explanations; with stability 'proximal', FedProx."""

    name = "xfed"
    site = (CandidateModels,)
    title = "XFed: only sites with accurate models and correct explanations send them (images)"

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        x = self.settings.xfed
        if x.until and server.round > x.until:  # sec. 2.2: sites are selected in the early rounds
            return (yield from super().train_and_aggregate(server, ask))
        rule = RationaleRule.from_settings(server.seed, x)
        scored: Answers = yield self.ask_to_score(server, ask, rule)  # steps 2 to 4.1
        scores = SiteScores.from_answers(scored)
        ranking = self.rank(scores, scored.sites)  # step 4.2
        selected = ranking.best(scored.sites)
        sent: Answers = yield Ask(UPLOAD, shared={"of": str(scored.id)}, to=selected, report=("model",))  # step 5
        models = add_models(scored, sent)
        aggregation = aggregate(server, models, self, self.weigh_by_rank(models, scored, ranking))  # step 6
        server_scores = score_at_server(server, models, rule) if x.score_at == "server" else {}
        signals = {**scores.signals, "score": ranking.score, "place": ranking.place.astype(float)}
        by_site = {name: dict(zip(scored.sites, values.tolist(), strict=True)) for name, values in signals.items()}
        stage = Stage("select", self.explain_selection(scored.sites, selected, len(server.model)))
        return replace(
            aggregation,
            signals={**aggregation.signals, **by_site, **server_scores},
            stages=(stage, *aggregation.stages),
            notes=(*aggregation.notes, *find_discrepancies(models, server_scores, tolerance=x.tolerance)),
        ), models

    def ask_to_score(self, server: Server, ask: Ask, rule: RationaleRule) -> Ask:
        """Ask sites to train from the global model, to keep their own, and to report its scores on the scoring images."""
        config: dict[str, Value] = {REPORT: rule.to_json(), f"{REPORT}_on": server.shared_reference, KEEP: True}
        report = (*(name for name in ask.report if name != "model"), REPORT)
        return replace(ask, shared={**ask.shared, **config}, report=report)

    def rank(self, scores: SiteScores, sites: tuple[str, ...]) -> Ranking:
        """Rank sites by their fused score."""
        x = self.settings.xfed
        fused = fuse_scores(scores.performance(x.measure), scores.explanations(x.score), x.xai_share)
        return rank_sites(fused, scores.accuracy, sites, keep=x.keep)

    def weigh_by_rank(self, models: Answers, scored: Answers, ranking: Ranking) -> WeightingResult | None:
        """Compute weights by rank (sec. 5.5), where settings ask for it; None weighs by rows, as FedAvg does."""
        if self.settings.xfed.weights == "rows":
            return None
        place = ranking.place[np.isin(scored.sites, models.sites)].astype(float)
        return WeightingResult(rank_weights(place), {}, "a site's weight follows its rank among the selected sites")

    def explain_selection(self, sites: tuple[str, ...], selected: tuple[str, ...], size: int) -> str:
        """Write which sites were not asked for their models, by which score, and the numbers that this saves."""
        x = self.settings.xfed
        left_out = [s for s in sites if s not in selected]
        if not left_out:
            return f"{sites[0]} is the only site that answered, so it sends its model"
        return (
            f"{len(selected)} of {len(sites)} sites send their models, by {x.xai_share:g} x {EXPLANATIONS[x.score]} + "
            f"{1 - x.xai_share:g} x {x.measure}; not asked: {', '.join(left_out)}, which saves the upload of "
            f"{len(left_out) * size:,} numbers"
        )

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        from grandrounds.methods.xfed import checks  # which look methods up by name

        return checks.refusals(plan, sites=sites, pictures=pictures)

    @classmethod
    def own_numbers(cls, plan: Plan, records: Sequence[RoundRecord], state: Mapping[str, Array]) -> dict[str, object]:
        return selection_summary(plan.method.xfed, [record.decision for record in records])

    @classmethod
    def describe(cls, summary: RunSummary) -> tuple[MethodFact, ...]:
        return describe_selection(summary.method_numbers, parameters=summary.parameters)


def add_models(scored: Answers, sent: Answers) -> Answers:
    """Join the scores of the selected sites with the models that they sent; a site that dropped out is missing."""
    models = scored.only([k for k, s in enumerate(scored.sites) if s in sent.sites], sent.missing)
    models.columns |= sent.columns
    return models
