"""The sections of an experiment: every setting with its default, its bounds and the sentence that says what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from grandrounds.core.section import ROUNDS, SEEDS, OwnCode, Section
from grandrounds.data.partition import KINDS
from grandrounds.data.readers import DEFAULT_MISSING
from grandrounds.explain.explainers.registry import MAPS, SKETCHES

if TYPE_CHECKING:
    Sketch = str
    HeatMap = str
else:  # the words of the table of explainers
    Sketch = Literal["auto", "none", *SKETCHES]
    HeatMap = Literal[*MAPS]


class Shift(Section):
    """Each site takes its pictures with its own protocol: gamma, brightness, contrast, blur, JPEG."""

    strength: float = Field(0.0, ge=0, le=3, description="0: none; 1: as strong as scanners differ")
    clean: tuple[str, ...] = Field((), description="sites that stay as they are")


def _as_word(value: Any) -> Any:
    """A class as its column writes it, where a file or a flag has it as a number: `event = 1`."""
    return str(value) if isinstance(value, int | float) else value


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
    event: Annotated[str | None, BeforeValidator(_as_word)] = Field(
        None, description="the class of two whose probability is the risk; not set: read from known words, or refused"
    )
    positive: str | None = Field(
        None, description="the same, and the class is put last in the order of classes (as version 0.1 had it)"
    )
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
    missing: tuple[str, ...] = Field(DEFAULT_MISSING, description="cells that mean 'no value' (--missing adds to them)")
    decimal: Literal["auto", ",", "."] = Field(
        "auto", description="decimal mark of cells such as 1,234 that can be read in two ways; auto: as the file shows"
    )
    text_encoding: str = Field("auto", description="encoding of a text file: utf-8, cp1252 ...; auto: as the file shows")
    separator: str = Field("auto", description="separator of a text file: , ; | or tab; auto: as the file shows")
    censored: Literal["value", "half", "missing"] = Field(
        "value", description="what '<5' and '>200' stand for: the value, half of it (of '<' only), or missing"
    )
    dates: Literal["auto", "day-first", "month-first"] = Field(
        "auto", description="order in dates such as 03/04/2020, for data.time; auto: as the column shows"
    )
    drop_unlabelled: bool = Field(False, description="leave out rows without a label instead of refusing them")
    encoding: Literal["fitted", "public"] = Field(
        "fitted",
        description="how rows become model inputs: 'fitted' to what all sites say of theirs, which no epsilon covers; 'public': "
        "by ranges and levels that are known beforehand (data.ranges, or the set's own), and no site is asked",
    )
    ranges: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="for encoding 'public': the usual low and high of each numeric column: { age = [18, 90] }",
    )
    levels: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="for encoding 'public': the levels of each categorical column, and the classes of the label: "
        "{ sex = ['female', 'male'], died = ['0', '1'] }",
    )
    scale: Literal["standard", "robust", "none"] = Field("standard", description="how numeric inputs are scaled")
    impute: Literal["median", "mean"] = Field("median", description="what stands in for a missing number")
    clip: float = Field(
        0.001, ge=0, lt=0.5, description="draw in values beyond this quantile on either side (at least one row); 0: never"
    )
    max_categories: int = Field(30, ge=1, le=100_000, description="levels kept per categorical column; the rest is 'other'")
    sha256: str | None = Field(None, description="refuse to run on other data than this (filled in by a run)")
    pictures: str | None = Field(
        None, description="folder of picture files; data.table then lists them and their labels"
    )
    file: str = Field("file", description="column of data.table that names the picture files")
    size: int | None = Field(None, ge=4, le=8192, description="side in pixels to bring pictures to")
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
    sites: int = Field(10, ge=1, le=1_000_000, description="how many sites to make (not for 'column')")
    alpha: float = Field(0.5, gt=0, le=1e6, description="label skew of 'dirichlet': small is skewed, 100 is none")
    min_rows: int = Field(8, ge=1, description="no site may have fewer rows than this")
    val: float = Field(0.15, ge=0, lt=1, description="share of each site's rows for validation")
    test: float = Field(0.2, ge=0, lt=1, description="share of each site's rows for the test")
    by: Literal["auto", "row", "patient", "time"] = Field(
        "auto", description="what is kept together; auto: patient where data.patient is set"
    )
    seed: int | None = Field(None, ge=0, le=SEEDS, description="the seed of the split alone; none: that of the experiment")
    scheme: Literal["within", "leave-one-site-out", "group-kfold", "holdout"] = Field(
        "within", description="'within': every site trains and tests; the others keep whole sites for the test"
    )
    fold: int = Field(0, ge=0, le=1_000_000, description="which site or group is held out")
    folds: int = Field(5, ge=2, le=10_000, description="groups of 'group-kfold'")
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

    rows: int = Field(200, ge=1, le=100_000_000, description="how many rows")
    labelled: bool = Field(True, description="whether their labels may be used")
    sent: bool = Field(False, description="whether they may be sent to every site: they are patients' rows")
    source: str | None = Field(
        None,
        description="rows of another table instead, a file that no site's patients are in; or pictures, all of them: "
        "a file.npz, 'xfed-mnist', 'xfed-cifar' or 'xfed-cifar-30' (truth masks)",
    )


class Model(Section):
    """What is trained."""

    name: Annotated[str, OwnCode] = Field(
        "logistic", description="`rounds list models`, or your own torch module: 'package.module:Class'"
    )
    hidden: tuple[int, ...] = Field((64, 32), description="widths of the hidden layers of 'mlp'")
    trees: int = Field(50, ge=1, le=100_000, description="trees a site grows for 'forest'")
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


class Train(Section):
    """What a site does in one round."""

    epochs: int = Field(2, ge=1, le=10_000, description="passes over a site's rows in a round")
    steps: int = Field(0, ge=0, le=1_000_000, description="instead of epochs: this many local steps at every site")
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
    noise: float = Field(
        0.0,
        ge=0,
        description="deviation of Gaussian noise added to every entry of every step's gradient, as the FL-XAI study does (4.7); "
        "nothing is clipped, so it promises no privacy (privacy.mechanism does)",
    )
    finetune: int = Field(
        0, ge=0, le=10_000, description="epochs that each site trains the finished model on for itself; judged beside it"
    )
    early_stop: int = Field(
        0, ge=0, description="stop after this many rounds without a better validation loss; 0: never"
    )


class Explain(Section):
    """How sites explain their models, and how steady those reasons are: explanations.json."""

    sketch: Sketch = Field(
        "auto",
        description="how importances are measured (`rounds list explainers`); auto: permutation for linear models and MLPs, "
        "none for pictures and trees",
    )
    every: int = Field(0, ge=0, le=ROUNDS, description="explain every so many rounds, and after the last; 0: after the last only")
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
    repeats: int = Field(3, ge=1, le=10_000, description="permutations of each feature, the same at all sites and in all rounds")
    rows: int = Field(200, ge=2, description="most rows of its own that a site explains the model in use on")
    steps: int = Field(10, ge=1, le=10_000, description="points on the path of shap (for MLPs) and integrated_gradients")
    tiles: int = Field(4, ge=1, le=64, description="pictures are explained by tiles x tiles")
    k: int = Field(5, ge=1, description="features that Jaccard@k compares")
    top: int = Field(0, ge=0, description="keep the largest entries of a sketch only; 0: all")
    noise: float = Field(
        0.0, ge=0, description="deviation of Gaussian noise on sketches, clipped and renormalised; promises no privacy"
    )
    maps: tuple[HeatMap, ...] = Field(
        (),
        description="heat maps of local and common models on each site's own pictures; they stay at the site, numbers of them "
        "are told",
    )
    maps_at: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="rounds after which maps are made; none named: after the last"
    )
    maps_rows: int = Field(16, ge=1, description="pictures of each site that maps are made of, the same in all rounds")


class Privacy(Section):
    """What is formally promised to patients."""

    mechanism: Literal["none", "dp-sgd", "client"] = Field(
        "none",
        description="differential privacy in training: 'dp-sgd' of each patient, with noise at the sites; 'client' of each site, "
        "with noise at the server; 'none': what the method itself promises (veil), else nothing, and the summary says so",
    )
    epsilon: float | None = Field(
        None,
        ge=1e-4,
        le=1e9,
        description="budget of the whole run: it stops before it spends more; sets the noise where that is not set",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="chance that the promise may fail with, of the whole run")
    clip: float = Field(
        1.0, gt=0, description="longest gradient of one patient ('dp-sgd'), longest update of one site ('client')"
    )
    noise: float | None = Field(
        None, gt=0, description="deviation of the noise in units of clip; not set: the least that epsilon allows"
    )
    sampling_rate: float = Field(
        0.1, ge=1e-5, le=1, description="chance of each patient to be in a step of 'dp-sgd', in place of train.batch"
    )
    min_rows: int = Field(
        50,
        ge=1,
        description="a site with fewer training rows takes no part in 'dp-sgd': sampling hides too little there",
    )
    unit: Literal["auto", "patient", "row"] = Field(
        "auto",
        description="whom 'dp-sgd' and method 'veil' protect: each patient with all rows (data.patient), or each row; auto: "
        "patients where data.patient is set",
    )
    sites: int = Field(
        0,
        ge=0,
        description="number of sites that 'client' divides the sum of updates by and sizes its noise for, whoever takes part; "
        "0: as many as train when the run starts, which is written to the plan",
    )
    public_counts: bool = Field(
        False, description="how many rows each site has is no secret, so that 'client' may weigh by it"
    )
    secure: bool = Field(
        False, description="secure aggregation: the server sees sums of models and tallies, never one site's"
    )
    secure_range: float = Field(
        64.0,
        gt=0,
        le=4096,
        description="largest model entry that a secure sum can carry; a site beyond it is left out; larger is coarser",
    )
    largest_weight: float = Field(
        0.95, gt=0, le=1, description="a site refuses to be summed with a larger share: the sum would tell its model"
    )
    on_halt: Literal["stop", "retry", "skip"] = Field(
        "stop",
        description="where a secure sum cannot be finished: stop the run, ask up to three times, or keep the model for a round",
    )


class Evaluation(Section):
    """How the model is judged after each round."""

    every: int = Field(1, ge=1, le=ROUNDS, description="evaluate every so many rounds (always after the last)")
    threshold: Literal["half", "youden", "specificity"] = Field(
        "half", description="probability that counts as 'yes': 0.5, or chosen on the validation rows of all sites"
    )
    specificity: float = Field(0.9, gt=0, lt=1, description="target of threshold = 'specificity'")
    calibrate: Literal["none", "temperature", "platt"] = Field(
        "none",
        description="fit a temperature, or Platt's slope and intercept (two classes), on all sites' validation rows at the end",
    )
    subgroup: str | None = Field(None, description="column to report metrics by, e.g. sex")
    rationale_set: str | None = Field(
        None,
        description="reference pictures that the model in use is scored on after every evaluated round: is it right, and for "
        "the right reason (the rule is method.xfed's)",
    )
    local_models: Literal["none", "own", "crossed"] = Field(
        "none",
        description="in evaluated rounds score sites' own models. own: each on its site's training and test rows; crossed: also "
        "by the other sites on theirs, which lend scores and never rows; every local model goes to all of them",
    )
    metrics: Annotated[tuple[str, ...], OwnCode] = Field(
        (), description="metrics of your own, 'package.module:function' of a Tally"
    )
