"""Local objectives by import path (`train.objective = "module:Class"`): a regulariser, a loss or a training loop.

A local objective is a subclass of `LocalObjective` that overrides one or more hooks. Every hook works on both kernels: the NumPy
kernel calls it with arrays, the torch kernel with tensors. A hook sees model parameters or logits. Only `fit`, the training
loop, takes gradients on the site's rows.

Privacy: an objective adds no report, so nothing more leaves a site. DP-SGD accepts an objective that works on parameters alone,
because its terms are added after the clipped and noised gradient. It refuses another loss or another loop: those could depend on
several rows at once, which per-row clipping does not bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from grandrounds.core import plugins
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.site.plugin import Columns, Site, SitePlugin, TrainRequest
from grandrounds.site.train_job import TrainJob, TrainResult

if TYPE_CHECKING:
    pass

KEY = "train.objective"
Option = bool | int | float | str
State = Mapping[str, Any]
Batch = tuple[Array, Array]
"""Row numbers of one step, and the weight of each row."""


@dataclass(frozen=True)
class LocalFit:
    """One site's training in one round, as a training loop (`LocalObjective.fit`) receives it.

    Attributes:
        start: The model that the site was sent, (P,).
        batches: The batches of every step, in order.
        gradient: Compute the gradient (P,) at a model (P,) on a batch. It includes the loss, train.l2, the proximal term, the
            correction and the penalty.
        lr: Learning rate of the round.
        state: The site's vectors from the round before.
        rng: Random numbers of this site and round.
    """

    start: Array
    batches: Sequence[Batch]
    gradient: Callable[[Array, Batch], Array]
    lr: float
    state: State
    rng: np.random.Generator


class LocalObjective:
    """Base class of local objectives; this one trains with the cross-entropy loss. Override the hooks that you need.

    Hooks must be pure: they may run in another process, and an objective is built anew for every Ask. Vectors that a site keeps
    from round to round are declared in `state` and returned by `update_state`.
    """

    defaults: ClassVar[Mapping[str, Option]] = {}
    """Options and their defaults; `train.objective_options` sets them."""

    state: ClassVar[tuple[str, ...]] = ()
    """Names of vectors (P,) that each site keeps from round to round. They start at zero and never leave the site."""

    def __init__(self, **options: Option) -> None:
        unknown = next((name for name in options if name not in self.defaults), None)
        if unknown is not None:
            hint = nearest(unknown, self.defaults) if self.defaults else "it has none"
            raise BadInput(
                f"{type(self).__name__} has no option '{unknown}' (train.objective_options); {hint}", code="unknown-option"
            )
        self.options: dict[str, Any] = {**self.defaults, **options}

    def correction(self, state: State) -> Array | None:
        """Return a constant (m, P) that is added to every gradient of the round; None for none.

        Args:
            state: The sites' vectors, (m, P) each.
        """
        return None

    def penalty_gradient(self, theta: Any, start: Any, state: State) -> Any:
        """Return the gradient of a regulariser at the local models.

        Args:
            theta: Local models, (..., P): a NumPy array, or a torch tensor. Use operators and methods that both have.
            start: The models that the sites were sent, of the same shape.
            state: The sites' vectors, each of the same shape.

        Returns:
            The gradient, of the same shape.
        """
        raise NotImplementedError

    def loss_gradient(self, logits: Any, target: Any, xp: Any) -> Any:
        """Return the derivative of each row's loss with respect to its logits. It replaces the cross-entropy loss.

        Args:
            logits: Scores before the link, (..., C); one column for two classes.
            target: Target probabilities, of the same shape.
            xp: The module `numpy` or `torch`, for functions such as `xp.exp`.

        Returns:
            The derivative, of the same shape. The derivative of cross-entropy is the probabilities less the target.
        """
        raise NotImplementedError

    def fit(self, work: LocalFit) -> Array:
        """Train one site. It replaces the local optimizer.

        Args:
            work: The start, the batches and the gradient of this site and round.

        Returns:
            The trained model, (P,).
        """
        raise NotImplementedError

    def update_state(self, state: State, theta: Array, start: Array) -> Mapping[str, Array]:
        """Return the vectors (m, P) for the next round.

        Args:
            state: The vectors of this round, (m, P) each.
            theta: The trained models, (m, P).
            start: The models that the sites were sent, of the same shape.
        """
        return {}


@dataclass(frozen=True)
class BoundObjective:
    """An objective with the vectors of the member sites, as a kernel uses it.

    Attributes:
        objective: The objective.
        name: Its import path, for errors.
        state: The members' vectors, (m, P) each.
    """

    objective: LocalObjective
    name: str
    state: Mapping[str, Array]

    @property
    def has_penalty(self) -> bool:
        return overrides(self.objective, "penalty_gradient")

    @property
    def has_loss(self) -> bool:
        return overrides(self.objective, "loss_gradient")

    @property
    def has_fit(self) -> bool:
        return overrides(self.objective, "fit")

    def penalty_gradient(self, theta: Any, start: Any, state: State) -> Any:
        """Call the hook and check the shape of its result."""
        return self.checked("penalty_gradient", self.objective.penalty_gradient(theta, start, state), theta)

    def loss_gradient(self, logits: Any, target: Any, xp: Any) -> Any:
        """Call the hook and check the shape of its result."""
        return self.checked("loss_gradient", self.objective.loss_gradient(logits, target, xp), logits)

    def fit(self, work: LocalFit) -> Array:
        """Call the hook and check the shape of its result."""
        return np.asarray(self.checked("fit", self.objective.fit(work), work.start))

    def checked(self, hook: str, result: Any, like: Any) -> Any:
        """Return a hook's result; raise BadInput if its shape is not that of `like`."""
        if getattr(result, "shape", None) != like.shape:
            got = f"shape {tuple(result.shape)}" if hasattr(result, "shape") else f"type {type(result).__name__}"
            raise BadInput(
                f"{KEY} is '{self.name}': {hook} returned a value of {got}; return one of shape {tuple(like.shape)}",
                code="bad-own-code",
            )
        return result


def overrides(objective: LocalObjective | type[LocalObjective], hook: str) -> bool:
    """Check that an objective has a hook of its own."""
    kind = objective if isinstance(objective, type) else type(objective)
    return getattr(kind, hook) is not getattr(LocalObjective, hook)


def refused_by_dp_sgd(objective: LocalObjective | type[LocalObjective]) -> str:
    """Return the hook because of which DP-SGD refuses an objective; "" if it is accepted."""
    return next((hook for hook in ("loss_gradient", "fit") if overrides(objective, hook)), "")


def build_objective(name: str, options: Mapping[str, Any]) -> LocalObjective:
    """Import a local objective and build it with its options.

    Args:
        name: Its import path; this process must be allowed to import it (`core.plugins`).
        options: Values of train.objective_options.

    Returns:
        The objective.

    Raises:
        BadInput: It may not or cannot be imported, is no LocalObjective, or has no such option.
    """
    kind = plugins.resolve(name, key=KEY)
    if not (isinstance(kind, type) and issubclass(kind, LocalObjective)):
        raise BadInput(
            f"{KEY} is '{name}', which is not a subclass of grandrounds.site.objective.LocalObjective",
            code="wrong-base-class",
        )
    built: LocalObjective = plugins.call(name, key=KEY, **options)
    return built


class ObjectivePlugin(SitePlugin):
    """Site half of `train.objective`: builds the objective that an Ask names, and keeps its vectors at the site.

    Args:
        site: The host.
        allow: Called with an import path before it is imported; raises BadInput if this site does not allow it.
    """

    def __init__(self, site: Site, allow: Callable[[str], None]) -> None:
        super().__init__(site)
        self._allow = allow

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        bound = self._bind(request)
        if bound is None:
            return job
        hook = refused_by_dp_sgd(bound.objective)
        if request.config.rate and hook:
            raise BadInput(
                f"{KEY} is '{bound.name}', whose {hook} may mix rows; DP-SGD clips the gradient of each row: "
                "override penalty_gradient or correction only, or set privacy.mechanism = 'none'",
                code="unsupported-with-dp",
            )
        correction = bound.objective.correction(bound.state)
        if correction is not None:
            shape = (len(request.members), request.start.shape[-1])
            correction = bound.checked("correction", correction, np.empty(shape))
            job = replace(job, correction=correction if job.correction is None else job.correction + correction)
        return replace(job, objective=bound if bound.has_penalty or bound.has_loss or bound.has_fit else None)

    def on_trained(self, request: TrainRequest, result: TrainResult) -> Columns:
        bound = self._bind(request)
        if bound is None or not bound.state:
            return {}
        theta = np.asarray(result.theta)
        fresh = dict(bound.objective.update_state(bound.state, theta, request.start))
        missing = next((n for n in bound.objective.state if n not in fresh), None)
        if missing is not None or len(fresh) != len(bound.objective.state):
            raise BadInput(
                f"{KEY} is '{bound.name}': update_state returned {sorted(fresh)}; return all of {list(bound.objective.state)}",
                code="bad-own-code",
            )
        values = {
            f"objective.{n}": bound.checked("update_state", v, theta).astype(theta.dtype, copy=False) for n, v in fresh.items()
        }
        self.site.states.stage(request.members, request.config.round, values)
        return {}

    def _bind(self, request: TrainRequest) -> BoundObjective | None:
        """Build the objective of an Ask with the members' committed vectors; None if the Ask names none."""
        shared = request.ask.shared
        name = str(shared.get("objective", ""))
        if not name:
            return None
        self._allow(name)
        objective = build_objective(name, json.loads(str(shared.get("objective_options", "{}"))))
        zeros = np.zeros((len(request.members), request.start.shape[-1]), request.start.dtype)
        stored = {n: self.site.states.read(f"objective.{n}", request.members) for n in objective.state}
        return BoundObjective(objective, name, {n: zeros if v is None else v for n, v in stored.items()})
