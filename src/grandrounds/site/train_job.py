"""Data classes of local training: the settings of a round, the job of a kernel, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from grandrounds.core.arrays import Array

if TYPE_CHECKING:
    from grandrounds.data.outcome import Outcome
    from grandrounds.models import Model
    from grandrounds.protocol.messages import Payload, Value
    from grandrounds.site.anchor import ReferenceDraws, SharedReference
    from grandrounds.site.contrast import Contrast
    from grandrounds.site.dp_sgd import Noise
    from grandrounds.site.objective import BoundObjective
    from grandrounds.site.stack import Part


@dataclass(frozen=True)
class TrainConfig:
    """Settings of local training in one round, sent as plain numbers and strings in the Ask."""

    seed: int
    round: int
    lr: float
    epochs: int = 1
    steps: int = 0
    continue_epoch: bool = False  # batches go on where those of the round before ended
    batch: int = 32
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    l2: float = 0.0
    proximal: float = 0.0
    contrast: float = 0.0  # MOON's mu
    contrast_temperature: float = 0.5
    anchor: float = 0.0  # weight of the reference rows' cross-entropy to the start
    anchor_rows: str = ""  # name of the anchor's reference rows; "": the default or only ones
    permuted: bool = False  # one feature of each anchor row is permuted
    alignment: float = 0.0  # weight of the distance between sketches
    keep_optimizer: bool = False
    augment: str = "none"
    clip: float = 0.0  # DP-SGD: largest norm of one row's gradient
    noise: float = 0.0  # DP-SGD: deviation of the noise in units of clip
    rate: float = 0.0  # DP-SGD: probability that a row joins a step; 0: no DP-SGD
    fewest: int = 0  # DP-SGD: a site with fewer rows refuses
    gradient_noise: float = 0.0  # deviation of noise on every entry of a step's gradient; no privacy guarantee
    longest: float = 0.0  # largest norm of the update that a site answers with; 0: any

    def to_values(self) -> dict[str, Value]:
        """Return the settings as an Ask carries them."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: Payload) -> TrainConfig:
        """Read the settings of an Ask; those that it does not name keep their defaults."""
        kinds: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
        return cls(**{f.name: kinds[str(f.type)](values[f.name]) for f in fields(cls) if f.name in values})


@dataclass(frozen=True)
class TrainJob:
    """Local training of m member sites in one round, the same for every kernel.

    A kernel ignores fields that its models do not use.

    Attributes:
        model: The model, which determines the kernel.
        part: Training rows of all sites of the stack.
        members: Site numbers, (m,).
        start: Models to start from: (P,) for all sites, or one each, (m, P). Trees have a list of vectors.
        config: Settings of the round.
        names: Names of all sites of the stack, which seed their random streams.
        class_weight: Weight of each class in the loss, (C,).
        slots: Optimizer state that the members kept, each (m, P).
        clock: Optimizer steps that the members took so far, (m, 1).
        correction: Added to every gradient, (m, P) (SCAFFOLD, FedDyn).
        frozen: Entries of the model that keep their start, for all members: a layer that is not trained (FedRep).
        previous: The members' previous local models, (m, P) (MOON).
        contrast: MOON's contrastive loss, which the kernel computes from `previous`.
        reference: Reference rows for anchors and for the alignment of sketches.
        reference_draws: The reference rows that anchor each step, which the kernel draws.
        consensus: The consortium's sketch that sites are aligned to, (F,); None: the start's own.
        noise: Times config.gradient_noise added to every gradient (FL-XAI 4.7). Nothing is clipped, so it gives no
            privacy guarantee. It is drawn on the CPU: a GPU then trains one site after another.
        objective: A local objective by import path, if it has hooks that steps call (`train.objective`).
        inputs: Inputs that replace part.x in this round (augmented images).
        penalty: Added to logits, (m, C), to exclude the classes of other tasks.
        seeds: One seed for each member, for networks that draw random numbers.
        workers: Processes that share the sites of a CPU; 0: as many as cores are free.
        validation: Validation rows of all sites of the stack, for models of whole columns that stop early.
        event: Number of the event's class, if there are two classes.
        outcome: The outcome of tasks other than classification.
    """

    model: Model
    part: Part
    members: Array
    start: Any
    config: TrainConfig
    names: tuple[str, ...] = ()
    class_weight: Array | None = None
    slots: tuple[Array, ...] = ()
    clock: Array | None = None
    correction: Array | None = None
    frozen: Array | None = None
    previous: Array | None = None
    contrast: Contrast | None = None
    reference: SharedReference | None = None
    reference_draws: ReferenceDraws | None = None
    consensus: Array | None = None
    noise: Noise | None = None
    objective: BoundObjective | None = None
    inputs: Array | None = None
    penalty: Array | None = None
    seeds: tuple[int, ...] = ()
    workers: int = 1
    validation: Part | None = None
    event: int = 1
    outcome: Outcome | None = None


@dataclass(frozen=True)
class TrainResult:
    """The local models of m sites, and the stored optimizer state."""

    theta: Array | list[Array]  # (m, P), or m forests of different sizes
    steps: Array  # (m,)
    slots: tuple[Array, ...]  # each (m, P)
    clock: Array  # (m, 1) optimizer steps taken so far
    reasons: Array | None = None  # (m, F) sketches of the local models, where they are aligned
