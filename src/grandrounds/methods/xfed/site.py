"""XFed at a site, step 3 of Fig. 3: it scores its trained model on shared images, keeps it, and sends it once it is selected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.rationale import REPORT, RationaleRule, score_rationale
from grandrounds.protocol.messages import KEEP, UPLOAD, Ask
from grandrounds.site.attacks import falsify
from grandrounds.site.plugin import Columns, Site, SitePlugin, Task, TrainRequest


class CandidateModels(SitePlugin):
    """Scores and keeps the models of sites that may be asked to upload them."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.kept: tuple[str, dict[int, Array]] = ("", {})  # an Ask, and its models until they are requested

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {UPLOAD: self._upload}

    def after_training(self, request: TrainRequest, columns: Columns) -> Columns:
        """Score and store the members' models if the Ask requests it: steps 3.2 to 4.1, after the training of step 3.1."""
        ask, models = request.ask, columns["model"]
        scores = self._scored(ask, models, request.members) if REPORT in ask.shared else {}
        if ask.shared.get(KEEP):
            self._keep(ask, request.members, models)
        return scores

    def _scored(self, ask: Ask, models: Any, members: Array) -> Columns:
        """Score the explanations (Algorithm 1) and the accuracy (step 3.4) of the members' models on the scoring images."""
        reference = self.site.references.get(str(ask.shared[f"{REPORT}_on"]))
        y = None if reference is None else reference.classes
        if reference is None or y is None:
            raise BadInput(
                "this site has no labelled images to score its explanations on: send them first (task `lend`)",
                code="reference-not-shared",
            )
        rule = RationaleRule.from_json(str(ask.shared[REPORT]))
        scores = score_rationale(rule, self.site.prepared_model(), models, reference.x, y, reference.masks)
        return falsify(scores, attacks=self.site.stack.attacks_of(members), round=ask.round)

    def _keep(self, ask: Ask, members: Array, models: Any) -> None:
        """Store the members' models until they are requested; an Ask may come in parts, and a later Ask replaces it."""
        ask_id, models_by_site = self.kept
        before = models_by_site if ask_id == str(ask.id) else {}
        self.kept = (str(ask.id), before | dict(zip(members.tolist(), models, strict=True)))

    def _upload(self, ask: Ask, members: Array) -> Columns:
        """Return the models that the members kept when they were asked to train: step 5."""
        ask_id, models_by_site = self.kept
        if ask_id != str(ask.shared["of"]) or any(k not in models_by_site for k in members.tolist()):
            raise BadInput(
                "the server requests a model that this site does not store: it stores only the last one it was asked to keep",
                code="model-not-stored",
            )
        models = [models_by_site[k] for k in members.tolist()]
        return {"model": np.stack(models) if len({m.shape for m in models}) == 1 else models}
