"""Every setting of a plan with its type: `plan.method.rounds` is an int.

Written by `python tools/plan_types.py --write` from the sections of an experiment; do not edit it. The classes hold no values of
their own: a plan is read as it was written (`core/plan.py`), and needs no pydantic.
"""

from __future__ import annotations

from typing import Any

from grandrounds.core.plan import Settings


class ShiftSettings(Settings):
    """Each site takes its pictures with its own protocol: gamma, brightness, contrast, blur, JPEG."""

    strength: float
    clean: list[str]


class ShortcutSettings(Settings):
    """A corner patch tied to the label, for studies of models that are right for the wrong reason."""

    p: float
    classes: list[str]


class DataSettings(Settings):
    """Where the rows come from and what the columns mean."""

    name: str | None
    table: str | None
    query: str | None
    label: str | None
    event: str | None
    positive: str | None
    site: str | None
    patient: str | None
    time: str | None
    id: str | None
    drop: list[str]
    kinds: Settings
    missing: list[str]
    decimal: str
    text_encoding: str
    separator: str
    censored: str
    dates: str
    drop_unlabelled: bool
    encoding: str
    ranges: Settings
    levels: Settings
    scale: str
    impute: str
    clip: float
    max_categories: int
    sha256: str | None
    pictures: str | None
    file: str
    size: int | None
    masks: str | None
    shift: ShiftSettings
    shortcut: ShortcutSettings


class SplitSettings(Settings):
    """Which rows belong to which site, and what they are used for there."""

    partition: str
    sites: int
    alpha: float
    min_rows: int
    val: float
    test: float
    by: str
    seed: int | None
    scheme: str
    fold: int
    folds: int
    holdout: list[str]
    official: bool


class ReferenceSetSettings(Settings):
    """Rows set aside for the consortium: in no site's training, validation or test rows."""

    rows: int
    labelled: bool
    sent: bool
    source: str | None


class TaskSettings(Settings):
    """A task of some sites besides the main one: the same rows, their labels grouped into other classes."""

    classes: Settings
    sites: list[str]


class ModelSettings(Settings):
    """What is trained."""

    name: str
    hidden: list[int]
    trees: int
    depth: int
    norm: str
    stem: str
    statistics: str
    weights: str | None
    options: Settings


class SelectSettings(Settings):
    """Who takes part in a round; `select = "random"` is short for its rule."""

    rule: str
    fraction: float
    candidates: float


class WeighSettings(Settings):
    """How answers are weighed; `weigh = "uniform"` is short for its rule. All but the rule is for 'explanations'."""

    rule: str
    explanation_weight: float | None
    lambdas: Settings
    form: str
    sharpness: float | None
    tolerance: float
    memory: float
    least_share: float | None
    own_halves: bool | None
    tau: float
    beta: float
    gamma: float
    floor: float
    every: int
    between_rounds: str


class CohortsSettings(Settings):
    """Groups of sites whose updates are alike (k-means): reasons are compared within; `cohorts = 2` is short for count."""

    count: int | str
    most: int
    models: str
    consensus: str
    weight: str
    start: int


class RobustSettings(Settings):
    """The rule against outlying answers; `robust = "krum"` is short for its rule."""

    rule: str
    attackers: int
    keep: int
    trim: float
    norm: float
    guard: float


class ServerStepSettings(Settings):
    """The server's own optimiser: fedopt, fedadam, fedyogi, fedadagrad, fedrmsprop, fedavgm, and fedbuff's lr."""

    rule: str
    lr: float | None
    momentum: float
    beta1: float | None
    beta2: float
    tau: float
    v0: float | None
    bias_correction: bool


class StalenessSettings(Settings):
    """How much less a late answer counts in asynchronous methods; `staleness = "hinge"` is short for its rule."""

    rule: str
    a: float
    b: int


class VeilSettings(Settings):
    """Method 'veil': sites propose features or sums of clipped scores, never a model."""

    selection: str
    k: int
    votes: str
    weight: str
    prior: float | None
    claimed_epsilon: float | None
    census_share: float
    quorum: float
    step: float
    decay: bool
    value: float | None
    features: int
    stages: int | None
    norm: float | None
    lr: float
    selecting: float
    outcome: float
    l2: float
    percentiles: float


class TrustSettings(Settings):
    """Method 'fedxchain': what trust is made of, and how it becomes a weight; `trust = "robust"` is short for its preset."""

    preset: str
    alpha: float | None
    beta: float | None
    gamma: float | None
    tau: float
    kappa: float
    form: str | None
    signed: bool | None
    accuracy_at: str
    explained: str
    explainer: str
    rows: int
    top: int
    window: int
    alarm: float
    rewards: bool
    reasons: bool


class XFedSettings(Settings):
    """Method 'xfed': sites that send a model are selected by accuracy and explanations on scoring images."""

    keep: float
    xai_share: float
    score: str
    measure: str
    form: str
    top: float
    grid: int
    until: int
    weights: str
    score_at: str
    tolerance: float
    steps: int
    samples: int
    sigma: float


class MethodSettings(Settings):
    """The federated algorithm, put together from parts."""

    name: str
    preset: str
    rounds: int
    select: SelectSettings
    weigh: WeighSettings
    cohorts: CohortsSettings
    robust: RobustSettings
    stability: str
    reference: str | None
    mu: float
    moon_mu: float
    temperature: float
    anchor: float | None
    anchor_rows: str | None
    anchor_gain: float
    alignment: float
    server: ServerStepSettings
    clusters: int
    mixing: float
    buffer: int
    staleness: StalenessSettings
    veil: VeilSettings
    trust: TrustSettings
    xfed: XFedSettings
    options: Settings


class TrainSettings(Settings):
    """What a site does in one round."""

    epochs: int
    steps: int
    batch: int
    lr: float
    optimizer: str
    momentum: float
    weight_decay: float
    l2: float
    schedule: str
    warmup: int
    decay: float
    class_weights: str | Settings
    keep_optimizer: bool
    augment: str
    noise: float
    finetune: int
    early_stop: int


class ExplainSettings(Settings):
    """How sites explain their models, and how steady those reasons are: explanations.json."""

    sketch: str
    every: int
    at: str
    reference: str | None
    score: str
    repeats: int
    rows: int
    steps: int
    tiles: int
    k: int
    top: int
    noise: float
    maps: list[str]
    maps_at: list[int]
    maps_rows: int


class PrivacySettings(Settings):
    """What is formally promised to patients."""

    mechanism: str
    epsilon: float | None
    delta: float
    clip: float
    noise: float | None
    sampling_rate: float
    min_rows: int
    unit: str
    sites: int
    public_counts: bool
    secure: bool
    secure_range: float
    largest_weight: float
    on_halt: str


class FaultSettings(Settings):
    """Faults to inject, for tests of robustness."""

    drop: float
    nan: list[str]
    slow: Settings


class EngineSettings(Settings):
    """How it is run."""

    name: str
    wire: bool
    kernel: str
    device: str
    precision: str
    chunk: int
    workers: int
    min_sites: int
    deadline: float | None
    speed_spread: float
    absences: Settings
    faults: FaultSettings


class EvaluationSettings(Settings):
    """How the model is judged after each round."""

    every: int
    threshold: str
    specificity: float
    calibrate: str
    subgroup: str | None
    rationale_set: str | None
    local_models: str
    metrics: list[str]


class AttackSettings(Settings):
    """A site that attacks, to see how the method stands it: `[[attacks]]`, one for each kind or group of sites."""

    kind: str
    sites: list[str]
    count: int
    share: float
    strength: float | None
    target: str | None
    start_round: int
    validation: bool
    reference: bool
    lies: bool


class Plan(Settings):
    """Data, split, reference sets, model, method, training, explanations, privacy, engine, evaluation, seed."""

    name: str
    seed: int
    data: DataSettings
    split: SplitSettings
    reference: Settings
    tasks: Settings
    model: ModelSettings
    method: MethodSettings
    train: TrainSettings
    explain: ExplainSettings
    privacy: PrivacySettings
    engine: EngineSettings
    evaluation: EvaluationSettings
    attacks: list[dict[str, Any]]
    code: Settings
