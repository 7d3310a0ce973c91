"""The sites' half of personal parts: fit the candidates, let the guard choose, keep the model that is deployed here.

Files of a hospital are in its own folder, personal.safetensors: the deployed model and the comparison behind it. Of these only
the choice's name leaves, and under a privacy budget not even that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, save
from grandrounds.core.errors import BadInput
from grandrounds.methods.personal import guard
from grandrounds.methods.personal.parts import (
    CHOICES,
    COMMON,
    HEAD,
    IN_ROUNDS,
    INTERCEPT,
    MAJORITY,
    OWN,
    RECALIBRATION,
    fit_line,
    fit_linear,
    fit_majority,
    is_linear,
    is_shiftable,
    loss_of,
    marginal_gain,
    rows_of,
    score_rows,
)
from grandrounds.methods.personal.training import PartTrainer, settings_alone, trained_model
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import PERSONAL, PERSONAL_HARM, PERSONAL_SPREAD
from grandrounds.site.evaluate import score
from grandrounds.site.plugin import Columns, Site, SitePlugin, Task
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig

FILE = "personal.safetensors"


@dataclass(frozen=True)
class PersonalTerms:
    """Settings of an Ask for personal parts, besides the common model.

    Attributes:
        part: The personal part, "none" for the guard alone.
        guard: The guard chooses; else the part is deployed.
        rows: "train" or "validation": the rows of the guard's comparison.
        variance: Variance of the intercepts of sites.
        epochs: Epochs of the personal part.
        own_epochs: Epochs of a model of the site's own.
        strength: Ditto's pull.
        mixture: APFL's share.
        config: Settings of local training.
        class_weight: Weight of each class in the loss of training, (C,).
    """

    part: str
    guard: bool
    rows: str
    variance: float
    epochs: int
    own_epochs: int
    strength: float
    mixture: float
    config: TrainConfig
    class_weight: Array | None = None

    @classmethod
    def read(cls, ask: Ask) -> PersonalTerms:
        """Read the terms of an Ask."""
        v = ask.shared
        part = str(v["part"])
        if part not in ("none", *CHOICES):
            raise BadInput(f"personal part '{part[:40]}' is unknown: install the same version everywhere", code="unknown-part")
        return cls(
            part,
            bool(v["guard"]),
            str(v["rows"]),
            float(v["variance"]),
            int(v["epochs_own_part"]),
            int(v["epochs_own_model"]),
            float(v["strength"]),
            float(v["mixture"]),
            TrainConfig.from_values(v),
            None if v.get("class_weight") is None else np.asarray(v["class_weight"]),
        )

    @property
    def candidates(self) -> tuple[str, ...]:
        """Candidates that are fitted: with the guard all, else the common model and the part."""
        if not self.guard:
            return (COMMON, self.part)
        if self.part == HEAD:  # the last layer of the common model is not trained: no intercept makes a model of it
            return (COMMON, HEAD, OWN, MAJORITY)
        return tuple(dict.fromkeys((COMMON, INTERCEPT, *(() if self.part == "none" else (self.part,)), OWN, MAJORITY)))


class PersonalSite(SitePlugin):
    """Personal models of the sites of one host."""

    name = "personal"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._own: dict[int, Array] = {}  # the model of each site's own rows alone
        self._majority: dict[int, Array] = {}

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {PERSONAL: self._personalize, PERSONAL_SPREAD: self._spread, PERSONAL_HARM: self._harm}

    def _personalize(self, ask: Ask, members: Array) -> Columns:
        """Fit the candidates at each site, choose, and keep the model that is deployed there."""
        terms = PersonalTerms.read(ask)
        models_in_use = self.site.received(ask, members) if terms.part == HEAD else self.site.in_use(ask, members)
        common = np.broadcast_to(models_in_use, (len(members), np.shape(ask.shared["model"])[-1]))
        choices = []
        for k, theta in zip(members.tolist(), common, strict=True):
            fitted = {name: self._fit_all(name, terms, k, theta) for name in terms.candidates}
            models = {name: model for name, model in fitted.items() if model is not None}
            comparison = self._compare(terms, k, theta, models) if terms.guard else None
            choice = terms.part if comparison is None else comparison.choice
            choice = choice if choice in models else COMMON
            self.site.personal_models[k] = models[choice]
            self._own |= {k: models[OWN]} if OWN in models else {}
            self._majority |= {k: models[MAJORITY]} if MAJORITY in models else {}
            self._write(k, choice, theta, models[choice], comparison)
            choices.append(CHOICES.index(choice))
        return {"fitted": np.ones(len(members), np.uint8), "choice": np.array(choices, np.int64)}

    def _fit_all(self, name: str, terms: PersonalTerms, k: int, theta: Array) -> Array | None:
        """Fit one candidate to all training rows of site k; one that was trained in the rounds is there already."""
        trained = trained_model(self.site, k, theta) if name in IN_ROUNDS else None
        return self.fit(name, terms, k, theta, self.site.stack.parts["train"]) if trained is None else trained

    def fit(
        self, name: str, terms: PersonalTerms, k: int, theta: Array, part: Part, start: Array | None = None
    ) -> Array | None:
        """Fit one candidate to site k's rows of a part, which may be a fold of its training rows.

        Args:
            name: The candidate, one of `CHOICES`.
            terms: The Ask's terms.
            k: Number of the site.
            theta: The common model.
            part: The rows to fit to.
            start: The candidate fitted to all rows, from which a fit to convergence may start.

        Returns:
            (P,) the candidate; None where this model or these rows have none.
        """
        model = self.site.prepared_model()
        loss, rows = loss_of(model), rows_of(part, k)
        x, target = part.x[rows], part.target[rows]
        if name == COMMON:
            return theta
        if not len(target):
            return None
        if name == MAJORITY:
            return fit_majority(model, theta, loss, target)
        if name in (INTERCEPT, RECALIBRATION):
            if not is_shiftable(model):
                return None
            line = fit_line(loss, score(model, theta, x), target, variance=terms.variance, slope=name == RECALIBRATION)
            return line.apply(model, theta)
        if name == OWN and is_linear(model):
            return fit_linear(loss, x, target, start=start).astype(theta.dtype)
        if name == OWN:
            first, config = model.init(terms.config.seed, theta.dtype), settings_alone(terms.config, epochs=terms.own_epochs)
            trained = self.site.train_apart(np.array([k]), first, config, part=part, class_weight=terms.class_weight).theta
            return np.asarray(trained[0])
        train = PartTrainer(self.site, terms.epochs, terms.strength, terms.mixture, terms.config, terms.class_weight)
        return train.refit(name, k, theta, part)

    def _compare(self, terms: PersonalTerms, k: int, theta: Array, models: Mapping[str, Array]) -> guard.Comparison:
        """Compare the candidates on rows that they were not fitted to."""
        units = self._units(k, "val" if terms.rows == "validation" else "train")
        if terms.rows == "validation":
            part = self.site.stack.parts["val"]
            return guard.choose({name: self.losses(model, part, k) for name, model in models.items()}, units)
        part = self.site.stack.parts["train"]
        fold = guard.assign_folds(units, seed=terms.config.seed, site=self.site.stack.names[k])
        rows = rows_of(part, k)
        losses = {name: np.full(len(units), np.nan) for name in models}
        mine = part.only(np.isin(np.arange(len(part.y)), np.arange(rows.start, rows.stop)))  # folds of this site's rows alone
        for f in range(guard.FOLDS):
            out = fold == f
            inner, outer = mine.only(~out), mine.only(out)
            for name, model in models.items():
                fitted = self.fit(name, terms, k, theta, inner, model)
                losses[name][out] = self.losses(theta if fitted is None else fitted, outer, k)
        return guard.choose(losses, units)

    def losses(self, theta: Array, part: Part, k: int) -> Array:
        """Compute the loss of each of site k's rows of a part, (n,)."""
        model, rows = self.site.prepared_model(), rows_of(part, k)
        return score_rows(loss_of(model), score(model, theta, part.x[rows]), part.target[rows])

    def _units(self, k: int, split: str) -> Array:
        """Return the patient of each of site k's rows of a split; row numbers without a patient column."""
        stack = self.site.stack
        rows = getattr(stack.rows[k], split)
        if stack.data.patient is not None:
            return np.asarray(stack.data.patient[rows].astype(str))
        return np.arange(len(rows))

    def _spread(self, ask: Ask, members: Array) -> Columns:
        """Answer with each site's gain in likelihood from an intercept of its own, by variance: only sums are needed."""
        model, part = self.site.prepared_model(), self.site.stack.parts["train"]
        common = np.broadcast_to(self.site.in_use(ask, members), (len(members), np.shape(ask.shared["model"])[-1]))
        variances, gains = np.asarray(ask.shared["variances"], float), []
        for k, theta in zip(members.tolist(), common, strict=True):
            rows = rows_of(part, k)
            gains.append(marginal_gain(loss_of(model), score(model, theta, part.x[rows]), part.target[rows], variances))
        return {"sums": np.array(gains)}

    def _harm(self, ask: Ask, members: Array) -> Columns:
        """Answer whether the deployed model is clearly worse, at the level asked for, than the site could do alone."""
        level, seed = float(ask.shared["level"]), int(ask.shared["seed"])
        part, answers = self.site.stack.parts["test"], []
        for k in members.tolist():
            answers.append(self._harm_p_value(part, k, seed) <= level)
        return {"harmed": np.array(answers, np.uint8)}

    def _harm_p_value(self, part: Part, k: int, seed: int) -> float:
        models = [m[k] for m in (self._own, self._majority) if k in m]
        if k not in self.site.personal_models or not models or not part.counts[k]:
            return 1.0
        deployed = self.losses(self.site.personal_models[k], part, k)
        best = min((self.losses(theta, part, k) for theta in models), key=lambda losses: float(losses.mean()))
        return guard.harm_p_value(deployed - best, self._units(k, "test"), seed=seed, site=self.site.stack.names[k])

    def _write(
        self, k: int, choice: str, common: Array, deployed: Array, comparison: guard.Comparison | None
    ) -> None:
        """Write the site's own file."""
        if self.folder is None:
            return
        facts: dict[str, Any] = {"choice": choice}
        if comparison is not None:
            facts |= {"rows": comparison.rows, "losses": dict(comparison.losses)}
            facts["gains"] = {name: list(gain) for name, gain in comparison.gains.items()}
        path = self.folder / self.site.stack.names[k] / FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        save(path, {"deployed": np.asarray(deployed), "common": np.asarray(common)}, facts)

    def arrays(self) -> Mapping[str, Array]:
        kept = {"deployed": self.site.personal_models, "own": self._own, "majority": self._majority}
        return {f"{kind}/{k}": theta for kind, models in kept.items() for k, theta in models.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        kept = {"deployed": self.site.personal_models, "own": self._own, "majority": self._majority}
        for name, theta in arrays.items():
            kind, _, k = name.partition("/")
            kept[kind][int(k)] = np.array(theta)
