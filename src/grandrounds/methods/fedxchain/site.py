"""FedXChain at a site: its reasons as shares, how far they diverge from the consortium's, and a check of the weights.

What a site says of itself it says once a round; a server that puts other numbers in its mouth, or weights that do not
follow from everybody's, is refused with a code and nothing else.
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
"""What a training Ask says where sites are to explain themselves: the rule, the background, on whose rows (""
is their own), on whose rows they judge themselves where they are to, the features told apart, and whether signs count."""


class SiteTrust(SitePlugin):
    """Explains sites by shares of features, and checks the weights that follow from everybody's trust.

    A weight beyond `site.largest_weight`, its own or another's, is refused: the model would be that site's.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._rule: str | None = None  # as first told: it does not change within a run
        self._said: dict[str, dict[str, float]] = {}  # by site, of the round at hand
        self._shown: dict[
            str, tuple[int, dict[str, float]]
        ] = {}  # by site: a round, and the weights it went along with

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {DIVERGE: self._diverge, WEIGHTS: self._weights, CONTRIBUTE: self._contribute}

    def after_training(self, request: TrainRequest, columns: Columns) -> Columns:
        """Report `shap` and `trust` of the models that members answer with, as asked, and stage their shares (m, F)."""
        ask, members, models = request.ask, request.members, columns["model"]
        reports: Columns = {}
        state: dict[str, Array] = {}
        if ATTRIBUTE in ask.shared:
            before = self.site.states.read("shares", members)  # zeros for a site that has no earlier ones
            reports, state["shares"] = self._explained(ask, models, members, before)
        if JUDGED_ON in ask.shared:
            reports["trust.accuracy"] = self._accuracy(models, members, str(ask.shared[JUDGED_ON]))
        reports = self._as_told(reports, members, ask)
        for row, site in enumerate(self.site.names_of(members)):
            said = {n.removeprefix("trust."): float(c[row]) for n, c in reports.items() if n.startswith("trust.")}
            self._said[site] = {"rows": float(columns["count"][row]), **said}
        self.site.states.stage(members, request.config.round, state)
        return reports

    def agreed_weights(self, site: str, round: int) -> Mapping[str, float] | None:
        """Return the weights that this site accepted in this round: none if it refused, None if it was shown none."""
        when, weights = self._shown.get(site, (-1, {}))
        return weights if when == round else None

    def _explained(self, ask: Ask, models: Any, members: Array, before: Array | None) -> tuple[Columns, Array]:
        """Reasons of the members' models as shares, and how steady they are."""
        rule = SketchRule.from_json(str(ask.shared[ATTRIBUTE]))
        model, start = self.site.prepared_model(), np.asarray(ask.shared[START])
        on = str(ask.shared[ON])
        explainer = rule.explainer(build_features(self.site.encoding, grid=rule.tiles), start)
        if on:
            held = self._borrowed(on)
            x, target, offsets = held.x, held.explained_outputs(model.outputs), None
        else:
            x, target, offsets = own_rows(self.site.stack, members, rule, parts=("train",))
        shares = distribution(measure(explainer, model, models, x, target, offsets).values)
        columns: Columns = {
            "shap.shares": group_rest(shares, np.asarray(ask.shared[KEPT])) if KEPT in ask.shared else shares
        }
        if ask.shared[SIGNED]:
            cuts = [slice(None)] * len(members) if offsets is None else _site_slices(offsets)
            found = [
                direction(model, own, x[cut], start, steps=rule.steps) for own, cut in zip(models, cuts, strict=True)
            ]
            columns["shap.direction"] = np.stack(found)
        columns["trust.steadiness"] = _steadiness_or_nan(shares, before)
        return columns, shares

    def _diverge(self, ask: Ask, members: Array) -> Columns:
        """NSDS of the reasons that this site holds for the sum, and how far their signs agree: one number each."""
        told = {name: np.asarray(ask.shared[name], float) for name in ("shares", "direction") if name in ask.shared}
        of, asked = str(ask.shared["of"]), b"".join(v.tobytes() for v in told.values())
        held = [self.site.withheld_reports.look(of, k) for k in members.tolist()]
        if any(not _is_plausible_mean(told, h) for h in held):
            raise BadInput(
                "these are no reasons of a consortium that this site's could be held to",
                code="implausible-consensus",
            )
        for k in members.tolist():
            self.site.withheld_reports.answers(of, k, DIVERGE, asked)
        columns: Columns = {"trust.nsds": np.array([divergence(h["shap.shares"], told["shares"]) for h in held])}
        if "direction" in told:
            columns["trust.alignment"] = np.array([float(h["shap.direction"] @ told["direction"]) for h in held])
        columns = self._as_told(columns, members, ask)
        for row, site in enumerate(self.site.names_of(members)):
            said = {name.removeprefix("trust."): float(column[row]) for name, column in columns.items()}
            self._said.setdefault(site, {}).update(said)
        return columns

    def _weights(self, ask: Ask, members: Array) -> Columns:
        """Go along with the weights of a round, or say by a code why not."""
        names, rule = tuple(json.loads(str(ask.shared["names"]))), str(ask.shared["rule"])
        said, weights = TrustInputs.from_values(ask.shared), np.asarray(ask.shared["weights"], float)
        TrustRule.from_json(rule)
        self._rule = self._rule or rule
        sites = self.site.names_of(members)
        codes = [self._doubt(site, names, rule, said, weights) for site in sites]
        for site, code in zip(sites, codes, strict=True):
            along = {} if code else dict(zip(names, weights.tolist(), strict=True))
            self._shown[site] = (ask.round, along)
        return {"agreed": np.array([not code for code in codes]), ERROR: codes}

    def _doubt(self, site: str, names: Sequence[str], rule: str, said: TrustInputs, weights: Array) -> str:
        """Why this site does not go along, as a code; nothing where it does."""
        if rule != self._rule:
            return "rule-changed"
        once = len(set(names)) == len(names) and site in names
        if not once or not said.is_complete(len(names)) or not self._as_i_said(site, names.index(site), said):
            return "not-as-told"
        again = compute_trust(TrustRule.from_json(rule), said).weights
        if weights.shape != again.shape or not np.allclose(weights, again, rtol=CLOSE, atol=CLOSE):
            return "weights-wrong"
        return "weight-too-large" if weights.max() > self.site.largest_weight else ""

    def _as_i_said(self, site: str, k: int, said: TrustInputs) -> bool:
        """Whether the server passes on what this site told it, as far as it did."""
        mine = self._said.get(site, {})
        shown = {
            "accuracy": said.accuracies[k, -1],
            **{n: v[k] for n, v in said.to_values().items() if n not in ("accuracies", "in_line")},
        }
        return all(np.isclose(shown[n], mine[n], rtol=CLOSE, atol=CLOSE, equal_nan=True) for n in shown if n in mine)

    def _contribute(self, ask: Ask, members: Array) -> Columns:
        """Compute by how much this site, at the share of its rows, betters the others' model on the lent rows: a log loss.

        theta without i = (theta - w_i theta_i) / (1 - w_i), which only the site can work out under masks.
        """
        whole, of, total = np.asarray(ask.shared["model"], float), str(ask.shared["of"]), float(ask.shared["total"])
        lent, model = self._borrowed(str(ask.shared["on"])), self.site.prepared_model()
        y = _require_labels(lent)
        rows = lent.x.tobytes() + y.tobytes()  # by what they are: other rows may have come by the same name

        def loss(theta: Array) -> float:
            return float(row_losses(score(model, theta, lent.x), y, model.outputs).mean())

        out = []
        for k in members.tolist():
            mine = ask.for_site(self.site.stack.names[k])
            weight, share = float(mine["weight"]) / total, float(mine["share"])
            if not (0 <= weight <= self.site.largest_weight and 0 <= share <= 1):
                raise BadInput(
                    "a contribution is asked for with a share that this site takes no part with",
                    code="weight-too-large",
                )
            self.site.withheld_reports.answers(of, k, CONTRIBUTE, whole.tobytes() + np.array([weight, share]).tobytes() + rows)
            own = np.asarray(self.site.withheld_reports.look(of, k)["model"], float)
            rest = (whole - weight * own) / max(1 - weight, 1e-12)
            out.append(loss(rest) - loss((1 - share) * rest + share * own))
        return self._as_told({"trust.contribution": np.array(out)}, members, ask)

    def _accuracy(self, models: Any, members: Array, on: str) -> Array:
        """Each member's own model on the lent rows, or on its own validation rows; NaN where it has none."""
        model, stack = self.site.prepared_model(), self.site.stack
        if on:
            lent = self._borrowed(on)
            y = _require_labels(lent)
            return np.array([_is_correct(score(model, own, lent.x), y, model).mean() for own in models])
        part = stack.parts["val"]
        rows, owner = member_rows(part, members)
        right = _is_correct(member_logits(model, stack, members, models, part), part.y[rows], model)
        counts = part.counts[members]
        found = np.bincount(owner, weights=right, minlength=len(members)) / np.maximum(counts, 1)
        return np.where(counts > 0, found, np.nan)

    def _borrowed(self, name: str) -> SharedReference:
        if name not in self.site.references:
            raise BadInput(
                f"this site does not hold the reference rows '{name}': ask 'lend' first",
                code="reference-not-shared",
            )
        return self.site.references[name]

    def _as_told(self, columns: Columns, members: Array, ask: Ask) -> Columns:
        return falsify(columns, attacks=self.site.stack.attacks_of(members), round=ask.round)


def _is_plausible_mean(told: Mapping[str, Array], held: Mapping[str, Array]) -> bool:
    """Whether reasons as they are told can be the mean of some that are like those held.

    Shares as small as a float can be would make of one divergence a number in which every share can be read.
    """
    if any(f"shap.{name}" not in held or values.shape != held[f"shap.{name}"].shape for name, values in told.items()):
        return False
    alike = all(bool(is_possible(name, values[None])[0]) for name, values in told.items())
    return alike and bool((told["shares"] >= SMOOTHING / 2).all())


def _require_labels(lent: SharedReference) -> Array:
    known = lent.classes
    if known is None:
        raise BadInput(
            "these reference rows came without labels: a site cannot judge a model on them",
            code="unlabelled-reference",
        )
    return known


def _is_correct(logits: Array, y: Array, model: Model) -> Array:
    out: Array = (logits[:, 0] > 0) == y if model.outputs == 1 else logits.argmax(axis=1) == y
    return out


def _steadiness_or_nan(shares: Array, before: Array | None) -> Array:
    """How steady reasons are; NaN for a site that has no earlier ones."""
    if before is None:
        return np.full(len(shares), np.nan)
    return np.where(before.sum(axis=-1) > 0, steadiness(shares, before), np.nan)


def _site_slices(offsets: Array) -> list[slice]:
    return [slice(a, b) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
