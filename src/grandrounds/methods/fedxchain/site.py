"""FedXChain at a site: attributions as shares, their divergence from the consortium's, and a check of the weights.

A site reports its figures once a round. If the server passes on other figures, or weights that do not follow from all figures,
the site refuses with a code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers.shapley import direction
from grandrounds.explain.features import build_features
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.trust import (
    CLOSE,
    SMOOTHING,
    TrustInputs,
    TrustRule,
    compute_trust,
    distribution,
    divergence,
    group_rest,
    is_possible,
    steadiness,
)
from grandrounds.models import Model
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import CONTRIBUTE, DIVERGE, ERROR, WEIGHTS
from grandrounds.site.anchor import SharedReference
from grandrounds.site.attacks import falsify
from grandrounds.site.evaluate import member_logits, member_rows, row_losses, score
from grandrounds.site.explain import own_rows
from grandrounds.site.plugin import Columns, Site, SitePlugin, Task, TrainRequest

ATTRIBUTE, START, ON, JUDGED_ON, KEPT, SIGNED = (
    f"attribute{part}" for part in ("", "_from", "_on", "_judged", "_kept", "_signed")
)
"""Settings of a training Ask for explanations: the rule, the background, the rows to explain ("" is the site's own), the rows to
evaluate on, the features reported separately, and the use of signs."""


class SiteTrust(SitePlugin):
    """Explain local models by shares of features, and check the weights that follow from all sites' trust.

    A weight above `site.largest_weight`, its own or another's, is refused: the model would be that site's.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._rule: str | None = None  # as first received; it is fixed within a run
        self._reported: dict[str, dict[str, float]] = {}  # by site, of the current round
        self._accepted: dict[
            str, tuple[int, dict[str, float]]
        ] = {}  # by site: a round, and the weights accepted in it

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {DIVERGE: self._diverge, WEIGHTS: self._weights, CONTRIBUTE: self._contribute}

    def after_training(self, request: TrainRequest, columns: Columns) -> Columns:
        """Report `shap` and `trust` of the models that members answer with, as asked, and stage their shares (m, F)."""
        ask, members, models = request.ask, request.members, columns["model"]
        reports: Columns = {}
        state: dict[str, Array] = {}
        if ATTRIBUTE in ask.shared:
            before = self.site.states.read("shares", members)  # zeros for a site without earlier ones
            reports, state["shares"] = self._explain(ask, models, members, before)
        if JUDGED_ON in ask.shared:
            reports["trust.accuracy"] = self._accuracy(models, members, str(ask.shared[JUDGED_ON]))
        reports = self._apply_attacks(reports, members, ask)
        for row, site in enumerate(self.site.names_of(members)):
            values = {n.removeprefix("trust."): float(c[row]) for n, c in reports.items() if n.startswith("trust.")}
            self._reported[site] = {"rows": float(columns["count"][row]), **values}
        self.site.states.stage(members, request.config.round, state)
        return reports

    def agreed_weights(self, site: str, round: int) -> Mapping[str, float] | None:
        """Return the weights that this site accepted in this round: empty if it refused, None if it received none."""
        when, weights = self._accepted.get(site, (-1, {}))
        return weights if when == round else None

    def _explain(self, ask: Ask, models: Any, members: Array, before: Array | None) -> tuple[Columns, Array]:
        """Compute attributions of the members' models as shares, and their consistency between rounds."""
        rule = SketchRule.from_json(str(ask.shared[ATTRIBUTE]))
        model, start = self.site.prepared_model(), np.asarray(ask.shared[START])
        reference_name = str(ask.shared[ON])
        explainer = rule.explainer(build_features(self.site.encoding, grid=rule.tiles), start)
        if reference_name:
            reference = self._shared_reference(reference_name)
            x, target, offsets = reference.x, reference.explained_outputs(model.outputs), None
        else:
            x, target, offsets = own_rows(self.site.stack, members, rule, parts=("train",))
        shares = distribution(measure(explainer, model, models, x, target, offsets).values)
        columns: Columns = {
            "shap.shares": group_rest(shares, np.asarray(ask.shared[KEPT])) if KEPT in ask.shared else shares
        }
        if ask.shared[SIGNED]:
            cuts = [slice(None)] * len(members) if offsets is None else _site_slices(offsets)
            directions = [
                direction(model, theta, x[cut], start, steps=rule.steps)
                for theta, cut in zip(models, cuts, strict=True)
            ]
            columns["shap.direction"] = np.stack(directions)
        columns["trust.steadiness"] = _steadiness_or_nan(shares, before)
        return columns, shares

    def _diverge(self, ask: Ask, members: Array) -> Columns:
        """Compute NSDS of the attributions that this site withholds, and the agreement of signs: one number each."""
        consensus = {
            name: np.asarray(ask.shared[name], float) for name in ("shares", "direction") if name in ask.shared
        }
        ask_id, question = str(ask.shared["of"]), b"".join(v.tobytes() for v in consensus.values())
        stored = [self.site.withheld_reports.look(ask_id, k) for k in members.tolist()]
        if any(not _is_plausible_mean(consensus, h) for h in stored):
            raise BadInput(
                "the consortium's attributions that the server sent are not valid shares",
                code="implausible-consensus",
            )
        for k in members.tolist():
            self.site.withheld_reports.answers(ask_id, k, DIVERGE, question)
        columns: Columns = {"trust.nsds": np.array([divergence(h["shap.shares"], consensus["shares"]) for h in stored])}
        if "direction" in consensus:
            columns["trust.alignment"] = np.array([float(h["shap.direction"] @ consensus["direction"]) for h in stored])
        columns = self._apply_attacks(columns, members, ask)
        for row, site in enumerate(self.site.names_of(members)):
            values = {name.removeprefix("trust."): float(column[row]) for name, column in columns.items()}
            self._reported.setdefault(site, {}).update(values)
        return columns

    def _weights(self, ask: Ask, members: Array) -> Columns:
        """Accept the weights of a round, or reject them with a code."""
        names, rule = tuple(json.loads(str(ask.shared["names"]))), str(ask.shared["rule"])
        inputs, weights = TrustInputs.from_values(ask.shared), np.asarray(ask.shared["weights"], float)
        TrustRule.from_json(rule)
        self._rule = self._rule or rule
        sites = self.site.names_of(members)
        codes = [self._rejection_code(site, names, rule, inputs, weights) for site in sites]
        for site, code in zip(sites, codes, strict=True):
            along = {} if code else dict(zip(names, weights.tolist(), strict=True))
            self._accepted[site] = (ask.round, along)
        return {"agreed": np.array([not code for code in codes]), ERROR: codes}

    def _rejection_code(self, site: str, names: Sequence[str], rule: str, inputs: TrustInputs, weights: Array) -> str:
        """Return the code by which this site rejects the weights; empty where it accepts them."""
        if rule != self._rule:
            return "rule-changed"
        once = len(set(names)) == len(names) and site in names
        if not once or not inputs.is_complete(len(names)) or not self._matches_report(site, names.index(site), inputs):
            return "not-as-told"
        recomputed = compute_trust(TrustRule.from_json(rule), inputs).weights
        if weights.shape != recomputed.shape or not np.allclose(weights, recomputed, rtol=CLOSE, atol=CLOSE):
            return "weights-wrong"
        return "weight-too-large" if weights.max() > self.site.largest_weight else ""

    def _matches_report(self, site: str, k: int, inputs: TrustInputs) -> bool:
        """Check that the server passes on this site's figures unchanged."""
        reported = self._reported.get(site, {})
        shown = {
            "accuracy": inputs.accuracies[k, -1],
            **{n: v[k] for n, v in inputs.to_values().items() if n not in ("accuracies", "in_line")},
        }
        return all(
            np.isclose(shown[n], reported[n], rtol=CLOSE, atol=CLOSE, equal_nan=True) for n in shown if n in reported
        )

    def _contribute(self, ask: Ask, members: Array) -> Columns:
        """Compute how much this site, at its share by rows, lowers the log loss of the others' model on the shared rows.

        theta without i = (theta - w_i theta_i) / (1 - w_i), which only the site can compute under secure aggregation.
        """
        aggregate, ask_id, total = (
            np.asarray(ask.shared["model"], float),
            str(ask.shared["of"]),
            float(ask.shared["total"]),
        )
        lent, model = self._shared_reference(str(ask.shared["on"])), self.site.prepared_model()
        y = _require_labels(lent)
        rows = lent.x.tobytes() + y.tobytes()  # by content: other rows may have come under the same name

        def loss(theta: Array) -> float:
            return float(row_losses(score(model, theta, lent.x), y, model.outputs).mean())

        out = []
        for k in members.tolist():
            mine = ask.for_site(self.site.stack.names[k])
            weight, share = float(mine["weight"]) / total, float(mine["share"])
            if not (0 <= weight <= self.site.largest_weight and 0 <= share <= 1):
                raise BadInput(
                    "the server asks for a contribution at a share that this site does not accept",
                    code="weight-too-large",
                )
            self.site.withheld_reports.answers(
                ask_id, k, CONTRIBUTE, aggregate.tobytes() + np.array([weight, share]).tobytes() + rows
            )
            theta_own = np.asarray(self.site.withheld_reports.look(ask_id, k)["model"], float)
            rest = (aggregate - weight * theta_own) / max(1 - weight, 1e-12)
            out.append(loss(rest) - loss((1 - share) * rest + share * theta_own))
        return self._apply_attacks({"trust.contribution": np.array(out)}, members, ask)

    def _accuracy(self, models: Any, members: Array, reference_name: str) -> Array:
        """Compute the accuracy of each member's own model on the shared rows, or on its validation rows; NaN if it has none."""
        model, stack = self.site.prepared_model(), self.site.stack
        if reference_name:
            lent = self._shared_reference(reference_name)
            y = _require_labels(lent)
            return np.array([_is_correct(score(model, theta, lent.x), y, model).mean() for theta in models])
        part = stack.parts["val"]
        rows, owner = member_rows(part, members)
        right = _is_correct(member_logits(model, stack, members, models, part), part.y[rows], model)
        counts = part.counts[members]
        accuracy = np.bincount(owner, weights=right, minlength=len(members)) / np.maximum(counts, 1)
        return np.where(counts > 0, accuracy, np.nan)

    def _shared_reference(self, name: str) -> SharedReference:
        if name not in self.site.references:
            raise BadInput(
                f"this site has no reference rows '{name}': send them first (task `lend`)",
                code="reference-not-shared",
            )
        return self.site.references[name]

    def _apply_attacks(self, columns: Columns, members: Array, ask: Ask) -> Columns:
        return falsify(columns, attacks=self.site.stack.attacks_of(members), round=ask.round)


def _is_plausible_mean(consensus: Mapping[str, Array], stored: Mapping[str, Array]) -> bool:
    """Check that attributions can be a mean of shares like the stored ones.

    With extremely small shares, one divergence would reveal every share of the site.
    """
    if any(
        f"shap.{name}" not in stored or values.shape != stored[f"shap.{name}"].shape
        for name, values in consensus.items()
    ):
        return False
    alike = all(bool(is_possible(name, values[None])[0]) for name, values in consensus.items())
    return alike and bool((consensus["shares"] >= SMOOTHING / 2).all())


def _require_labels(lent: SharedReference) -> Array:
    labels = lent.classes
    if labels is None:
        raise BadInput(
            "the reference rows have no labels, so a model cannot be evaluated on them",
            code="unlabelled-reference",
        )
    return labels


def _is_correct(logits: Array, y: Array, model: Model) -> Array:
    out: Array = (logits[:, 0] > 0) == y if model.outputs == 1 else logits.argmax(axis=1) == y
    return out


def _steadiness_or_nan(shares: Array, before: Array | None) -> Array:
    """Compute the consistency of attributions between rounds; NaN for a site without earlier ones."""
    if before is None:
        return np.full(len(shares), np.nan)
    return np.where(before.sum(axis=-1) > 0, steadiness(shares, before), np.nan)


def _site_slices(offsets: Array) -> list[slice]:
    return [slice(a, b) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
