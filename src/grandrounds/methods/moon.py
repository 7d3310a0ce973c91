"""MOON (Li et al. 2021): a contrastive loss pulls a site's features to the global model's and away from its previous model's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grandrounds.methods.base import LocalRegularizer, Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.protocol.messages import Value
from grandrounds.site.plugin import Columns, SitePlugin, TrainRequest
from grandrounds.site.train_job import TrainJob, TrainResult


class PreviousModels(SitePlugin):
    """Site half: each site keeps the model that it trained last."""

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        if not request.config.contrast:
            return job
        first = np.broadcast_to(request.start, (len(request.members), request.start.shape[-1]))
        stored = self.site.states.read("previous", request.members)
        if stored is None:
            return replace(job, previous=first)
        has_model = self.site.states.known(request.members)  # a site without a previous model uses its start
        return replace(job, previous=np.where(has_model[:, None], stored, first))

    def on_trained(self, request: TrainRequest, result: TrainResult) -> Columns:
        if request.config.contrast:
            self.site.states.stage(request.members, request.config.round, {"previous": np.asarray(result.theta)})
        return {}


class Contrastive(LocalRegularizer):
    """Add method.moon_mu times the contrastive loss of eq. 3 to the local loss; the site keeps its previous model."""

    name = "moon"
    title = "MOON's contrastive loss on features (method.moon_mu, method.temperature)"
    needs = frozenset({"features"})
    site = (PreviousModels,)

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        return {"contrast": self.settings.moon_mu, "contrast_temperature": self.settings.temperature}


class Moon(FedAvg):
    name = "moon"
    title = "MOON: FedAvg with a contrastive local loss (nets with a hidden layer)"
    regularizer_name = "moon"
