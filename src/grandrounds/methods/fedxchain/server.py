"""FedXChain: sites explain themselves by SHAP, their trust sets their weights, and every weight can be worked out again.

Sites answer a training Ask with their reasons as shares of features. The trust-weighted mean of all (eq. 6) goes back; where
models are hidden it is a secure sum, and each site says by one number how far it diverges. Trust and weights follow, and
every site that has a weight works all of them out again before it goes along.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.plan_types import Plan
from grandrounds.explain.explainers.shapley import unit_vector
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.trust import (
    SMOOTHING,
    TrustInputs,
    TrustResult,
    TrustRule,
    compute_trust,
    divergence,
    group_rest,
    pool_shares,
    steadiness,
)
from grandrounds.methods.aggregate import Aggregation, aggregate
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.fedxchain.rewards import with_rewards
from grandrounds.methods.fedxchain.site import SiteTrust
from grandrounds.methods.secure import STATISTIC_BITS, SecureRule, secure_sum, secure_weighted_sum
from grandrounds.methods.sse_agg.weights import HARMS, STANDING, PerSiteState, explanation_weights
from grandrounds.methods.weigh import WeightingResult, weigh
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import DIVERGE, ERROR, REASONS, WEIGHTS


class FedXChain(FedAvg):
    """FedAvg weighed by trust, with models and reasons under masks where privacy.secure is set.

    The four steps of a round: reasons are pooled by last round's trust (eq. 6); each site's divergence from them (eq. 4) and
    its accuracy make its trust (eq. 7); every site checks everybody's weights (eq. 8); models are added up by them. With
    method.weigh 'data_size' or 'uniform' trust is watched and has no say, so that other methods can be compared.
    """

    name = "fedxchain"
    site = (SiteTrust,)
    title = "FedXChain: weighs sites by trust, made of accuracy, agreement of SHAP values and steadiness"

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        from grandrounds.methods.fedxchain import checks  # which look methods up by name

        return checks.refusals(model, plan, sites=sites, pictures=pictures)

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        trust = TrustRound(server, self.settings)
        ask = trust.asks(ask)
        shares = self.regularizer.secure_weights(server)
        answers: Answers = yield ask if server.secure is None else ask.withholding("model", "shap", *shares)
        weighed, answers = yield from trust.weighed(answers)
        if server.secure is None:
            joined = aggregate(server, answers, self, weighed)
        else:
            joined, answers = yield from secure_weighted_sum(server, server.secure, answers, weighed, shares)
        joined = yield from with_rewards(server, self.settings, joined, answers)
        return joined, answers


TRUST = "trust"
"""The rule of [method.weigh] that is this, and what it remembers of a site."""

_ACCURACIES, _SHARES = "accuracies", "own_shares"
"""What it remembers besides, where it sees them: a site's latest accuracies, and its reasons."""

_OTHER_FEATURES = "all others"


@dataclass(frozen=True)
class _PooledAttributions:
    """The consortium's reasons, and what is known of each site that has a part in them."""

    shares: Array  # (F,), or of the features that are told apart and of all others
    nsds: Array
    alignment: Array | None = None


@dataclass(frozen=True)
class _WeighedSites:
    """The sites that were weighed in a round, what they were weighed by and what came of it."""

    sites: tuple[str, ...]
    columns: Mapping[str, Array]  # what was seen of them
    found: _PooledAttributions
    said: TrustInputs
    verdict: TrustResult
    here: Array  # (K,) which of them went along


class TrustRound:
    """One round's weighing by trust."""

    def __init__(self, server: Server, settings: Any) -> None:
        self.server, self.settings, self.trust = server, settings, settings.trust
        self.rule = TrustRule.from_settings(settings.trust)
        told = settings.trust.explainer
        self.sketch = SketchRule(server.explainer if told == "auto" else told, server.seed, rows=settings.trust.rows)
        self.at_server = server.secure is None and settings.trust.explained == "reference"
        self.judged_here = server.secure is None and settings.trust.accuracy_at == "reference"
        self.by_reasons: WeightingResult | None = None  # SSE-AGG's weighing, where its agreement has a say

    def asks(self, ask: Ask) -> Ask:
        """The training Ask, with what sites need to explain and judge themselves."""
        t, server = self.trust, self.server
        told: dict[str, Value] = {}
        if not self.at_server:
            assert server.background is not None
            told |= {
                "attribute": self.sketch.to_json(),
                "attribute_from": server.background,
                "attribute_on": server.shared_reference if t.explained == "reference" else "",
                "attribute_signed": self.rule.signed,
            }
            if self.kept is not None:
                told["attribute_kept"] = self.kept
        if not self.judged_here:
            told["attribute_judged"] = server.shared_reference if t.accuracy_at == "reference" else ""
        more = ("sketch",) if self.rule.reasons else ()
        ask = ask.with_reports(*more, *(("shap", "trust") if told else ()))
        return replace(ask, shared={**ask.shared, **told})

    @property
    def kept(self) -> Array | None:
        """The features that are told apart, by the consortium's last reasons; None: all of them."""
        last = self.server.state.get("pooled")
        if not self.trust.top or last is None or self.trust.top >= len(last) - 1:
            return None
        return np.sort(np.argsort(-last, kind="stable")[: self.trust.top])

    def weighed(self, answers: Answers) -> Generator[Ask, Answers, tuple[WeightingResult, Answers]]:
        """The weights of these answers, and the answers of those that go along with them."""
        if self.server.secure is None:
            columns = self._columns(answers)
            found = self._pool(columns["shares"], columns.get("direction"), self._before(answers))
        else:
            found, answers = yield from self._pool_secretly(self.server.secure, answers)
            columns = self._columns(answers)
        said = self._said(answers, columns, found)
        verdict, sites, here = compute_trust(self.rule, said), answers.sites, np.ones(len(answers), bool)
        if self.settings.weigh.rule == TRUST:
            agreed = yield from self._agreed(answers, said, verdict)
            here = np.isin(np.array(sites), np.array(agreed.sites))
            answers = answers.only(np.flatnonzero(here), agreed.missing)
        return self._recorded(answers, _WeighedSites(sites, columns, found, said, verdict, here)), answers

    def _columns(self, answers: Answers) -> dict[str, Array]:
        """What sites said of themselves, and what the server sees itself on its own rows."""
        server = self.server
        out: dict[str, Array] = {}
        if self.at_server:
            assert server.reference is not None and server.background is not None
            models = answers["model"]
            seen = server.reference.attributed(models, self.sketch, server.background, signed=self.rule.signed)
            out["all"] = seen["shares"]
            out["steadiness"] = self._steady(answers, seen["shares"])
            out["shares"] = seen["shares"] if self.kept is None else group_rest(seen["shares"], self.kept)
            if "direction" in seen:
                out["direction"] = seen["direction"]
        else:
            out["steadiness"] = np.asarray(answers["trust.steadiness"], float)
            here = {"shares": "shap.shares", "direction": "shap.direction"}
            out |= {name: np.asarray(answers[column], float) for name, column in here.items() if column in answers}
        if self.judged_here:
            assert server.reference is not None
            out["accuracy"] = server.reference.accuracy(answers["model"])
        else:
            out["accuracy"] = np.asarray(answers["trust.accuracy"], float)
        return out

    def _pool(self, shares: Array, points: Array | None, trust: Array) -> _PooledAttributions:
        """The consortium's reasons, seen by the server (eq. 6), and every site's divergence from them (eq. 4)."""
        mean = pool_shares(shares, trust)
        if points is None:
            return _PooledAttributions(mean, divergence(shares, mean))
        return _PooledAttributions(mean, divergence(shares, mean), points @ unit_vector(pool_shares(points, trust)))

    def _pool_secretly(self, rule: SecureRule, answers: Answers) -> Generator[Ask, Answers, tuple[_PooledAttributions, Answers]]:
        """The same under masks: sites multiply by their trust, the sum goes back, and each says how far it diverges."""
        trust = self._before(answers)
        trust = trust if trust.any() else np.ones_like(trust)
        own = dict(zip(answers.sites, (trust / trust.sum()).tolist(), strict=True))
        summed = yield from secure_sum(
            rule, answers, weights={"shap": own}, of=("shap",), bits=STATISTIC_BITS, bound=1.0, purpose=REASONS
        )
        mean = np.maximum(summed.values["shap.shares"] / summed.weights["shap"], SMOOTHING)
        mean /= mean.sum()
        shared: dict[str, Value] = {"shares": mean, "of": str(answers.id)}
        if "shap.direction" in summed.values:
            shared["direction"] = unit_vector(summed.values["shap.direction"])
        stayed = answers.only([k for k, s in enumerate(answers.sites) if s in summed.sites], summed.missing)
        heard = yield Ask(DIVERGE, shared=shared, to=stayed.sites, report=("trust",))
        kept = stayed.only([k for k, s in enumerate(stayed.sites) if s in heard.sites], heard.missing)
        alignment = np.asarray(heard["trust.alignment"], float) if "trust.alignment" in heard else None
        return _PooledAttributions(mean, np.asarray(heard["trust.nsds"], float), alignment), kept

    def _said(self, answers: Answers, columns: Mapping[str, Array], found: _PooledAttributions) -> TrustInputs:
        """What the sites are weighed by."""
        last = self._known(answers).get(_ACCURACIES, self.trust.window)
        accuracies = np.concatenate([last[:, 1:], columns["accuracy"][:, None]], axis=1)
        if self.rule.reasons:
            self.by_reasons = explanation_weights(self.settings.weigh, self.server, answers)
        in_line = None if self.by_reasons is None else self.by_reasons.signals["in_line"]
        rows = np.asarray(answers["count"], float)
        return TrustInputs(rows, accuracies, columns["steadiness"], found.nsds, found.alignment, in_line)

    def _agreed(self, answers: Answers, said: TrustInputs, verdict: TrustResult) -> Generator[Ask, Answers, Answers]:
        """Show all sites all numbers and weights; those that find them wrong refuse."""
        shared: dict[str, Value] = {
            "names": json.dumps(answers.sites),
            "rule": self.rule.to_json(),
            "weights": verdict.weights,
            **said.to_values(),
        }
        agreed: Answers = yield Ask(WEIGHTS, shared=shared, to=answers.sites, report=("agreed", ERROR))
        if not len(agreed):
            why = next(iter(agreed.missing.values()), "nobody answered")
            way = f"; the largest is {verdict.weights.max():.2f}: raise privacy.largest_weight, or let more sites take part"
            way = way if "(weight-too-large)" in why else ""
            raise RunFailed(
                f"round {self.server.round}: no site goes along with the weights it was shown ({why}){way}",
                code="weights-rejected",
            )
        return agreed

    def _recorded(self, answers: Answers, judged: _WeighedSites) -> WeightingResult:
        """The weights of those that are left, with every number behind them; `answers`: theirs."""
        said, verdict, here = judged.said, judged.verdict, judged.here
        signals = {
            "accuracy": said.accuracies[:, -1],
            "nsds": said.nsds,
            "steadiness": said.steadiness,
            "consistency": verdict.consistency,
            "trust": verdict.trust,
            **({} if said.alignment is None else {"alignment": said.alignment}),
            **({} if self.by_reasons is None else self.by_reasons.signals),
        }
        refused = _rejected_signals(judged, {"data_size": said.rows, **signals})
        notes = tuple(divergence_alarms(judged.sites, said.nsds, most=self.trust.alarm).values())
        notes += () if self.by_reasons is None else self.by_reasons.notes
        signals = {name: np.asarray(values)[here] for name, values in signals.items()}
        if self.settings.weigh.rule == TRUST:
            weights = verdict.weights[here]
            if not weights.any():
                raise RunFailed(f"round {self.server.round}: no site that goes along has any weight", code="no-weight-left")
            weights = weights if here.all() else weights / weights.sum()
            why = self._why(verdict)
        else:
            usual = weigh(self.settings.weigh, self.server, answers)
            weights, why = usual.weights, f"{usual.why}; trust is watched and has no say"
            signals |= usual.signals
            self.by_reasons = usual if STANDING in usual.memory else self.by_reasons
        memory = self._remembered(answers, judged)
        return WeightingResult(weights, signals, why, {}, memory, notes, self._named(judged.found.shares), refused)

    def _why(self, verdict: TrustResult) -> str:
        r = self.rule
        agreed = "exp(-NSDS) x how far signs agree" if r.signed else "exp(-NSDS)"
        made = f"trust = {r.alpha:g} accuracy + {r.beta:g} {agreed} + {r.gamma:g} consistency"
        if verdict.alone:
            taken = "the penalty for NSDS and for signs" if r.signed else "the penalty for NSDS"
            return f"no weight was left after {taken}, so a site's weight is its share of all trust: {made}"
        by = "" if not r.kappa else f"rows^{r.kappa:g} x "
        held = f"exp(-{r.tau:g} NSDS)" if r.form == "exponential" else f"(1 - {r.tau:g} NSDS, at least 0)"
        more = " x how far signs agree" if r.signed else ""
        more += " x how far its reasons are in line with the others'" if r.reasons else ""
        return f"a site's weight follows {by}trust x {held}{more}; {made}"

    def _named(self, shares: Array) -> dict[str, float]:
        names = self.server.features
        if len(shares) != len(names):
            kept = self.kept
            assert kept is not None
            names = (*(names[j] for j in kept), _OTHER_FEATURES)
        return dict(zip(names, shares.tolist(), strict=True))

    def _before(self, answers: Answers) -> Array:
        """The trust of the round before (eq. 6); a site that is new is trusted fully."""
        known = self._known(answers).get(TRUST)
        return np.where(np.isfinite(known), known, 1.0)

    def _steady(self, answers: Answers, shares: Array) -> Array:
        last = self._known(answers).get(_SHARES, shares.shape[1])
        return np.where(np.isfinite(last).all(axis=1), steadiness(shares, last), np.nan)

    def _known(self, answers: Answers) -> PerSiteState:
        return PerSiteState(self.server, answers, TRUST, _ACCURACIES, _SHARES)

    def _remembered(self, answers: Answers, judged: _WeighedSites) -> dict[str, Array]:
        """Trust of all sites, also of those that were away: who leaves and comes back is trusted as before."""
        found = {TRUST: judged.verdict.trust, _ACCURACIES: judged.said.accuracies}
        if "all" in judged.columns:
            found[_SHARES] = judged.columns["all"]
        out = self._known(answers).updated(**{name: values[judged.here] for name, values in found.items()})
        if self.by_reasons is not None:
            out |= {name: self.by_reasons.memory[name] for name in (STANDING, HARMS) if name in self.by_reasons.memory}
        out["pooled"] = self._spread(judged.found.shares)
        return out

    def _spread(self, shares: Array) -> Array:
        """The consortium's reasons of all features; what was lumped together is dealt out as it was before."""
        kept = self.kept
        if kept is None:
            return shares
        last = self.server.state["pooled"]
        out = np.array(last, float)
        rest = np.setdiff1d(np.arange(len(out)), kept)
        out[kept] = shares[:-1]
        out[rest] *= shares[-1] / max(out[rest].sum(), SMOOTHING)
        return out


def divergence_alarms(sites: Sequence[str], nsds: Array, *, most: float) -> dict[str, str]:
    """Sites whose reasons have gone too far from the consortium's (sec. II-B), each in words."""
    return {
        site: f"{site}: its reasons diverge from the consortium's, NSDS {d:.3f} over method.trust.alarm = {most:g}"
        for site, d in zip(sites, nsds.tolist(), strict=True)
        if d > most
    }


def _rejected_signals(judged: _WeighedSites, signals: Mapping[str, Array]) -> dict[str, dict[str, float]]:
    """The numbers of sites that were weighed and did not go along: the others' weights were made with them."""
    left = np.flatnonzero(~judged.here).tolist()
    return {name: {judged.sites[k]: float(values[k]) for k in left} for name, values in signals.items()}
