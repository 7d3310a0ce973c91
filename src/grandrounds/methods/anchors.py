"""Local regularisation on shared reference rows: local training preserves the model's predictions or attributions on them.

Re-weighting sites does not lower drift, because local models differ before they are weighed. A common loss on the same rows
does. The rows need no labels. They are still patient data, so an experiment must allow that they are sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import watched_rows, which
from grandrounds.methods.base import LocalRegularizer, Server
from grandrounds.methods.scaffold import ControlVariates, SiteVariates
from grandrounds.protocol.messages import Answers, Value
from grandrounds.site.anchor import find_anchor_reference
from grandrounds.site.plugin import SitePlugin, TrainRequest
from grandrounds.site.train_job import TrainJob

DEFAULT_STRENGTH, ADAPTIVE_STRENGTH = 3.0, 40.0
"""Default strength of an anchor: for SGD, and for Adam and AdamW, which rescale steps."""

RAMP_ROUNDS = 10
"""Rounds over which an anchor reaches its full strength: early models have learnt nothing worth preserving."""


class AnchorRows(SitePlugin):
    """Site half: add the shared reference rows and the consensus sketch to the training job."""

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        config, shared = request.config, request.ask.shared
        if config.anchor or config.alignment:
            job = replace(job, reference=find_anchor_reference(self.site.references, config))
        if config.alignment and "consensus" in shared:
            job = replace(job, consensus=np.asarray(shared["consensus"]))
        return job


class ReferenceAnchor(LocalRegularizer):
    """Add method.anchor times the cross-entropy to the starting model's predictions on reference rows to the local loss.

    The strength rises over the first rounds. With full strength from an untrained net, two of five runs on skin lesions diverged.
    """

    name = "anchor"
    title = "Reference anchor: keeps local predictions on shared rows close to the global model's (method.anchor)"
    needs = frozenset({"reference"})
    site: ClassVar[tuple[type[SitePlugin], ...]] = (AnchorRows,)
    permuted = False

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        rows = self.settings.anchor_rows or ""
        strength = DEFAULT_STRENGTH if self.settings.anchor is None else self.settings.anchor
        return {"anchor": ramp_up(strength, server.round), "anchor_rows": rows, "permuted": self.permuted}


class PermutedAnchor(ReferenceAnchor):
    """Anchor on rows with one feature permuted, which preserves the permutation importances of a sketch."""

    name = "permuted_anchor"
    title = "Reference anchor on rows with one feature permuted, or one tile hidden: preserves the sketch (method.anchor)"
    permuted = True


class AnchoredScaffold(ControlVariates, PermutedAnchor):
    """Combine SCAFFOLD's control variates, which remove drift, with a permuted anchor, which keeps them from diverging.

    Control variates alone diverge with very unequal sites and large steps. An anchor alone leaves a third of the drift, and too
    strong an anchor stops learning. So its strength is method.anchor_gain times the fourth power of the model's normalised
    entropy on the anchor's rows: strong on a hard task, weak once the task is learnt. It is at most 1 / lr, beyond which steps
    would overshoot. Sites with fewer rows than a batch update their variates more slowly (`steady`).
    """

    name = "anchored_scaffold"
    title = "SCAFFOLD's control variates and a permuted anchor scaled by the model's entropy ('sgd', method.anchor_gain)"
    needs = ControlVariates.needs | PermutedAnchor.needs
    site = (SiteVariates, AnchorRows)

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        assert server.anchors is not None
        strength = min(self.settings.anchor_gain * server.anchors.doubt(server.model) ** 4, 1 / lr)
        both = {**ControlVariates.site_config(self, server, lr), **PermutedAnchor.site_config(self, server, lr)}
        return {**both, "anchor": ramp_up(strength, server.round), "steady": True}


class AttributionAlignment(LocalRegularizer):
    """Add method.alignment times the L1 distance of the site's gradient sketch to the consensus to the local loss.

    Sites report their sketch after training; the consensus of the next round is its mean, weighted by rows. Methods without that
    state (asynchronous, clustered) align each site to the sketch of the model it was sent.
    """

    name = "alignment"
    title = "Attribution alignment: each site's sketch is pulled to the consortium's (method.alignment)"
    report = ("reasons",)
    needs = frozenset({"reference"})
    site = (AnchorRows,)

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        config: dict[str, Value] = {"alignment": self.settings.alignment, "anchor_rows": self.settings.anchor_rows or ""}
        consensus = server.state.get("consensus")
        return config if consensus is None else {**config, "consensus": consensus}

    def update(self, server: Server, answers: Answers) -> dict[str, Array]:
        if "reasons" not in answers:  # the weight was 0, so nothing was aligned
            return {}
        rows = np.array([server.rows[s] for s in answers.sites], float)
        mean = np.average(np.asarray(answers["reasons"], float), axis=0, weights=rows)
        return {"consensus": mean.astype(server.model.dtype)}


def ramp_up(strength: float, round: int) -> float:
    """Compute the strength of an anchor in a round: 0 in the first, full from round RAMP_ROUNDS + 1 on."""
    return strength * min(1.0, (round - 1) / RAMP_ROUNDS)


def anchor_reference(plan: Plan) -> str | None:
    """Return the name of the reference set that the local regularizer shares with sites; None if it shares none.

    It is method.anchor_rows, else 'anchor', else the only set that may be sent. The set for evaluation must be named explicitly.
    """
    from grandrounds.methods import regularizer_class

    m = plan.method
    if "reference" not in regularizer_class(m).needs:
        return None
    references = plan.reference.plain()
    if m.anchor_rows is not None and m.anchor_rows not in references:
        hint = nearest(m.anchor_rows, references) if references else "there is no [reference]"
        raise BadInput(f"method.anchor_rows is '{m.anchor_rows}'; {hint}", code="unknown-reference-set")
    candidates = {name: s for name, s in references.items() if name == m.anchor_rows or name != watched_rows(plan)}
    sent = [name for name, settings in candidates.items() if settings.get("sent")]
    chosen = which(sent, m.anchor_rows or "")
    return chosen if chosen in sent else None
