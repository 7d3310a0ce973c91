"""The sections of an experiment: every setting with its default, its bounds and the sentence that says what it does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from grandrounds import plugins
from grandrounds.data.partition import KINDS
from grandrounds.errors import BadInput
from grandrounds.methods.weigh import checked

OwnCode = BeforeValidator(plugins.named)
"""Where a name is expected a class or function may be given: it stands for its import path."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class Shift(Section):
    """Each site takes its pictures with its own protocol: gamma, brightness, contrast, blur, JPEG."""

    strength: float = Field(0.0, ge=0, le=3, description="0: none; 1: as strong as scanners differ")
    clean: tuple[str, ...] = Field((), description="sites that stay as they are")


class Shortcut(Section):
    """A corner patch tied to the label, for studies of models that are right for the wrong reason."""

    p: float = Field(0.0, ge=0, le=1, description="chance that a picture of the class carries the patch; 0: none")
    classes: tuple[str, ...] = Field((), description="classes that carry it (every third site: the others)")


class Data(Section):
    """Where the rows come from and what the columns mean."""

    name: Annotated[str | None, OwnCode] = Field(
        None, description="a set of the catalog (`rounds list data`), or your own loader: 'package.module:function'"
    )
    table: str | None = Field(None, description="or a file of your own: .csv, .csv.gz, .tsv, .parquet, or a SQL URL")
    query: str | None = Field(None, description="SELECT or table name, for a SQL URL")
    label: str | None = Field(None, description="column to predict")
    positive: str | None = Field(None, description="which of two classes counts as the event (default: the last)")
    site: str | None = Field(None, description="column that names the hospital of each row")
    patient: str | None = Field(
        None, description="column that names the patient: none is on two sides of a site's split"
    )
    time: str | None = Field(None, description="column to order rows by, for split.by = 'time'")
    id: str | None = Field(None, description="column that must be different in every row; never a feature")
    drop: tuple[str, ...] = Field((), description="columns to leave out")
    kinds: dict[str, str | tuple[str, ...]] = Field(
        default_factory=dict,
        description="overrides of the schema: numeric, categorical, id, drop, or levels from low to high",
    )
    missing: tuple[str, ...] = Field(
        ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"), description="cells that mean 'no value'"
    )
    drop_unlabelled: bool = Field(False, description="leave out rows without a label instead of refusing them")
    scale: Literal["standard", "robust", "none"] = Field("standard", description="how numeric inputs are scaled")
    impute: Literal["median", "mean"] = Field("median", description="what stands in for a missing number")
    clip: float = Field(0.001, ge=0, lt=0.5, description="draw in values beyond this quantile on either side; 0: never")
    max_categories: int = Field(30, ge=1, description="levels kept per categorical column; the rest is 'other'")
    sha256: str | None = Field(None, description="refuse to run on other data than this (filled in by a run)")
    pictures: str | None = Field(
        None, description="folder of picture files; data.table then lists them and their labels"
    )
    file: str = Field("file", description="column of data.table that names the picture files")
    size: int | None = Field(None, ge=4, description="side in pixels to bring pictures to")
    masks: str | None = Field(None, description="folder of truth masks (PNG, named like the pictures), or 'strokes'")
    shift: Shift = Shift()
    shortcut: Shortcut = Shortcut()


class Split(Section):
    """Which rows belong to which site, and what they are used for there."""

    partition: Annotated[str, OwnCode] = Field(
        "auto",
        description="'column': by data.site; auto: that, else the set's own way, else 'equal'; the others make sites of one "
        f"set: {', '.join(KINDS)}, or your own 'package.module:function'",
    )
    sites: int = Field(10, ge=1, description="how many sites to make (not for 'column')")
    alpha: float = Field(0.5, gt=0, description="label skew of 'dirichlet': small is skewed, 100 is none")
    min_rows: int = Field(8, ge=1, description="no site may have fewer rows than this")
    val: float = Field(0.15, ge=0, lt=1, description="share of each site's rows for validation")
    test: float = Field(0.2, ge=0, lt=1, description="share of each site's rows for the test")
    by: Literal["auto", "row", "patient", "time"] = Field(
        "auto", description="what is kept together; auto: patient where data.patient is set"
    )
    scheme: Literal["within", "leave-one-site-out", "group-kfold", "holdout"] = Field(
        "within", description="'within': every site trains and tests; the others keep whole sites for the test"
    )
    fold: int = Field(0, ge=0, description="which site or group is held out")
    folds: int = Field(5, ge=2, description="groups of 'group-kfold'")
    holdout: tuple[str, ...] = Field((), description="sites held out by 'holdout'")
    official: bool = Field(True, description="use a set's own test pictures as test rows, where it has some")


class Task(Section):
    """A task of some sites besides the main one: the same rows, their labels grouped into other classes."""

    classes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="new class -> labels: { animal = ['cat', 'dog'], vehicle = ['truck'] }"
    )
    sites: tuple[str, ...] = Field((), description="sites that hold this task; none: sites take the tasks in turn")


class ReferenceSet(Section):
    """Rows set aside for the consortium: in no site's training, validation or test rows."""

    rows: int = Field(200, ge=1, description="how many rows")
    labelled: bool = Field(True, description="whether their labels may be used")
    sent: bool = Field(False, description="whether they may be sent to every site: they are patients' rows")


class Model(Section):
    """What is trained."""

    name: Annotated[str, OwnCode] = Field(
        "logistic", description="`rounds list models`, or your own torch module: 'package.module:Class'"
    )
    hidden: tuple[int, ...] = Field((64, 32), description="widths of the hidden layers of 'mlp'")
    trees: int = Field(50, ge=1, description="trees a site grows for 'forest'")
    depth: int = Field(10, ge=1, le=256, description="how deep a tree of 'forest' may be")
    norm: Literal["group", "batch"] = Field("group", description="normalisation in nets for pictures")
    stem: Literal["small", "imagenet"] = Field(
        "small", description="first layers of nets for pictures: for 28 to 64 pixels, or for larger ones"
    )
    statistics: Literal["averaged", "site"] = Field(
        "averaged", description="BatchNorm's statistics: averaged, or each site uses its own"
    )
    weights: str | None = Field(None, description="a .safetensors file of starting weights, for nets")
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="what a model of your own is called with besides inputs and outputs"
    )


class Select(Section):
    """Who takes part in a round; `select = "random"` is short for its rule."""

    rule: Literal["all", "random", "loss", "power-of-choice"] = Field(
        "all", description="`rounds list selection`; for asynchronous methods, who is kept at work: all or random"
    )
    fraction: float = Field(0.5, gt=0, le=1, description="share of the sites that take part, where not all do")
    candidates: float = Field(
        0.8, gt=0, le=1, description="share of the sites that 'power-of-choice' asks for their loss"
    )


class Robust(Section):
    """The rule against outlying answers; `robust = "krum"` is short for its rule."""

    rule: Literal[
        "none", "krum", "multi-krum", "median", "trimmed-mean", "geometric-median", "fltrust", "foolsgold", "clip"
    ] = Field("none", description="`rounds list robust`")
    attackers: int = Field(1, ge=0, description="bad sites to stand, for krum and multi-krum")
    keep: int = Field(0, ge=0, description="answers that multi-krum averages; 0: as many as its proof allows")
    trim: float = Field(0.1, ge=0, lt=0.5, description="share of sites that trimmed-mean cuts off at each end")
    norm: float = Field(0.0, ge=0, description="length that clip cuts updates to; 0: their median length")


class Weigh(Section):
    """How answers are weighed; `weigh = "uniform"` is short for its rule. All but the rule is for 'explanations'."""

    rule: Literal["auto", "data_size", "uniform", "distance", "reference_accuracy", "explanations"] = Field(
        "auto", description="`rounds list weighing`; auto: explanations for method 'sse-agg', data_size for all others"
    )
    explanation_weight: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share e of agreement, 1 - e of data size: 0 is FedAvg; short for lambdas; not set: 1",
    )
    lambdas: dict[str, float] = Field(
        default_factory=dict,
        description="shares of the signals, which sum to 1: { data = 0.5, agreement = 0.5, worst_site = 0, calibration = 0 }",
    )
    form: Literal["outlier", "inverse", "exponential"] = Field(
        "outlier",
        description="how agreement is scored: the share of rows, less for sites whose reasons stand out; "
        "or the paper's 1 / (eps + distance), or exp(-tau distance)",
    )
    sharpness: float | None = Field(
        None, ge=0, description="power of agreement; not set: 4 for 'outlier', 1 for 'inverse'"
    )
    tolerance: float = Field(
        2.0, gt=0, description="how many times the usual distance a site may be off, for form 'outlier'"
    )
    tau: float = Field(5.0, ge=0, description="of form 'exponential'")
    beta: float = Field(1.0, ge=0, description="how strongly signal worst_site follows the validation loss")
    gamma: float = Field(5.0, ge=0, description="how strongly signal calibration follows the calibration error")
    floor: float = Field(
        0.0, ge=0, lt=1, description="least weight of a site (w_min), before they are made to sum to 1"
    )
    every: int = Field(1, ge=1, description="ask for reasons every so many rounds (T_s)")
    between: Literal["last", "data_size"] = Field(
        "last", description="in rounds between: the last known agreement, or the paper's shares of rows"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Weigh:
        if self.lambdas and self.explanation_weight is not None:
            raise ValueError("explanation_weight is short for lambdas: give one of them")
        if self.lambdas:
            try:
                checked(self.lambdas)
            except BadInput as e:
                raise ValueError(str(e)) from None
        return self


class Cohorts(Section):
    """Groups of sites whose updates are alike (k-means): reasons are compared within; `cohorts = 2` is short for count."""

    count: int | Literal["auto"] = Field(
        1, description="how many; 1: none; auto: as the silhouette has it, up to `most`"
    )
    most: int = Field(5, ge=2, description="most cohorts of count 'auto'")
    models: Literal["combined", "separate"] = Field(
        "combined", description="one model of all cohorts, or each cohort keeps its own and its sites"
    )
    consensus: Literal["cohort", "global"] = Field(
        "cohort", description="whose mean sketch a site is compared with; global: Algorithm 1 as printed"
    )
    weight: Literal["weights", "sites", "rows"] = Field(
        "weights", description="what a cohort counts by: its sites' weights, their number (eq. 11), or their rows"
    )
    start: int = Field(1, ge=1, description="first round with cohorts")

    @field_validator("count", mode="before")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{value!r} is no number of cohorts: give 1 or more, or 'auto'")
        return value


class ServerStep(Section):
    """The server's own optimiser: fedopt, fedadam, fedyogi, fedadagrad, fedrmsprop, fedavgm, and fedbuff's lr."""

    rule: Literal["adam", "yogi", "adagrad", "rmsprop"] = Field("adam", description="of method 'fedopt'")
    lr: float | None = Field(None, gt=0, description="learning rate; not set: 0.01, and 1 for fedavgm and fedbuff")
    momentum: float = Field(0.9, ge=0, lt=1, description="of fedavgm")
    beta1: float | None = Field(None, ge=0, lt=1, description="not set: 0.9, and 0 for adagrad and rmsprop")
    beta2: float = Field(0.99, ge=0, lt=1, description="memory of squared updates")
    tau: float = Field(1e-3, gt=0, description="added to the root of the squared updates")
    v0: float | None = Field(None, ge=0, description="squared updates at the start; not set: tau squared")
    bias_correction: bool = Field(False, description="Adam's correction of the first rounds, as in Flower")


class Staleness(Section):
    """How much less a late answer counts in asynchronous methods; `staleness = "hinge"` is short for its rule."""

    rule: Literal["constant", "polynomial", "hinge"] = Field("polynomial", description="`rounds list staleness`")
    a: float = Field(0.5, ge=0, description="how fast it falls")
    b: int = Field(4, ge=0, description="rounds of grace of 'hinge'")


class Method(Section):
    """The federated algorithm, put together from parts."""

    name: Annotated[str, OwnCode] = Field(
        "fedavg", description="`rounds list methods`, or your own: 'package.module:Class'"
    )
    rounds: int = Field(20, ge=1, description="rounds of training")
    select: Select = Select()
    weigh: Weigh = Weigh()
    cohorts: Cohorts = Cohorts()
    robust: Robust = Robust()
    stability: Literal[
        "auto", "none", "proximal", "scaffold", "moon", "anchor", "permuted_anchor", "anchored_scaffold", "alignment"
    ] = Field(
        "auto",
        description="what holds sites together; `rounds list stability`; auto: none, and for 'sse-agg' anchored_scaffold "
        "(without rows that are sent: scaffold; with another optimizer than 'sgd': permuted_anchor)",
    )
    reference: str | None = Field(
        None, description="the [reference.NAME] rows that the server uses; not set: the only one"
    )
    mu: float = Field(0.01, ge=0, description="strength of FedProx's pull to the global model")
    contrast: float = Field(1.0, ge=0, description="strength of MOON's contrastive loss")
    temperature: float = Field(0.5, gt=0, description="of MOON's contrastive loss")
    anchor: float | None = Field(
        None,
        ge=0,
        description="strength of stability 'anchor' and 'permuted_anchor'; not set: 3, where from 10 on accuracy falls, and "
        "10 with adam and adamw",
    )
    anchor_rows: str | None = Field(
        None,
        description="the [reference.NAME] rows that sites are sent for it; not set: 'anchor', or the only ones sent",
    )
    hold: float = Field(
        20.0,
        ge=0,
        description="strength of the anchor of 'anchored_scaffold', times the fourth power of the model's doubt",
    )
    alignment: float = Field(0.3, ge=0, description="strength of stability 'alignment', which costs accuracy at any")
    server: ServerStep = ServerStep()
    clusters: int = Field(2, ge=1, description="models of method 'clustered'")
    mixing: float = Field(0.6, gt=0, le=1, description="share of a fresh answer in fedasync's next model")
    buffer: int = Field(3, ge=1, description="answers that make a round of fedbuff")
    staleness: Staleness = Staleness()
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="settings of a method of your own"
    )

    @field_validator("select", "weigh", "robust", "staleness", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @field_validator("cohorts", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return {"count": value} if isinstance(value, bool | int | float | str) else value


class Train(Section):
    """What a site does in one round."""

    epochs: int = Field(2, ge=1, description="passes over a site's rows in a round")
    steps: int = Field(0, ge=0, description="instead of epochs: this many local steps at every site")
    batch: int = Field(32, ge=0, description="rows a step; 0 is all of them")
    lr: float = Field(0.1, gt=0, description="learning rate")
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = Field("sgd", description="local step rule")
    momentum: float = Field(0.9, ge=0, lt=1, description="of optimizer 'momentum'")
    weight_decay: float = Field(0.01, ge=0, description="of optimizer 'adamw' (weights, not biases)")
    l2: float = Field(0.0, ge=0, description="L2 penalty on weights, l2/2 * ||w||^2")
    schedule: Literal["constant", "step", "exponential", "cosine"] = Field(
        "constant", description="how the learning rate changes over rounds"
    )
    warmup: int = Field(0, ge=0, description="rounds of linear warm-up")
    decay: float = Field(0.5, gt=0, le=1, description="factor of 'step' and 'exponential'")
    class_weights: Literal["none", "balanced"] | dict[str, float] = Field(
        "none", description="'balanced', or a weight for each class: { yes = 5.0, no = 1.0 }"
    )
    keep_optimizer: bool = Field(False, description="sites keep momentum and Adam moments between rounds")
    augment: Literal["none", "flip", "shift"] = Field(
        "none", description="for pictures: mirror half of them, or also move them a little, anew each round"
    )
    finetune: int = Field(
        0, ge=0, description="epochs that each site trains the finished model on for itself; judged beside it"
    )
    early_stop: int = Field(
        0, ge=0, description="stop after this many rounds without a better validation loss; 0: never"
    )


class Explain(Section):
    """How sites explain their models, and how steady those reasons are: explanations.json."""

    sketch: Literal[
        "auto",
        "none",
        "permutation",
        "gradient",
        "shap",
        "coefficients",
        "integrated_gradients",
        "occlusion",
        "saliency",
        "gradient_norm",
        "grad_cam",
        "normgrad",
    ] = Field(
        "auto",
        description="how importances are measured (`rounds list explainers`); auto: permutation for linear models and MLPs, "
        "none for pictures and trees",
    )
    every: int = Field(0, ge=0, description="explain every so many rounds, and after the last; 0: after the last only")
    at: Literal["server", "site"] = Field(
        "server",
        description="who explains the sites' local models: the server, which has them, or each site, for which the "
        "reference rows must be sent",
    )
    reference: str | None = Field(
        None,
        description="the [reference.NAME] rows that local models are compared on; not set: the only one that is free",
    )
    score: Literal["log_loss", "accuracy", "self"] = Field(
        "log_loss",
        description="what a hidden or permuted feature costs; self: how far predictions move, without labels",
    )
    repeats: int = Field(3, ge=1, description="permutations of each feature, the same at all sites and in all rounds")
    rows: int = Field(200, ge=2, description="most rows of its own that a site explains the model in use on")
    steps: int = Field(10, ge=1, description="points on the path of shap (for MLPs) and integrated_gradients")
    tiles: int = Field(4, ge=1, le=64, description="pictures are explained by tiles x tiles")
    k: int = Field(5, ge=1, description="features that Jaccard@k compares")
    top: int = Field(0, ge=0, description="keep the largest entries of a sketch only; 0: all")
    noise: float = Field(
        0.0, ge=0, description="deviation of Gaussian noise on sketches, clipped and renormalised; promises no privacy"
    )


class Privacy(Section):
    """What is formally promised to patients."""

    mechanism: Literal["none"] = Field("none", description="'none': no differential privacy, and the summary says so")


class FaultSettings(Section):
    """Faults to inject, for tests of robustness."""

    drop: float = Field(0.0, ge=0, le=1, description="chance that a site drops out of a round")
    nan: tuple[str, ...] = Field((), description="sites that send NaN")
    slow: dict[str, float] = Field(
        default_factory=dict,
        description="virtual seconds a site takes to train (default 1, or as engine.spread has it)",
    )


class Engine(Section):
    """How it is run."""

    name: Literal["local"] = Field("local", description="all sites in this process")
    wire: bool = Field(False, description="send every message through bytes and back, one site at a time")
    kernel: Literal["auto", "numpy", "torch"] = Field(
        "auto", description="what trains: auto is NumPy for tables and torch for pictures or on a GPU"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where torch computes; auto: a GPU if there is one"
    )
    precision: Literal["float32", "float64", "tf32", "bf16"] = Field(
        "float32", description="arithmetic; tf32 and bf16 speed up a GPU, weights stay float32"
    )
    chunk: int = Field(0, ge=0, description="sites trained at once; 0: as many as fit")
    workers: int = Field(
        0, ge=0, description="processes that train nets for pictures on a CPU; 0: as many as there are free cores"
    )
    min_sites: int = Field(1, ge=1, description="stop, with the state saved, when fewer sites answer")
    deadline: float | None = Field(None, gt=0, description="virtual seconds after which an answer is too late")
    spread: float = Field(
        0.0, ge=0, le=3, description="how unequally fast sites train: seconds are log-normal with this deviation"
    )
    faults: FaultSettings = FaultSettings()


class AttackSettings(Section):
    """A site that attacks, to see how the method stands it: `[[attacks]]`, one for each kind or group of sites."""

    kind: Literal[
        "label-flip", "label-shuffle", "backdoor", "sign-flip", "scale", "gaussian", "free-rider", "lie", "absent"
    ] = Field(..., description="`rounds list attacks`")
    sites: tuple[str, ...] = Field((), description="the sites that do it")
    count: int = Field(0, ge=0, description="or so many sites, those with the most training rows")
    share: float = Field(
        1.0, ge=0, le=1, description="share of the site's training rows, for label and backdoor attacks"
    )
    strength: float | None = Field(None, ge=0, description="how strong; not set: the kind's own")
    target: str | None = Field(None, description="class that a backdoor's trigger is to mean")
    start_round: int = Field(1, ge=1, description="honest before this round (not for attacks on rows)")


class Evaluation(Section):
    """How the model is judged after each round."""

    every: int = Field(1, ge=1, description="evaluate every so many rounds (always after the last)")
    threshold: Literal["half", "youden", "specificity"] = Field(
        "half", description="probability that counts as 'yes': 0.5, or chosen on the validation rows of all sites"
    )
    specificity: float = Field(0.9, gt=0, lt=1, description="target of threshold = 'specificity'")
    calibrate: Literal["none", "temperature"] = Field(
        "none", description="fit a temperature on the validation rows of all sites at the end"
    )
    subgroup: str | None = Field(None, description="column to report metrics by, e.g. sex")
    metrics: Annotated[tuple[str, ...], OwnCode] = Field(
        (), description="metrics of your own, 'package.module:function' of a Tally"
    )
