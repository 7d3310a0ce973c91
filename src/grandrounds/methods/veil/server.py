"""VEIL: sites propose features, or sums of clipped scores, and never send a model; the result is a sparse linear score.

Algorithm 1 as printed: a site proposes by `extractor.client_update`, the server votes by `weights.quorum_votes`; it is not
private. Ours: `score` draws feature and sign together, by a statistic with sensitivity 1 to one patient for any model
(`site.score_statistic`); `select_then_fit` and `moments` sum clipped vectors over patients (`sums.py`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.method_facts import MethodFact
from grandrounds.core.plan_types import MethodSettings, Plan, TrainSettings
from grandrounds.core.records import Decision, RoundRecord, RunSummary, Stage
from grandrounds.methods.base import LocalRegularizer, Method, Round, Server
from grandrounds.methods.select import choose
from grandrounds.methods.veil import checks
from grandrounds.methods.veil.budget import CENTRE_NORM, VOTING, Spending, plan_spending
from grandrounds.methods.veil.extractor import Extractor
from grandrounds.methods.veil.regression import keep_features, strongest_features
from grandrounds.methods.veil.site import VeilSite
from grandrounds.methods.veil.summary import describe_run, veil_numbers
from grandrounds.methods.veil.sums import count_percentiles, fit_from_sums, sum_reports
from grandrounds.methods.veil.weights import Ballot, net_votes, quorum_votes
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import CENSUS, PROPOSE

if TYPE_CHECKING:
    from grandrounds.privacy.accounting import Event


DEFAULT_VALUE, MOMENTS_VALUE = 1.0, 1.5
"""Default clipping bounds of standardised values: for scores, and for second moments."""

SELECTIONS = {
    "score": "features and signs drawn together by the score statistic at the current model; no trusted party",
    "select_then_fit": "noisy sums of scores: selects the largest features, then fits them; in a few stages",
    "moments": "one noisy sum of second moments and sparse regression at the server, then gradient steps in the remaining rounds",
    "paper": "as printed: by the size of local weights, with signs sent without noise; NOT private",
    "strongly_convex": "features and signs drawn by weights of a strongly convex fit (for research: weak)",
    "non_expansive": "features and signs drawn by weights of a few descents (for research: weak)",
}


class Veil(Method):
    """VEIL with one exchange per round, and a noisy census of patients and events before the first if needed."""

    name = "veil"
    title = "VEIL: a sparse linear model from feature proposals or noisy sums of scores; sites send no model"
    parts = frozenset({"select"})
    site = (VeilSite,)

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        return checks.refusals(model, plan)

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        return checks.secure_refusals(plan)

    @classmethod
    def own_numbers(cls, plan: Plan, records: Sequence[RoundRecord], state: Mapping[str, Array]) -> dict[str, object]:
        return veil_numbers(plan, records, state["model"])

    @classmethod
    def describe(cls, summary: RunSummary) -> tuple[MethodFact, ...]:
        return describe_run(summary)

    def __init__(
        self, settings: MethodSettings, train: TrainSettings, regularizer: LocalRegularizer | None = None
    ) -> None:
        super().__init__(settings, train, regularizer)
        self._counted: dict[str, Array] = {}  # a repeated first round does not ask for rows again

    def round(self, server: Server) -> Round:
        selection = yield from choose(server, self.settings.select)
        spent = self.spending(server)
        census = yield from self._census(server, selection.sites, spent)
        if spent.selection in VOTING:
            model, stage, weights, state = yield from self._vote(server, selection.sites, spent, census)
        else:
            config, start = self._site_config(server, spent, census), self._start(server, census)
            model, stage, weights, state = yield from fit_from_sums(
                server, selection.sites, spent, census, settings=self.settings.veil, config=config, start=start
            )
        counted, unheard = yield from count_percentiles(server, spent, model)
        signals = {**selection.signals, **self._reported_rows(server, tuple(weights), census)}
        notes = (*self._notes(server, spent), *unheard)
        decision = Decision(signals=signals, weights=weights, why=stage.why, stages=(stage,), notes=notes)
        return server.next(model, decision, **census, **state, **counted)

    def spends(self, server: Server) -> Sequence[Event]:
        """Return the releases of this round about each training patient, before the Ask."""
        return self.spending(server).events(server.round)

    @classmethod
    def exposes(cls, plan: Plan) -> tuple[str, ...]:
        """List row counts if the sensitivity of a site's own fit depends on them: they are taken as public."""
        taken = ("number of rows of each site, which sets the sensitivity to one patient",)
        return taken if plan.method.veil.selection in ("strongly_convex", "non_expansive") else ()

    def spending(self, server: Server) -> Spending:
        return plan_spending(
            self.settings.veil,
            rounds=self.settings.rounds,
            inputs=len(server.model) - 1,
            sites=len(server.sites),
            budget=server.private,
            secure=server.secure is not None,
            columns=server.columns,
        )

    def _census(
        self, server: Server, sites: tuple[str, ...], spent: Spending
    ) -> Generator[Ask, Answers, dict[str, Array]]:
        """Request row and event counts once: by site for votes, in total for sums."""
        stored = {
            name: server.state[name] for name in ("rows", "prior", "centre") if name in server.state
        } or self._counted
        v = self.settings.veil
        if stored or not spent.counts:
            return stored or {"prior": np.array([0.5 if v.prior is None else v.prior])}
        config: dict[str, Value] = dict(spent.census)
        if spent.selection in VOTING:
            answers: Answers = yield Ask(CENSUS, shared=config, to=server.sites, report=("census",))
            counts = dict(zip(answers.sites, np.asarray(answers["census"], float), strict=True))
            rows = np.array([max(1.0, counts[s][0]) if s in counts else 1.0 for s in server.sites])
            total = np.sum(list(counts.values()), axis=0)
        else:
            config["value"] = self._value(spent)
            ask = Ask(CENSUS, shared=config, to=server.sites, report=("census",))
            summed = yield from sum_reports(server, ask, "census", noise=spent.census_noise)
            total = summed.values["census"]
            rows = np.array([max(1.0, total[0])])
        event_share = float(np.clip(total[1] / max(1.0, total[0]), 0.005, 0.995))
        self._counted = {"rows": rows, "prior": np.array([event_share if v.prior is None else v.prior])}
        if spent.centres:
            mean = total[2:] * CENTRE_NORM / max(1.0, total[0])
            self._counted["centre"] = np.clip(mean, -self._value(spent), self._value(spent))
        return self._counted

    def _value(self, spent: Spending) -> float:
        """Return the bound at which standardised values are clipped."""
        v = self.settings.veil
        usual = MOMENTS_VALUE if spent.selection == "moments" else DEFAULT_VALUE
        return usual if v.value is None else float(v.value)

    def _vote(
        self, server: Server, sites: tuple[str, ...], spent: Spending, census: Mapping[str, Array]
    ) -> Generator[Ask, Answers, tuple[Array, Stage, dict[str, float], dict[str, Array]]]:
        """Ask for proposals and take one step by their votes: the server's lines of Algorithm 1 with votes 'quorum'.

        Not in the paper: net votes, weights of sites, a decaying step, and features that are chosen for the second half.
        """
        v = self.settings.veil
        start = self._start(server, census)
        config = self._site_config(server, spent, census)
        chosen = self._narrowed(server, spent, start)
        if chosen is not None:
            start = keep_features(start, chosen)
            config |= {"model": start.astype(server.model.dtype), "features": chosen.astype(np.uint16)}
        answers: Answers = yield Ask(PROPOSE, shared=config, to=sites, report=("votes",))  # lines 5 to 7
        weight = self._weights(server, answers.sites, census)
        ballot = Ballot.from_votes(np.asarray(answers["votes"]), len(server.model))  # lines 8 to 11
        quorum = v.votes == "quorum"
        change, why = quorum_votes(ballot, quorum=v.quorum) if quorum else net_votes(ballot, weight)  # eq. 3
        pace = 2 / (server.round + 2) if v.decay else 1.0
        model = start + v.step * pace * change  # eq. 4
        if self.settings.rounds == 1 and spent.selection == "score" and v.features:
            model = keep_features(model, strongest_features(model[:-1], v.features))
        shares = dict(zip(answers.sites, (weight / weight.sum()).tolist(), strict=True))
        return model, Stage("votes", why, shares), shares, {} if chosen is None else {"chosen": chosen}

    def _narrowed(self, server: Server, spent: Spending, model: Array) -> Array | None:
        """Return the strongest features, to which proposals are restricted in the second half of the rounds."""
        wanted = self.settings.veil.features
        if spent.selection != "score" or not wanted or server.round <= max(1, self.settings.rounds // 2):
            return None
        chosen = server.state.get("chosen")
        return strongest_features(model[:-1], wanted) if chosen is None else np.asarray(chosen, np.int64)

    def _site_config(self, server: Server, spent: Spending, census: Mapping[str, Array]) -> dict[str, Value]:
        """Build the settings of an Ask. The first model is the log-odds of the prior alone, and is not sent."""
        v, t = self.settings.veil, self.train
        config: dict[str, Value] = {
            "inputs": len(server.model) - 1,
            "prior": float(census["prior"][0]),
            "value": self._value(spent),
            **spent.site_config(server.round),
        }
        if spent.selection in VOTING:
            config |= {"selection": spent.selection, "k": v.k}
            if spent.selection != "score":
                clip = spent.norm if spent.selection != "paper" else 1.0
                config |= Extractor(t.epochs, t.batch, t.lr, clip, v.l2).to_values()
        else:
            config |= {"norm": spent.norm, "outcome": spent.outcome}
            if "centre" in census:
                config["centre"] = census["centre"].astype(np.float32)
        if server.round > 1 and spent.selection not in VOTING[1:] and spent.task(server.round) != "moments":
            config["model"] = server.model
        return config

    def _notes(self, server: Server, spent: Spending) -> tuple[str, ...]:
        """Return notes on misleading settings, in the first round."""
        v, d = self.settings.veil, len(server.model) - 1
        if server.round > 1 or spent.selection not in VOTING:
            return ()
        notes = []
        if spent.selection == "paper" and spent.draw:
            most = f"at most {math.exp(spent.draw / 4):.4g} times as often as another, whatever the data"
            notes.append(
                f"as printed, a feature is drawn {most}: selection is nearly uniform, and the model learns from signs"
            )
        if v.votes == "quorum" and v.quorum > v.k / d:
            sentence = f"method.veil.quorum is {v.quorum:.1%}, above k / d = {v.k / d:.1%}"
            notes.append(f"{sentence}: with nearly uniform draws no feature passes; lower it, or raise k")
        return tuple(notes)

    def _start(self, server: Server, census: Mapping[str, Array]) -> Array:
        """Return the current model; at the start, the log-odds of the prior alone."""
        model = np.array(server.model, float)
        if server.round == 1:
            prior = float(census["prior"][0])
            model[:-1], model[-1] = 0.0, np.log(prior / (1 - prior))
        return model

    def _reported_rows(
        self, server: Server, sites: tuple[str, ...], census: Mapping[str, Array]
    ) -> dict[str, dict[str, float]]:
        """Return the noisy row count of each site, if its votes are weighted by it."""
        by_site = len(census.get("rows", ())) == len(server.sites) and self.settings.veil.weight == "root"
        if not by_site or self.spending(server).selection not in VOTING:
            return {}
        return {"rows_said": dict(zip(sites, (self._weights(server, sites, census) ** 2).tolist(), strict=True))}

    def _weights(self, server: Server, sites: Sequence[str], census: Mapping[str, Array]) -> Array:
        """Return the weight of each site's votes: the root of its reported rows, or 1."""
        if self.settings.veil.weight == "uniform" or "rows" not in census:
            return np.ones(len(sites))
        place = {s: k for k, s in enumerate(server.sites)}
        out: Any = np.sqrt(census["rows"][[place[s] for s in sites]])
        return np.asarray(out)
