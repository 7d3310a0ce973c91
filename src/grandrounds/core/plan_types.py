"""Every setting of a plan with its type: `plan.method.rounds` is an int.

Written by `python tools/plan_types.py --write` from the sections of an experiment; do not edit it. The classes hold no values of
their own: a plan is read as it was written (`core/plan.py`), and needs no pydantic.
"""

from __future__ import annotations

from typing import Any

from grandrounds.core.plan import Settings


class ScanSettings(Settings):
    """Reading of DICOM and NIfTI files: window, spacing, slices, and the series that is used."""

    window: str | list[float]
    spacing: list[float]
    slices: str
    plane: str
    fit: str
    volume: int
    series: Settings


class ShiftSettings(Settings):
    """Simulated scanner shift: each site changes gamma, brightness, contrast, blur and JPEG quality of its images."""

    strength: float
    clean: list[str]


class ShortcutSettings(Settings):
    """Corner patch that correlates with the label, for experiments on shortcut learning."""

    p: float
    classes: list[str]


class DataSettings(Settings):
    """Source of the rows, and roles and types of the columns."""

    name: str | None
    table: str | None
    sheet: str | None
    cohort: Settings | None
    query: str | None
    label: str | None
    task: str
    duration: str | None
    event: str | None
    positive: str | None
    site: str | None
    patient: str | None
    time: str | None
    part: str | None
    id: str | None
    drop: list[str]
    features: list[str]
    kinds: Settings
    names: Settings
    units: Settings
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
    coding: str
    complete: bool
    products: list[list[str]]
    max_categories: int
    sha256: str | None
    pictures: str | None
    file: str
    size: int | None
    masks: str | None
    scan: ScanSettings
    shift: ShiftSettings
    shortcut: ShortcutSettings


class SplitSettings(Settings):
    """Assignment of rows to sites, and to training, validation and test."""

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
    without: list[str]
    keep_setup: bool


class ReferenceSetSettings(Settings):
    """Reference rows, set aside for the consortium; no site uses them for training, validation or testing."""

    rows: int
    labelled: bool
    sent: bool
    source: str | None


class TaskSettings(Settings):
    """Additional task of some sites: the same rows, with labels grouped into other classes."""

    classes: Settings
    sites: list[str]


class ModelSettings(Settings):
    """Model architecture."""

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
    """Client selection. `select = "random"` is short for its rule."""

    rule: str
    fraction: float
    candidates: float


class WeighSettings(Settings):
    """Aggregation weights. `weigh = "uniform"` is short for its rule. All other settings are for 'explanations'."""

    rule: str
    explanation_weight: float | None
    lambdas: Settings
    form: str
    sharpness: float | None
    eps: float
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
    """Clusters of sites with similar updates (k-means). Explanations are compared within. `cohorts = 2` is short for count."""

    count: int | str
    most: int
    models: str
    consensus: str
    weight: str
    start: int


class RobustSettings(Settings):
    """Robust aggregation against outlying updates. `robust = "krum"` is short for its rule."""

    rule: str
    attackers: int
    keep: int
    trim: float
    norm: float
    guard: float


class ServerStepSettings(Settings):
    """Server optimizer of fedopt, fedadam, fedyogi, fedadagrad, fedrmsprop and fedavgm; learning rate of fedbuff."""

    rule: str
    lr: float | None
    momentum: float
    beta1: float | None
    beta2: float
    tau: float
    v0: float | None
    bias_correction: bool


class StalenessSettings(Settings):
    """Discount of stale updates in asynchronous methods. `staleness = "hinge"` is short for its rule."""

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
    """Method 'fedxchain': components of trust, and the weight by trust; `trust = "robust"` is short for the preset."""

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


class ExactSettings(Settings):
    """Methods 'glm', 'cox', 'table1' and 'survival': results from sums over hospitals, equal to those of pooled rows."""

    intercept: str
    tau2: float | None
    errors: str
    correction: bool
    ridge: float | str
    penalties: list[float]
    firth: bool
    ties: str
    baseline: str
    intervals: int
    least: int
    horizon: float | None
    group: str | None
    columns: list[str]
    nonnormal: list[str]
    tests: bool
    heterogeneity: bool
    bound: float


class GAMSettings(Settings):
    """Model and method 'gam': an additive model, with smoothness chosen from the same sums. There is nothing to tune."""

    splines: int
    monotone: Settings
    columns: int | None
    own_shapes: bool
    gamma: float
    bins: int


class TreesSettings(Settings):
    """Model and method 'trees': boosted trees from summed histograms of whole-number gradients."""

    preset: str
    rounds: int | None
    depth: int | None
    parallel: int | None
    columns: float | None
    rate: float | None
    bins: int
    ridge: float
    least: int
    monotone: Settings
    rounding: str
    early_stop: int
    survival: str


class CardSettings(Settings):
    """Model and method 'card': a risk card with whole-number points."""

    terms: int
    points: int
    route: str


class WatchSettings(Settings):
    """Method 'watch': new patients of all hospitals against those that a model was trained on, from sums."""

    run: str
    model: str
    edges: Settings
    level: float
    least: int
    moved: str
    labels: bool
    table: str | None
    shifts: list[str]


class BinsSettings(Settings):
    """Agreed bins of one column of method 'quality'."""

    edges: list[float]
    levels: list[str]
    range: list[float]
    unit: str


class QualitySettings(Settings):
    """Method 'quality': counts of every site's rows in agreed bins, compared between sites before training."""

    bins: Settings
    classes: list[str]
    years: list[int]
    patients: bool
    least: int
    level: float
    effect: float


class MethodSettings(Settings):
    """Federated method and its parts."""

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
    exact: ExactSettings
    gam: GAMSettings
    trees: TreesSettings
    card: CardSettings
    watch: WatchSettings
    quality: QualitySettings
    options: Settings


class TrainSettings(Settings):
    """Local training at a site in one round."""

    epochs: int
    steps: int
    continue_epoch: bool
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
    objective: str | None
    objective_options: Settings
    finetune: int
    early_stop: int


class ExplainSettings(Settings):
    """Feature attributions of models during training, and their drift between sites: explanations.json."""

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
    """Differential privacy and secure aggregation."""

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
    """Injected faults, for robustness tests."""

    drop: float
    nan: list[str]
    slow: Settings


class EngineSettings(Settings):
    """Simulation engine, hardware and timing."""

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
    keep_states: int
    faults: FaultSettings


class EvaluationSettings(Settings):
    """Evaluation of the model after a round."""

    every: int
    threshold: str
    specificity: float
    calibrate: str
    subgroup: str | None
    subgroups: list[str]
    bands: Settings
    least: int
    mitigation: str
    rationale_set: str | None
    local_models: str
    metrics: list[str]


class PersonalSettings(Settings):
    """Parts of the model that each site has for itself. They are never sent."""

    part: str
    guard: bool
    rows: str
    epochs: int
    strength: float
    mixture: float
    spread: float | None
    differences: bool


class AttackSettings(Settings):
    """Simulated attack of some sites, to measure robustness. One `[[attacks]]` per kind or group of sites."""

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
    """Complete description of an experiment: data, split, model, method, training, privacy, evaluation and seed."""

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
    personal: PersonalSettings
    attacks: list[dict[str, Any]]
    code: Settings
