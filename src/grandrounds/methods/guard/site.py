"""The sites' half of the guard and of personal parts: fit the candidates, let the guard choose, keep the deployed model.

Files of a hospital are in its own folder: personal.safetensors (the deployed model and the comparison behind it) and the same
facts for people, personal.json. Of these only the choice's name and a yes or no leave, and under a privacy budget neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, save, write_atomic
from grandrounds.core.capability import collect, load
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.methods.guard.candidates import (
    CHOICES,
    COMMON,
    HEAD,
    INTERCEPT,
    LINES,
    MAJORITY,
    OWN,
    RECALIBRATION,
    describe_choice,
    fit_line,
    fit_linear,
    fit_majority,
    is_linear,
    is_shiftable,
    loss_of,
    patients_of,
    refuse_unknown_part,
    rows_at,
    rows_of,
    score_rows,
    spread_sums,
    trained_parts,
    undo_class_weights,
    unweighted_shift,
)
from grandrounds.methods.guard.choice import (
    FOLDS,
    LEVEL,
    Comparison,
    assign_folds,
    choose,
    harm_p_value,
    least_of_each_class,
)
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import ERROR, PERSONAL, PERSONAL_HARM, PERSONAL_SPREAD
from grandrounds.site.evaluate import score
from grandrounds.site.plugin import Columns, Site, SitePlugin, Task
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig

FILE, READABLE = "personal.safetensors", "personal.json"

FAILED = "fit-failed"
"""Code of a site that could not fit its personal model."""

_SPLITS = {"train": "train", "validation": "val"}


def digest_model(theta: Array) -> str:
    """Return the SHA-256 of a model's parameters, by which a personal model is known to be made from it."""
    with np.errstate(over="ignore"):  # the last edge of a column's bins is the largest number
        return hashlib.sha256(np.ascontiguousarray(theta, np.float32).tobytes()).hexdigest()


def settings_alone(config: TrainConfig, *, epochs: int) -> TrainConfig:
    """Return settings of training beside the run's own: the same steps and penalties, without terms of methods and mechanisms.

    Args:
        config: Settings of the run's own training.
        epochs: Epochs, which replace those of the run.
    """
    without = {"proximal": 0.0, "contrast": 0.0, "anchor": 0.0, "alignment": 0.0, "longest": 0.0}
    private = {"clip": 0.0, "noise": 0.0, "rate": 0.0, "fewest": 0, "gradient_noise": 0.0}
    more: dict[str, Any] = {**without, **private}
    return replace(config, epochs=epochs, steps=0, keep_optimizer=False, **more)


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
        refuse_unknown_part(part)
        _split(ask)
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
            _class_weight(ask),
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
        self._harm_by_site: dict[int, Array] = {}  # (2,) p-value of harm, test patients of the rarer class

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {
            PERSONAL: self._personalize,
            PERSONAL_SPREAD: self._spread,
            PERSONAL_HARM: self._harm,
            **{task: partial(self._answer_stage, stage.answer) for task, stage in collect("stages").items()},
        }

    def _answer_stage(self, path: str, ask: Ask, members: Array) -> Columns:
        answer: Callable[[Site, Path | None, Ask, Array], Columns] = load(path)
        return answer(self.site, self.folder, ask, members)

    def _personalize(self, ask: Ask, members: Array) -> Columns:
        """Fit the candidates at each site, choose, and keep the model that is deployed there."""
        terms = PersonalTerms.read(ask)
        models_in_use = self.site.received(ask, members) if terms.part == HEAD else self.site.in_use(ask, members)
        common = np.broadcast_to(models_in_use, (len(members), np.shape(ask.shared["model"])[-1]))
        choices, errors = [], []
        for k, theta in zip(members.tolist(), common, strict=True):
            try:
                sent = np.asarray(ask.for_site(self.site.stack.names[k])["model"])
                choice, error = self._personalize_site(terms, k, theta, digest_model(sent)), ""
            except (BadInput, np.linalg.LinAlgError, FloatingPointError):
                self.site.personal_models.pop(k, None)
                self.site.without_model.discard(k)
                choice, error = COMMON, FAILED
            choices.append(CHOICES.index(choice))
            errors.append(error)
        return {"fitted": np.ones(len(members), np.uint8), "choice": np.array(choices, np.int64), ERROR: errors}

    def _personalize_site(self, terms: PersonalTerms, k: int, theta: Array, sent: str) -> str:
        """Fit the candidates of site k, choose, test for harm and write the site's files; return the choice.

        `sent`: digest of the common model as the server sent it, without entries that the site keeps local.
        """
        models: dict[str, Array] = {}
        for name in terms.candidates:
            fitted = self._fit_all(name, terms, k, theta)
            if fitted is not None and np.isfinite(fitted).all():
                models[name] = fitted
        comparison = self._compare(terms, k, theta, models) if terms.guard else None
        choice = terms.part if comparison is None else comparison.choice
        choice = choice if choice in models else COMMON
        deployed = models.get(choice, theta)
        self.site.personal_models[k] = deployed
        (self.site.without_model.add if choice == MAJORITY else self.site.without_model.discard)(k)
        facts = {**self._describe(terms, k, choice, comparison), "common_sha256": sent}
        facts["shift"] = self._shift(k, theta, deployed)
        if terms.guard:
            facts["test"] = self._test_harm(terms, k, {**models, "deployed": deployed})
        self._write(k, facts, {"deployed": deployed, "common": theta})
        return choice

    def _fit_all(self, name: str, terms: PersonalTerms, k: int, theta: Array) -> Array | None:
        """Fit one candidate to all rows of site k; one that was trained in the rounds is there already.

        A line of a model that memorises its training rows is fitted to validation rows.
        """
        trained = self._fit_part(name, terms, k, theta, None) if name in trained_parts() else None
        split = _SPLITS[terms.rows] if name in LINES else "train"
        if trained is None:
            return self.fit(name, terms, k, theta, self.site.stack.parts[split])
        return self._unweighted(terms, trained)

    def fit(
        self, name: str, terms: PersonalTerms, k: int, theta: Array, part: Part, start: Array | None = None
    ) -> Array | None:
        """Fit one candidate to site k's rows of a part, which may be a fold of its rows.

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
            return self._unweighted(terms, theta)
        if not len(target):
            return None
        if name == MAJORITY:
            return fit_majority(model, theta, loss, target)
        if name in LINES:
            if not is_shiftable(model):
                return None
            unweighted = self._unweighted(terms, theta)
            scores, slope = self._scores(unweighted, part, k), name == RECALIBRATION
            return fit_line(loss, scores, target, variance=terms.variance, slope=slope).apply(model, unweighted)
        if name == OWN and is_linear(model):
            return fit_linear(loss, x, target, start=start).astype(theta.dtype)
        if name == OWN and model.kernel == "steps":  # a private additive model is made from noisy counts of all sites
            return None
        if name == OWN:
            first, config = model.init(terms.config.seed, theta.dtype), settings_alone(terms.config, epochs=terms.own_epochs)
            trained = self.site.train_apart(np.array([k]), first, config, part=part, class_weight=terms.class_weight).theta
            return self._unweighted(terms, np.asarray(trained[0]))
        fitted = self._fit_part(name, terms, k, theta, part)
        return None if fitted is None else self._unweighted(terms, fitted)

    def _fit_part(self, name: str, terms: PersonalTerms, k: int, theta: Array, part: Part | None) -> Array | None:
        """Fit a part that sites train to rows of a part; None: return the model that site k trained in the rounds, if any."""
        fit: Callable[[Site, PersonalTerms, int, Array, Part | None], Array | None] = load(trained_parts()[name].fit)
        return fit(self.site, terms, k, theta, part)

    def _unweighted(self, terms: PersonalTerms, theta: Array) -> Array:
        return undo_class_weights(self.site.prepared_model(), theta, terms.class_weight)

    def _compare(self, terms: PersonalTerms, k: int, theta: Array, models: Mapping[str, Array]) -> Comparison:
        """Compare the candidates on rows that they were not fitted to.

        On training rows every candidate is fitted again without each fold. On validation rows only the lines are, because the
        other candidates were fitted to training rows.
        """
        split = _SPLITS[terms.rows]
        part, units = self.site.stack.parts[split], patients_of(self.site.stack, k, (split,))
        fold = assign_folds(units, seed=terms.config.seed, site=self.site.stack.names[k])
        losses = {name: np.full(len(units), np.nan) for name in models}
        for name in [n for n in models if n == COMMON or (split == "val" and n not in LINES)]:
            losses[name] = self.losses(models[name], part, k)
        refitted = [name for name in models if np.isnan(losses[name]).any()]
        for f in range(FOLDS if refitted else 0):
            out = fold == f
            inner, outer = rows_at(part, k, ~out), rows_at(part, k, out)
            for name in refitted if len(outer.y) else ():
                fitted = self.fit(name, terms, k, theta, inner, models[name])
                losses[name][out] = self.losses(theta if fitted is None else fitted, outer, k)
        return choose(losses, units, rarer=self._count_classes(part, k, units))

    def losses(self, theta: Array, part: Part, k: int) -> Array:
        """Compute the loss of each of site k's rows of a part, (n,); all count alike, whatever weights training had."""
        model, rows = self.site.prepared_model(), rows_of(part, k)
        return score_rows(loss_of(model), self._scores(theta, part, k), part.target[rows])

    def _scores(self, theta: Array, part: Part, k: int) -> Array:
        """Compute the scores of site k's rows, (n, C), within the classes of its task."""
        scores = score(self.site.prepared_model(), theta, part.x[rows_of(part, k)])
        penalty = self.site.stack.penalty
        return scores if penalty is None else scores + penalty[k]

    def _spread(self, ask: Ask, members: Array) -> Columns:
        """Answer with the likelihood of each site's rows by the variance of intercepts: only sums over sites are needed."""
        model, part = self.site.prepared_model(), self.site.stack.parts[_split(ask)]
        common = np.broadcast_to(self.site.in_use(ask, members), (len(members), np.shape(ask.shared["model"])[-1]))
        variances, sums = np.asarray(ask.shared["variances"], float), []
        shift = unweighted_shift(_class_weight(ask), model.outputs)
        for k, theta in zip(members.tolist(), common, strict=True):
            target = part.target[rows_of(part, k)]
            if not is_shiftable(model):
                target = target[:0]
            scores = self._scores(theta, part, k)[: len(target)] + shift
            losses, widths = spread_sums(loss_of(model), scores, target, variances)
            sums.append(np.concatenate([losses, widths, [len(target)]]))
        return {"sums": np.array(sums)}

    def _harm(self, ask: Ask, members: Array) -> Columns:
        """Answer whether the deployed model is clearly worse, at the level asked for, than the site could do alone.

        NaN where the test rows cannot show it.
        """
        level = float(ask.shared["level"])
        if not 0 < level <= LEVEL:
            raise BadInput(f"a site answers about harm at levels up to {LEVEL}, not at {level:g}", code="bad-level")
        nothing = np.array([np.nan, 0.0])
        p_values, rarer = np.stack([self._harm_by_site.get(k, nothing) for k in members.tolist()]).T
        testable = ~np.isnan(p_values) & (rarer >= least_of_each_class(level))
        return {"harmed": np.where(testable, p_values <= level, np.nan)}

    def _test_harm(self, terms: PersonalTerms, k: int, models: Mapping[str, Array]) -> dict[str, Any]:
        """Compare the deployed model on test rows with the site's own model and its majority class; keep the p-value."""
        part, units = self.site.stack.parts["test"], patients_of(self.site.stack, k, ("test",))
        losses = {name: self.losses(theta, part, k) for name, theta in models.items()}
        others = [losses["deployed"] - losses[name] for name in (OWN, MAJORITY) if name in losses]
        p_value, counted = None, self._count_classes(part, k, units)
        rarer = len(np.unique(units)) if counted is None else counted
        if others and rarer:
            p_value = harm_p_value(others, units, seed=terms.config.seed, site=self.site.stack.names[k])
        self._harm_by_site[k] = np.array([np.nan if p_value is None else p_value, rarer])
        return {
            "rows": len(units),
            "patients": len(np.unique(units)),
            "losses": {name: float(v.mean()) for name, v in losses.items() if len(v) and np.isfinite(v).all()},
            "p_value": p_value,
        }

    def _count_classes(self, part: Part, k: int, units: Array) -> int | None:
        """Count site k's patients of the rarer of two classes in a part; None for other outcomes.

        Without a patient of one class, rows cannot show harm: a rare event would look impossible.
        """
        if self.site.stack.outcome is not None or self.site.prepared_model().outputs > 1:
            return None
        y = part.y[rows_of(part, k)]
        return min(len(np.unique(units[y == c])) for c in (0, 1))

    def _shift(self, k: int, theta: Array, deployed: Array) -> float | None:
        """Return the mean of the deployed model's scores less those of the common one on training rows, for one output."""
        part = self.site.stack.parts["train"]
        if self.site.prepared_model().outputs > 1 or not part.counts[k]:
            return None
        return float((self._scores(deployed, part, k) - self._scores(theta, part, k)).mean())

    def _describe(
        self, terms: PersonalTerms, k: int, choice: str, comparison: Comparison | None
    ) -> dict[str, Any]:
        """Return the facts of the site's files about its choice."""
        facts: dict[str, Any] = {"site": self.site.stack.names[k], "choice": choice, "part": terms.part, "guard": terms.guard}
        facts["spread"] = float(np.sqrt(terms.variance))
        if comparison is not None:
            facts |= {"compared_on": terms.rows, "rows": comparison.rows, "patients": comparison.patients}
            facts["losses"] = {name: value for name, value in comparison.losses.items() if np.isfinite(value)}
            facts["gains"] = {name: list(gain) for name, gain in comparison.gains.items()}
        return facts

    def _write(self, k: int, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Write the site's own files, where it has a folder."""
        if self.folder is None:
            return
        folder = self.folder / self.site.stack.names[k]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        save(folder / FILE, {name: np.asarray(a) for name, a in arrays.items()}, facts)
        outcome = self.site.stack.outcome
        task = CLASSIFICATION if outcome is None else outcome.task
        text = json.dumps({"deployed": f"This site deploys {describe_choice(str(facts['choice']), task)}.", **facts}, indent=1)
        write_atomic(folder / READABLE, f"{text}\n".encode(), durable=False)

    def arrays(self) -> Mapping[str, Array]:
        kept = {"deployed": self.site.personal_models, "harm": self._harm_by_site}
        by_name = {f"{kind}/{k}": values for kind, by_site in kept.items() for k, values in by_site.items()}
        return {**by_name, **{f"without_model/{k}": np.ones(1) for k in self.site.without_model}}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        kept = {"deployed": self.site.personal_models, "harm": self._harm_by_site}
        for name, values in arrays.items():
            kind, _, k = name.partition("/")
            if kind == "without_model":
                self.site.without_model.add(int(k))
            else:
                kept[kind][int(k)] = np.array(values)


def _split(ask: Ask) -> str:
    """Return the split on which an Ask has the guard compare."""
    rows = str(ask.shared["rows"])
    if rows not in _SPLITS:
        raise BadInput(f"the guard compares on rows '{rows[:40]}', which are unknown here", code="unknown-part")
    return _SPLITS[rows]


def _class_weight(ask: Ask) -> Array | None:
    """Return the weight of each class in the loss of training, (C,); None without."""
    weights = ask.shared.get("class_weight")
    return None if weights is None else np.asarray(weights, np.float32)

