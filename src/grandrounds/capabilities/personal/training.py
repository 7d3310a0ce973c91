"""Personal parts that sites train: FedRep's head, Ditto, APFL, and training continued after the rounds.

In a round a site with FedRep's head trains its last layer first, with the others fixed, and then takes part in the run's own
training with its last layer fixed; it answers with the last layer that it received. Ditto's and APFL's models are trained after
the run's own training, which does not depend on them: the common model has the same bits with and without. What a site keeps is
in its state (`site/state.py`), which a round commits, and in no answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.methods.guard.candidates import APFL, DITTO, FINETUNE, HEAD
from grandrounds.methods.guard.site import PersonalTerms, settings_alone
from grandrounds.models import Model
from grandrounds.models.optimizers import is_scale_free
from grandrounds.protocol.tasks import TRAIN
from grandrounds.site.plugin import Columns, Site, SitePlugin, TrainRequest
from grandrounds.site.stack import Part
from grandrounds.site.state import OWN
from grandrounds.site.train_job import TrainConfig, TrainJob, TrainResult

_KEPT = "personal"
"""Name of Ditto's and APFL's own models in the sites' state."""


def body_of(model: Model) -> Array:
    """Return the entries of a model outside its head."""
    layout: Any = model.layout
    return np.setdiff1d(np.arange(layout.size), head_of(model))


def head_of(model: Model) -> Array:
    """Return the entries of a model's head: its last layer, where it has others; else none."""
    return _entries(model, HEAD)


def _entries(model: Model, kind: str) -> Array:
    entries = getattr(model, "site_entries", None)
    return np.empty(0, np.int64) if entries is None else entries(kind)


@dataclass(frozen=True)
class PartTrainer:
    """Train personal models of the sites of a host.

    Attributes:
        site: The host.
        epochs: Epochs of one training.
        strength: Ditto's pull towards the common model.
        mixture: Share of a site's own model in APFL.
        config: Settings of the run's own training.
        class_weight: Weight of each class in the loss, (C,).
    """

    site: Site
    epochs: int
    strength: float
    mixture: float
    config: TrainConfig
    class_weight: Array | None = None

    def ditto(self, members: Array, own: Array, common: Array, *, part: Part | None = None) -> Array:
        """Train models on the local loss plus a pull towards the common model (Li et al. 2021, eq. 2).

        The penalty is strength / 2 times the squared distance. The kernels pull towards the start, which is `own`; a constant
        correction of the gradient moves the centre of the pull to the common model.

        Args:
            members: Site numbers, (m,).
            own: Models to start from, (m, P).
            common: The common model as each site received it, (m, P).
            part: Rows to train on; None: the sites' training rows.

        Returns:
            (m, P) the trained models.
        """
        config = replace(settings_alone(self.config, epochs=self.epochs), proximal=self.strength)
        correction = (self.strength * (own - common)).astype(own.dtype)
        return self._train(members, own, config, part=part, correction=correction)

    def apfl(self, members: Array, own: Array, local: Array, *, part: Part | None = None) -> Array:
        """Train models v on the loss of mixture * v + (1 - mixture) * local (Deng et al. 2020, Algorithm 1).

        The local models are fixed meanwhile, so the mixture itself is trained: a step of v by lr * mixture * gradient moves it by
        lr * mixture^2 * gradient; Adam's steps do not depend on the gradient's scale, and move it by mixture times their length.

        Args:
            members: Site numbers, (m,).
            own: Models v to start from, (m, P).
            local: Models that are mixed in, (m, P).
            part: Rows to train on; None: the sites' training rows.

        Returns:
            (m, P) the trained v.
        """
        a, config = self.mixture, settings_alone(self.config, epochs=self.epochs)
        config = replace(config, lr=config.lr * (a if is_scale_free(config.optimizer) else a * a))
        mixed = self._train(members, mix(own, local, a), config, part=part)
        out: Array = ((mixed - (1 - a) * local) / a).astype(own.dtype)
        statistics = _entries(self.site.prepared_model(), "statistics")  # of BatchNorm: no step by a gradient, and never negative
        out[:, statistics] = mixed[:, statistics]
        return out

    def head(self, members: Array, start: Array, *, part: Part | None = None) -> Array:
        """Train the last layers of models, with all others fixed (Collins et al. 2021, Algorithm 1).

        Args:
            members: Site numbers, (m,).
            start: Models to start from, (m, P).
            part: Rows to train on; None: the sites' training rows.

        Returns:
            (m, P) the models, which differ from the start in their last layer only.
        """
        frozen = body_of(self.site.prepared_model())
        return self._train(members, start, settings_alone(self.config, epochs=self.epochs), part=part, frozen=frozen)

    def refit(self, name: str, k: int, common: Array, part: Part) -> Array:
        """Fit a personal part to rows after the rounds, from the common model.

        Args:
            name: "head", "ditto", "apfl" or "finetune".
            k: Number of the site.
            common: The common model, (P,).
            part: Rows to train on.

        Returns:
            (P,) the personal model.
        """
        members, start = np.array([k]), common[None]
        if name == DITTO:
            trained = self.ditto(members, start, start, part=part)
        elif name == APFL:
            trained = mix(self.apfl(members, start, start, part=part), start, self.mixture)
        elif name == HEAD:
            trained = self.head(members, start, part=part)
        else:
            assert name == FINETUNE
            trained = self._train(members, start, settings_alone(self.config, epochs=self.epochs), part=part)
        return np.asarray(trained[0])

    def _train(self, members: Array, start: Array, config: TrainConfig, **more: Any) -> Array:
        return np.asarray(self.site.train_apart(members, start, config, class_weight=self.class_weight, **more).theta)


def mix(own: Array, common: Array, mixture: float) -> Array:
    """Return mixture * own + (1 - mixture) * common, in the precision of the models."""
    out: Array = (mixture * own + (1 - mixture) * common).astype(own.dtype)
    return out


class TrainedParts(SitePlugin):
    """Site half of the parts that are trained in the rounds: the head, Ditto's and APFL's own models."""

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        """Train the head first; the run's own training then starts with it and leaves it as it is."""
        if not self._trains(request, HEAD):
            return job
        if self.site.withheld_splits or request.config.rate or request.config.longest:
            raise BadInput(
                "a head of the site's own is trained without noise, and the layers that leave depend on it: refused because "
                "privacy.mechanism is set",
                code="raw-release",
            )
        head, members = head_of(self.site.prepared_model()), request.members
        start = _each(request.start, members)
        stored = self.site.states.read(OWN, members)
        if stored is not None:
            has_own = self.site.states.known(members)
            start[np.ix_(has_own, head)] = stored[has_own]
        trained = self._trainer(request).head(members, start)
        self.site.states.stage(members, request.config.round, {OWN: trained[:, head]})
        return replace(job, start=trained, frozen=head)

    def on_trained(self, request: TrainRequest, result: TrainResult) -> Columns:
        """Train Ditto's or APFL's own models after the run's own training; nothing of them is answered."""
        name = DITTO if self._trains(request, DITTO) else APFL
        if not self._trains(request, name):
            return {}
        members, common = request.members, _each(request.start, request.members)
        stored, has_own = self.site.states.read(_KEPT, members), self.site.states.known(members)
        own = common if stored is None else np.where(has_own[:, None], stored, common)
        train = self._trainer(request)
        if name == DITTO:
            trained = train.ditto(members, own, common)
        else:
            trained = train.apfl(members, own, np.asarray(result.theta))
        self.site.states.stage(members, request.config.round, {_KEPT: trained})
        return {}

    def _trains(self, request: TrainRequest, name: str) -> bool:
        return request.ask.task == TRAIN and self.site.personal_settings.get("part") == name

    def _trainer(self, request: TrainRequest) -> PartTrainer:
        settings, weight = self.site.personal_settings, request.ask.shared.get("class_weight")
        return PartTrainer(
            self.site,
            int(settings["epochs"]),
            float(settings["strength"]),
            float(settings["mixture"]),
            request.config,
            None if weight is None else np.asarray(weight),
        )


def trained_model(site: Site, k: int, common: Array) -> Array | None:
    """Return the personal model that a site trained in the rounds.

    Args:
        site: The host.
        k: Number of the site.
        common: The common model, (P,), which APFL mixes in; of the head the layers before the last one.

    Returns:
        (P,) the model; None if the part is not trained in the rounds, or the site took part in none.
    """
    members, settings = np.array([k]), site.personal_settings
    name = settings.get("part")
    stored = site.states.read(OWN if name == HEAD else _KEPT, members)
    if name is None or stored is None or not site.states.known(members)[0]:
        return None
    if name == HEAD:
        out = common.copy()
        out[head_of(site.prepared_model())] = stored[0]
        return out
    own: Array = stored[0].astype(common.dtype)
    return own if name == DITTO else mix(own, common, float(settings["mixture"]))


def fit_part(site: Site, terms: PersonalTerms, k: int, common: Array, part: Part | None) -> Array | None:
    """Fit the part of these terms to rows of site k; None: return the model that it trained in the rounds, if any."""
    if part is None:
        return trained_model(site, k, common)
    train = PartTrainer(site, terms.epochs, terms.strength, terms.mixture, terms.config, terms.class_weight)
    return train.refit(terms.part, k, common, part)


def _each(models: Any, members: Array) -> Array:
    """Return one model for each member, (m, P), as a copy."""
    return np.array(np.broadcast_to(models, (len(members), np.shape(models)[-1])))
