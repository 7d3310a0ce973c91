"""Local regularisation on shared reference rows: sites keep the model's answers, or its attributions, on them.

Re-weighting sites does not lower drift, since local models differ before anything is weighed; a loss that all sites
share on the same rows does. The rows need no labels; they are patients' rows all the same, so an experiment must say
that they may be sent.
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
"""How strong an anchor is where nobody says: for plain steps, and for adam and adamw, which scale steps back."""

RAMP_ROUNDS = 10
"""Rounds over which an anchor comes to its strength: the first begin with a model that knows nothing worth keeping."""


class AnchorRows(SitePlugin):
    """Site half: gives training the shared reference rows and the consensus of sketches on them."""

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        config, shared = request.config, request.ask.shared
        if config.anchor or config.alignment:
            job = replace(job, reference=find_anchor_reference(self.site.references, config))
        if config.alignment and "consensus" in shared:
            job = replace(job, consensus=np.asarray(shared["consensus"]))
        return job


class ReferenceAnchor(LocalRegularizer):
    """Adds method.anchor times the cross-entropy to the starting model's answers on reference rows to the local loss.

    It comes in over the first rounds: held at full strength to what an untrained net says, two of five runs on skin lesions
    swung wider every round.
    """

    name = "anchor"
    title = "Reference anchor: sites keep the global model's answers on rows they are sent (method.anchor)"
    needs = frozenset({"reference"})
    site: ClassVar[tuple[type[SitePlugin], ...]] = (AnchorRows,)
    permuted = False

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        rows = self.settings.anchor_rows or ""
        strength = DEFAULT_STRENGTH if self.settings.anchor is None else self.settings.anchor
        return {"anchor": ramp_up(strength, server.round), "anchor_rows": rows, "permuted": self.permuted}


class PermutedAnchor(ReferenceAnchor):
    """Anchors on rows with one feature permuted, which fixes what a permutation sketch measures."""

    name = "permuted_anchor"
    title = "Reference anchor on rows with one feature permuted, or one tile hidden: pins the sketch (method.anchor)"
    permuted = True


class AnchoredScaffold(ControlVariates, PermutedAnchor):
    """Combines SCAFFOLD's control variates, which remove drift, with a permuted anchor, which keeps them from diverging.

    Variates alone diverge where sites are very unequal and steps are long; an anchor alone leaves a third of the drift, and
    one that is too strong stops learning. So its strength is method.anchor_gain times the fourth power of the model's doubt on
    the anchor's rows (the mean entropy of its answers, as a share of the most there could be): on a hard task it holds, on
    one that is being learnt it lets go. Above 1 / lr its own steps would overshoot. Sites with fewer rows than a batch follow
    their variates more slowly (`steady`).
    """

    name = "anchored_scaffold"
    title = "SCAFFOLD's variates and a permuted anchor that follows the model's doubt (optimizer 'sgd', method.anchor_gain)"
    needs = ControlVariates.needs | PermutedAnchor.needs
    site = (SiteVariates, AnchorRows)

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        assert server.anchors is not None
        strength = min(self.settings.anchor_gain * server.anchors.doubt(server.model) ** 4, 1 / lr)
        both = {**ControlVariates.site_config(self, server, lr), **PermutedAnchor.site_config(self, server, lr)}
        return {**both, "anchor": ramp_up(strength, server.round), "steady": True}


class AttributionAlignment(LocalRegularizer):
    """Adds method.alignment times the L1 distance of the site's gradient sketch to the consensus to the local loss.

    Sites report their sketch after training; the consensus of the next round is its mean, weighted by rows. Methods that
    remember nothing of the kind (asynchronous ones, clustered) leave each site with the sketch of the model it was sent.
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
        if "reasons" not in answers:  # of weight 0: nothing was aligned
            return {}
        rows = np.array([server.rows[s] for s in answers.sites], float)
        mean = np.average(np.asarray(answers["reasons"], float), axis=0, weights=rows)
        return {"consensus": mean.astype(server.model.dtype)}


def ramp_up(strength: float, round: int) -> float:
    """Compute the strength of an anchor in a round: 0 in the first, full from round RAMP_ROUNDS + 1 on."""
    return strength * min(1.0, (round - 1) / RAMP_ROUNDS)


def anchor_reference(plan: Plan) -> str | None:
    """Return the reference set that the local regularizer shares with sites; None where it shares none.

    It is the one named, or 'anchor', or the only one that may be sent; what the model in use is scored on is meant by name only.
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
