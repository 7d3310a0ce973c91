"""FedXChain: sites explain themselves by SHAP, trust sets their weights, and every site can recompute all weights.

Sites answer a training Ask with their attributions as shares of features. The server returns the trust-weighted mean (eq. 6).
With secure aggregation the mean is a secure sum, and each site reports its divergence as one number. Trust and weights follow,
and every site with a weight recomputes all of them before it accepts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.plan_types import MethodSettings, Plan
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.trust import (
    TrustInputs,
    TrustResult,
    TrustRule,
    compute_trust,
    group_rest,
    steadiness,
)
from grandrounds.methods.aggregate import Aggregation, aggregate
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.fedxchain.acceptance import ask_acceptance
from grandrounds.methods.fedxchain.pooling import PooledAttributions, pool, pool_secretly
from grandrounds.methods.fedxchain.rewards import with_rewards
from grandrounds.methods.fedxchain.site import SiteTrust
from grandrounds.methods.fedxchain.top_features import expand_shares, name_features, tracked_features
from grandrounds.methods.secure import secure_weighted_sum
from grandrounds.methods.site_state import PerSiteState
from grandrounds.methods.sse_agg.harm import HARMS, STANDING
from grandrounds.methods.sse_agg.weights import explanation_weights
from grandrounds.methods.weigh import WeightingResult, weigh
from grandrounds.protocol.messages import Answers, Ask, Value


class FedXChain(FedAvg):
    """FedAvg weighted by trust, with secure aggregation of models and attributions if privacy.secure is set.

    A round has four steps: attributions are pooled by last round's trust (eq. 6); each site's divergence from them (eq. 4) and
    its accuracy determine its trust (eq. 7); every site checks all weights (eq. 8); models are averaged by them. With
    method.weigh 'data_size' or 'uniform', trust is recorded but not used, for comparisons.
    """

    name = "fedxchain"
    site = (SiteTrust,)
    title = "FedXChain: weighs sites by trust: accuracy, agreement of SHAP values and consistency"

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        from grandrounds.methods.fedxchain import checks  # which look methods up by name

        return checks.refusals(model, plan, sites=sites, pictures=pictures)

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        """Run lines 4 to 15 of Algorithm 2; line 16, the hash chain of eq. 9, is the run's ledger."""
        trust = TrustRound(server, self.settings)
        ask = trust.extend_ask(ask)  # line 7: sites explain their models
        shares = self.regularizer.secure_weights(server)
        answers: Answers = yield ask if server.secure is None else ask.withholding("model", "shap", *shares)  # lines 4 to 8
        weighting, answers = yield from trust.weigh(answers)  # lines 11 to 14
        if server.secure is None:
            aggregation = aggregate(server, answers, self, weighting)  # line 15
        else:
            aggregation, answers = yield from secure_weighted_sum(server, server.secure, answers, weighting, shares)
        aggregation = yield from with_rewards(server, self.settings, aggregation, answers)  # Fig. 7
        return aggregation, answers


TRUST = "trust"
"""The rule of [method.weigh] for FedXChain, and the name of its state per site."""

_ACCURACIES, _SHARES = "accuracies", "own_shares"
"""Further state, if the server sees it: a site's latest accuracies and attributions."""

@dataclass(frozen=True)
class _WeighedSites:
    """The sites weighed in a round, with the inputs and the result of the rule."""

    sites: tuple[str, ...]
    columns: Mapping[str, Array]  # their answers
    pooled: PooledAttributions
    inputs: TrustInputs
    verdict: TrustResult
    accepted: Array  # (K,) sites that accepted the weights


class TrustRound:
    """Weighting by trust in one round."""

    def __init__(self, server: Server, settings: MethodSettings) -> None:
        self.server, self.settings, self.trust = server, settings, settings.trust
        self.rule = TrustRule.from_settings(settings.trust)
        explainer = settings.trust.explainer
        self.sketch = SketchRule(
            server.explainer if explainer == "auto" else explainer, server.seed, rows=settings.trust.rows
        )
        self.at_server = server.secure is None and settings.trust.explained == "reference"
        self.scored_at_server = server.secure is None and settings.trust.accuracy_at == "reference"
        self.tracked = tracked_features(server.state.get("pooled"), settings.trust.top)
        self.agreement: WeightingResult | None = None  # SSE-AGG's weights, if its agreement is used

    def extend_ask(self, ask: Ask) -> Ask:
        """Extend the training Ask by the settings for explaining and scoring local models."""
        t, server = self.trust, self.server
        config: dict[str, Value] = {}
        if not self.at_server:
            assert server.background is not None
            config |= {
                "attribute": self.sketch.to_json(),
                "attribute_from": server.background,
                "attribute_on": server.shared_reference if t.explained == "reference" else "",
                "attribute_signed": self.rule.signed,
            }
            if self.tracked is not None:
                config["attribute_kept"] = self.tracked
        if not self.scored_at_server:
            config["attribute_judged"] = server.shared_reference if t.accuracy_at == "reference" else ""
        more = ("sketch",) if self.rule.reasons else ()
        ask = ask.with_reports(*more, *(("shap", "trust") if config else ()))
        return replace(ask, shared={**ask.shared, **config})

    def weigh(self, answers: Answers) -> Generator[Ask, Answers, tuple[WeightingResult, Answers]]:
        """Weigh the answers (Algorithm 2, lines 11 to 14), and return those of sites that accept the weights."""
        trust = self._previous_trust(answers)
        if self.server.secure is None:
            columns = self._columns(answers)
            pooled = pool(columns["shares"], columns.get("direction"), trust)  # lines 11 and 12: eq. 6 and 4
        else:
            pooled, answers = yield from pool_secretly(self.server.secure, answers, trust)
            columns = self._columns(answers)
        inputs = self._trust_inputs(answers, columns, pooled)
        verdict = compute_trust(self.rule, inputs)  # lines 13 and 14: eq. 7 and 8
        sites, accepted = answers.sites, np.ones(len(answers), bool)
        if self.settings.weigh.rule == TRUST:
            agreed = yield from ask_acceptance(self.server.round, self.rule, answers.sites, inputs, verdict)
            accepted = np.isin(np.array(sites), np.array(agreed.sites))
            answers = answers.only(np.flatnonzero(accepted), agreed.missing)
        return self._build_result(answers, _WeighedSites(sites, columns, pooled, inputs, verdict, accepted)), answers

    def _columns(self, answers: Answers) -> dict[str, Array]:
        """Collect the sites' reports, and compute the server's scores on its reference rows."""
        server = self.server
        out: dict[str, Array] = {}
        if self.at_server:
            assert server.reference is not None and server.background is not None
            models = answers["model"]
            attributed = server.reference.attributed(models, self.sketch, server.background, signed=self.rule.signed)
            out["all"] = attributed["shares"]
            out["steadiness"] = self._steady(answers, attributed["shares"])
            out["shares"] = attributed["shares"] if self.tracked is None else group_rest(attributed["shares"], self.tracked)
            if "direction" in attributed:
                out["direction"] = attributed["direction"]
        else:
            out["steadiness"] = np.asarray(answers["trust.steadiness"], float)
            reports = {"shares": "shap.shares", "direction": "shap.direction"}
            out |= {name: np.asarray(answers[column], float) for name, column in reports.items() if column in answers}
        if self.scored_at_server:
            assert server.reference is not None
            out["accuracy"] = server.reference.accuracy(answers["model"])
        else:
            out["accuracy"] = np.asarray(answers["trust.accuracy"], float)
        return out

    def _trust_inputs(
        self, answers: Answers, columns: Mapping[str, Array], pooled: PooledAttributions
    ) -> TrustInputs:
        """Collect the inputs of the trust rule."""
        last = self._state(answers).get(_ACCURACIES, self.trust.window)
        accuracies = np.concatenate([last[:, 1:], columns["accuracy"][:, None]], axis=1)
        if self.rule.reasons:
            self.agreement = explanation_weights(self.settings.weigh, self.server, answers)
        in_line = None if self.agreement is None else self.agreement.signals["in_line"]
        rows = np.asarray(answers["count"], float)
        return TrustInputs(
            rows, accuracies, columns["steadiness"], pooled.nsds, pooled.alignment, in_line
        )

    def _build_result(self, answers: Answers, judged: _WeighedSites) -> WeightingResult:
        """Return the weights of the accepting sites with all signals; `answers` are theirs."""
        inputs, verdict, accepted = judged.inputs, judged.verdict, judged.accepted
        signals = {
            "accuracy": inputs.accuracies[:, -1],
            "nsds": inputs.nsds,
            "steadiness": inputs.steadiness,
            "consistency": verdict.consistency,
            "trust": verdict.trust,
            **({} if inputs.alignment is None else {"alignment": inputs.alignment}),
            **({} if self.agreement is None else self.agreement.signals),
        }
        refused = _rejected_signals(judged, {"data_size": inputs.rows, **signals})
        notes = tuple(divergence_alarms(judged.sites, inputs.nsds, most=self.trust.alarm).values())
        notes += () if self.agreement is None else self.agreement.notes
        signals = {name: np.asarray(values)[accepted] for name, values in signals.items()}
        if self.settings.weigh.rule == TRUST:
            weights = verdict.weights[accepted]
            if not weights.any():
                raise RunFailed(
                    f"round {self.server.round}: no site that accepted the weights has a weight above 0", code="no-weight-left"
                )
            weights = weights if accepted.all() else weights / weights.sum()
            why = self._why(verdict)
        else:
            default = weigh(self.settings.weigh, self.server, answers)
            weights, why = default.weights, f"{default.why}; trust is recorded but not used"
            signals |= default.signals
            self.agreement = default if STANDING in default.memory else self.agreement
        memory = self._updated_state(answers, judged)
        named = name_features(self.server.features, judged.pooled.shares, self.tracked)
        return WeightingResult(weights, signals, why, {}, memory, notes, named, refused)

    def _why(self, verdict: TrustResult) -> str:
        r = self.rule
        agreed = "exp(-NSDS) x agreement of signs" if r.signed else "exp(-NSDS)"
        formula = f"trust = {r.alpha:g} accuracy + {r.beta:g} {agreed} + {r.gamma:g} consistency"
        if verdict.alone:
            taken = "the penalty for NSDS and for signs" if r.signed else "the penalty for NSDS"
            return f"all weights were 0 after {taken}, so a site's weight is its share of total trust: {formula}"
        rows_factor = "" if not r.kappa else f"rows^{r.kappa:g} x "
        penalty = f"exp(-{r.tau:g} NSDS)" if r.form == "exponential" else f"(1 - {r.tau:g} NSDS, at least 0)"
        more = " x agreement of signs" if r.signed else ""
        more += " x agreement of its explanations with the others'" if r.reasons else ""
        return f"a site's weight follows {rows_factor}trust x {penalty}{more}; {formula}"

    def _previous_trust(self, answers: Answers) -> Array:
        """Return the trust of the previous round (eq. 6); a new site has full trust."""
        trust = self._state(answers).get(TRUST)
        return np.where(np.isfinite(trust), trust, 1.0)

    def _steady(self, answers: Answers, shares: Array) -> Array:
        last = self._state(answers).get(_SHARES, shares.shape[1])
        return np.where(np.isfinite(last).all(axis=1), steadiness(shares, last), np.nan)

    def _state(self, answers: Answers) -> PerSiteState:
        return PerSiteState(self.server, answers, TRUST, _ACCURACIES, _SHARES)

    def _updated_state(self, answers: Answers, judged: _WeighedSites) -> dict[str, Array]:
        """Return the trust of all sites; an absent site keeps its trust."""
        found = {TRUST: judged.verdict.trust, _ACCURACIES: judged.inputs.accuracies}
        if "all" in judged.columns:
            found[_SHARES] = judged.columns["all"]
        out = self._state(answers).updated(**{name: values[judged.accepted] for name, values in found.items()})
        if self.agreement is not None:
            out |= {name: self.agreement.memory[name] for name in (STANDING, HARMS) if name in self.agreement.memory}
        out["pooled"] = expand_shares(judged.pooled.shares, self.server.state.get("pooled"), self.tracked)
        return out

def divergence_alarms(sites: Sequence[str], nsds: Array, *, most: float) -> dict[str, str]:
    """Return a sentence for each site whose attributions diverge too far from the consortium's (sec. II-B)."""
    return {
        site: f"{site}: its attributions diverge from the consortium's, NSDS {d:.3f} above method.trust.alarm = {most:g}"
        for site, d in zip(sites, nsds.tolist(), strict=True)
        if d > most
    }


def _rejected_signals(judged: _WeighedSites, signals: Mapping[str, Array]) -> dict[str, dict[str, float]]:
    """Return the signals of sites that rejected the weights, on which the others' weights depend."""
    rejected = np.flatnonzero(~judged.accepted).tolist()
    return {name: {judged.sites[k]: float(values[k]) for k in rejected} for name, values in signals.items()}
