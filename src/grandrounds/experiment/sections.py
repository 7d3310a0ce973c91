"""Define the sections of an experiment: every setting with its default, its bounds and its description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from grandrounds.core.section import ROUNDS, SEEDS, OwnCode, Section, SourceName
from grandrounds.data.formats import DEFAULT_MISSING
from grandrounds.data.partition import KINDS
from grandrounds.data.readers import find_reader
from grandrounds.data.scan_options import WINDOWS, parse_options
from grandrounds.explain.explainers.registry import MAPS, SKETCHES

if TYPE_CHECKING:
    Sketch = str
    HeatMap = str
else:  # the names in the registry of explainers
    Sketch = Literal["auto", "none", *SKETCHES]
    HeatMap = Literal[*MAPS]


class Shift(Section):
    """Simulated scanner shift: each site changes gamma, brightness, contrast, blur and JPEG quality of its images."""

    strength: float = Field(0.0, ge=0, le=3, description="strength of the shift; 0: none; 1: as strong as between real scanners")
    clean: tuple[str, ...] = Field((), description="sites whose images are not changed")


def _as_word(value: Any) -> Any:
    """Convert a class given as a number (`event = 1`) to the text that its column holds."""
    return str(value) if isinstance(value, int | float) else value


def _as_list(value: Any) -> Any:
    """Convert one number to a list of it."""
    return [value] if isinstance(value, int | float) else value


def _read_cohort(value: Any) -> Any:
    """Replace a cohort file by its definition and digest, so that a plan has all of it."""
    return None if value is None else find_reader("data.cohort definition")(value)


class Shortcut(Section):
    """Corner patch that correlates with the label, for experiments on shortcut learning."""

    p: float = Field(0.0, ge=0, le=1, description="probability that an image of the class carries the patch; 0: none")
    classes: tuple[str, ...] = Field((), description="classes that carry the patch (at every third site: the other classes)")


class Scan(Section):
    """Reading of DICOM and NIfTI files: window, spacing, slices, and the series that is used."""

    window: str | tuple[float, float] = Field(
        "tags",
        description="values shown from black to white: [centre, width], the name of a CT window "
        f"({', '.join(WINDOWS)}), 'tags' (stated in each file), 'percentiles' or 'range' of each scan",
    )
    spacing: Annotated[tuple[float, ...], BeforeValidator(_as_list)] = Field(
        (), description="mm to resample to: one number, [rows, columns] or [rows, columns, slices]; empty: as scanned"
    )
    slices: str = Field("middle", description="slices that become images: middle, all, 'every 5', '10-20' (from 1), or mask")
    plane: Literal["acquired", "axial", "coronal", "sagittal"] = Field(
        "acquired", description="plane of the slices; acquired: as in the DICOM files, axial for NIfTI"
    )
    fit: Literal["auto", "resize", "crop"] = Field(
        "auto", description="how data.size is reached: resize, or crop and pad; auto: crop if data.scan.spacing is set"
    )
    volume: int = Field(1, ge=1, description="volume of a NIfTI file with several, counted from 1")
    series: dict[str, str] = Field(
        default_factory=dict,
        description="tags that choose the series of a folder or study: { Modality = 'CT', SeriesDescription = '*axial*' }",
    )

    @model_validator(mode="after")
    def _parse(self) -> Scan:
        parse_options(self.model_dump())
        return self


class Data(Section):
    """Source of the rows, and roles and types of the columns."""

    name: Annotated[str | None, OwnCode] = Field(
        None, description="a data set of the catalog (`rounds list data`), or your own loader: 'package.module:function'"
    )
    table: SourceName = Field(
        None,
        description="your own table: .csv, .tsv, .parquet, .xlsx, .sas7bdat, .xpt, .dta, .sav, .npz, or a SQL URL; with "
        "data.cohort also clinical records",
    )
    sheet: str | None = Field(None, description="sheet of an Excel workbook; not set: the only one with cells")
    cohort: Annotated[dict[str, Any] | None, BeforeValidator(_read_cohort)] = Field(
        None,
        description="cohort file by which the table is made from clinical records: OMOP tables, a SQL URL or FHIR resources of "
        "one hospital, or a folder with those of each hospital; a plan has the whole definition and its digest",
    )
    query: SourceName = Field(None, description="SELECT statement or table name, for a SQL URL; with data.cohort the schema")
    label: str | None = Field(None, description="column to predict")
    task: Literal["auto", "classification", "regression", "count", "survival"] = Field(
        "auto", description="type of the outcome; auto: inferred from the label if certain; survival if data.duration is set"
    )
    duration: str | None = Field(
        None, description="column with the follow-up time, for survival; the label is then the event (0 or 1, or see data.event)"
    )
    event: Annotated[str | None, BeforeValidator(_as_word)] = Field(
        None, description="the class (of two) whose probability is the risk; not set: known words such as 'yes', else an error"
    )
    positive: str | None = Field(
        None, description="as data.event, and this class comes last in the order of classes"
    )
    site: str | None = Field(None, description="column that names the hospital of each row")
    patient: str | None = Field(
        None, description="column that names the patient; a patient's rows stay on one side of a site's split"
    )
    time: str | None = Field(None, description="column that orders rows, for split.by = 'time'")
    part: str | None = Field(
        None,
        description="column that assigns each row to 'train', 'val' or 'test', instead of split.test and (if it has 'val') "
        "split.val; needs split.official = true and split.scheme = 'within'",
    )
    id: str | None = Field(None, description="column with a unique value in every row; never a feature")
    drop: tuple[str, ...] = Field((), description="columns to ignore")
    features: tuple[str, ...] = Field((), description="the only columns that may be features; empty: all that are left")
    kinds: dict[str, str | tuple[str, ...]] = Field(
        default_factory=dict,
        description="column types that override the inferred ones: numeric, categorical, id, drop, or levels from low to high",
    )
    names: dict[str, str] = Field(
        default_factory=dict, description="clinical names of columns, for pages and reports; others are shown by their own"
    )
    units: dict[str, str] = Field(default_factory=dict, description="units of numeric columns, for pages and reports")
    missing: tuple[str, ...] = Field(DEFAULT_MISSING, description="cells that mean a missing value (--missing adds to them)")
    decimal: Literal["auto", ",", "."] = Field(
        "auto", description="decimal mark of ambiguous cells such as 1,234; auto: inferred from the file"
    )
    text_encoding: str = Field("auto", description="encoding of a text file: utf-8, cp1252 ...; auto: inferred")
    separator: str = Field("auto", description="separator of a text file: , ; | or tab; auto: inferred")
    censored: Literal["value", "half", "missing"] = Field(
        "value", description="how '<5' and '>200' are read: as the value, as half of it ('<' only), or as missing"
    )
    dates: Literal["auto", "day-first", "month-first"] = Field(
        "auto", description="order of day and month in dates such as 03/04/2020, for data.time; auto: inferred from the column"
    )
    drop_unlabelled: bool = Field(False, description="drop rows without a label instead of raising an error")
    encoding: Literal["fitted", "public"] = Field(
        "fitted",
        description="how rows become model inputs. 'fitted': by summary statistics of all sites, which no epsilon covers; "
        "'public': by ranges and levels known beforehand (data.ranges, or those of the catalog), without asking sites",
    )
    ranges: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="for encoding 'public': usual range of each numeric column: { age = [18, 90] }",
    )
    levels: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="for encoding 'public': levels of each categorical column, and classes of the label: "
        "{ sex = ['female', 'male'], died = ['0', '1'] }",
    )
    scale: Literal["standard", "robust", "none"] = Field("standard", description="scaling of numeric inputs")
    impute: Literal["median", "mean"] = Field("median", description="value that replaces a missing number")
    clip: float = Field(
        0.001, ge=0, lt=0.5, description="clip values beyond this quantile on either side (at least one row); 0: never"
    )
    coding: Literal["levels", "reference", "columns"] = Field(
        "levels",
        description="inputs of a categorical column: one for each level, or (for regression) one for each level but the most "
        "frequent over all sites; levels with fewer than 5 rows then become 'other'. 'columns' (set by models 'gam', 'trees' "
        "and 'card') loses nothing: numbers in original units, every gap marked, an input for each level",
    )
    complete: bool = Field(
        False, description="leave out rows in which a feature has no value, instead of filling it in; their number is stated"
    )
    products: tuple[tuple[str, ...], ...] = Field(
        (), description="interactions: columns that are multiplied with each other: [['age', 'sex'], ['bmi', 'bmi']]"
    )
    max_categories: int = Field(30, ge=1, le=100_000, description="most levels per categorical column; the rest becomes 'other'")
    sha256: str | None = Field(None, description="SHA-256 of the data; a run refuses other data (filled in by a run)")
    pictures: SourceName = Field(
        None, description="folder of image files (PNG, JPEG, DICOM, NIfTI); data.table then lists them and their labels"
    )
    file: str = Field("file", description="column of data.table that names the image files")
    size: int | None = Field(None, ge=4, le=8192, description="side in pixels to resize images to")
    masks: SourceName = Field(None, description="folder of ground-truth masks (PNG, named like the images), or 'strokes'")
    scan: Scan = Scan()
    shift: Shift = Shift()
    shortcut: Shortcut = Shortcut()


class Split(Section):
    """Assignment of rows to sites, and to training, validation and test."""

    partition: Annotated[str, OwnCode] = Field(
        "auto",
        description="'column': by data.site; auto: 'column' if data.site is set, else the catalog's partition, else 'equal'; "
        f"simulated sites: {', '.join(KINDS)}, or your own 'package.module:function'",
    )
    sites: int = Field(10, ge=1, le=1_000_000, description="number of simulated sites (not for 'column')")
    alpha: float = Field(0.5, gt=0, le=1e6, description="concentration of 'dirichlet': 0.1 is strong label skew, 100 is none")
    min_rows: int = Field(8, ge=1, description="smallest number of rows per site")
    val: float = Field(0.15, ge=0, lt=1, description="share of each site's rows for validation")
    test: float = Field(0.2, ge=0, lt=1, description="share of each site's rows for testing")
    by: Literal["auto", "row", "patient", "time"] = Field(
        "auto", description="unit of the split: rows, whole patients, or by time; auto: patient if data.patient is set"
    )
    seed: int | None = Field(None, ge=0, le=SEEDS, description="seed of the split alone; not set: the experiment's seed")
    scheme: Literal["within", "leave-one-site-out", "group-kfold", "holdout"] = Field(
        "within", description="'within': every site trains and tests; the other schemes hold out whole sites for testing"
    )
    fold: int = Field(0, ge=0, le=1_000_000, description="index of the site or group that is held out")
    folds: int = Field(5, ge=2, le=10_000, description="groups of 'group-kfold'")
    holdout: tuple[str, ...] = Field((), description="sites held out by 'holdout'")
    official: bool = Field(
        True, description="use the official test rows (data.part) or test images of the data set, if it has any"
    )
    without: tuple[str, ...] = Field(
        (), description="sites that take no part at all, such as sites that withdrew: none of their rows is in any split, "
        "summary, scale or reference set"
    )
    keep_setup: bool = Field(
        False, description="keep set-up statistics in which sites of split.without took part (set by `rounds withdraw "
        "--keep-setup`, which goes on from a checkpoint)"
    )


class Task(Section):
    """Additional task of some sites: the same rows, with labels grouped into other classes."""

    classes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="new class -> labels: { animal = ['cat', 'dog'], vehicle = ['truck'] }"
    )
    sites: tuple[str, ...] = Field((), description="sites with this task; not set: sites take the tasks in turn")


class ReferenceSet(Section):
    """Reference rows, set aside for the consortium; no site uses them for training, validation or testing."""

    rows: int = Field(200, ge=1, le=100_000_000, description="number of rows")
    labelled: bool = Field(True, description="their labels may be used")
    sent: bool = Field(False, description="they may be sent to every site; they are rows of patients")
    source: SourceName = Field(
        None,
        description="take the rows from another table that contains no site's patients; or images, all of them: "
        "a file.npz, 'drawn-shapes-scoring', 'xfed-mnist', 'xfed-cifar' or 'xfed-cifar-30' (with ground-truth masks)",
    )


class Model(Section):
    """Model architecture."""

    name: Annotated[str, OwnCode] = Field(
        "logistic",
        description="`rounds list models`, or your own torch module: 'package.module:Class'; 'logistic' becomes 'linear' where "
        "data.task is not classification",
    )
    hidden: tuple[int, ...] = Field((64, 32), description="widths of the hidden layers of 'mlp'")
    trees: int = Field(50, ge=1, le=100_000, description="trees that each site grows for 'forest'")
    depth: int = Field(10, ge=1, le=256, description="maximum depth of a tree of 'forest'")
    norm: Literal["group", "batch"] = Field("group", description="normalisation layers of image models")
    stem: Literal["small", "imagenet"] = Field(
        "small", description="first layers of image models: 'small' for 28 to 64 pixels, 'imagenet' for larger images"
    )
    statistics: Literal["averaged", "site"] = Field(
        "averaged", description="BatchNorm statistics: averaged over sites, or each site's own"
    )
    weights: SourceName = Field(
        None,
        description="a .safetensors file with initial weights, for models that are trained in steps: model.safetensors of an "
        "earlier run",
    )
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="arguments of your own model besides inputs and outputs"
    )


class Train(Section):
    """Local training at a site in one round."""

    epochs: int = Field(2, ge=1, le=10_000, description="local epochs per round")
    steps: int = Field(0, ge=0, le=1_000_000, description="local steps per round at every site, instead of epochs; 0: use epochs")
    continue_epoch: bool = Field(
        False,
        description="with train.steps: a round goes on in a site's shuffled rows where the round before ended, instead of "
        "shuffling them anew",
    )
    batch: int = Field(32, ge=0, description="batch size; 0: all rows")
    lr: float = Field(0.1, gt=0, description="learning rate")
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = Field("sgd", description="local optimizer")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of optimizer 'momentum'")
    weight_decay: float = Field(0.01, ge=0, description="weight decay of optimizer 'adamw' (weights, not biases)")
    l2: float = Field(0.0, ge=0, description="L2 penalty on weights, l2/2 * ||w||^2")
    schedule: Literal["constant", "step", "exponential", "cosine"] = Field(
        "constant", description="learning rate schedule over rounds"
    )
    warmup: int = Field(0, ge=0, description="rounds of linear learning rate warm-up")
    decay: float = Field(0.5, gt=0, le=1, description="decay factor of schedules 'step' and 'exponential'")
    class_weights: Literal["none", "balanced"] | dict[str, float] = Field(
        "none", description="class weights in the loss: 'balanced', or one per class: { yes = 5.0, no = 1.0 }"
    )
    keep_optimizer: bool = Field(False, description="sites keep optimizer state (momentum, Adam moments) between rounds")
    augment: Literal["none", "flip", "shift"] = Field(
        "none", description="image augmentation: 'flip' mirrors half of the images; 'shift' also translates them; new each round"
    )
    noise: float = Field(
        0.0,
        ge=0,
        description="standard deviation of Gaussian noise added to each step's gradient, as in the FL-XAI paper (4.7); gradients "
        "are not clipped, so this is no differential privacy (see privacy.mechanism)",
    )
    objective: Annotated[str | None, OwnCode] = Field(
        None, description="a local objective of your own: 'package.module:Class', a subclass of LocalObjective"
    )
    objective_options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="options of train.objective"
    )
    finetune: int = Field(
        0, ge=0, le=10_000, description="epochs of fine-tuning at each site after the last round; evaluated separately"
    )
    early_stop: int = Field(
        0, ge=0, description="early stopping: rounds without a better validation loss; 0: never"
    )


class Explain(Section):
    """Feature attributions of models during training, and their drift between sites: explanations.json."""

    sketch: Sketch = Field(
        "auto",
        description="explainer of the attribution sketches (`rounds list explainers`); auto: permutation for linear models and "
        "MLPs, none for images and trees",
    )
    every: int = Field(0, ge=0, le=ROUNDS, description="explain every this many rounds and after the last; 0: only the last")
    at: Literal["server", "site"] = Field(
        "server",
        description="place where local models are explained: at the server, or at each site, which requires reference rows that "
        "are sent to sites",
    )
    reference: str | None = Field(
        None,
        description="the [reference.NAME] rows that local models are compared on; not set: the only set not used as anchor",
    )
    score: Literal["log_loss", "accuracy", "self"] = Field(
        "log_loss",
        description="score that drops when a feature is hidden or permuted; self: change of the predictions, without labels",
    )
    repeats: int = Field(3, ge=1, le=10_000, description="permutations per feature, identical at all sites and in all rounds")
    rows: int = Field(200, ge=2, description="most local rows on which a site explains the global model")
    steps: int = Field(10, ge=1, le=10_000, description="integration steps of shap (for MLPs) and integrated_gradients")
    tiles: int = Field(4, ge=1, le=64, description="images are explained on a grid of tiles x tiles")
    k: int = Field(5, ge=1, description="number of top features that Jaccard@k compares")
    top: int = Field(0, ge=0, description="number of largest entries of a sketch that are kept; 0: all")
    noise: float = Field(
        0.0, ge=0, description="standard deviation of Gaussian noise on sketches (clipped, renormalised); no differential privacy"
    )
    maps: tuple[HeatMap, ...] = Field(
        (),
        description="heat maps of local and global models on each site's own images; maps stay at the site, only summary figures "
        "leave it",
    )
    maps_at: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="rounds after which heat maps are made; not set: the last round"
    )
    maps_rows: int = Field(16, ge=1, description="images per site that heat maps are made of, the same in all rounds")


class Privacy(Section):
    """Differential privacy and secure aggregation."""

    mechanism: Literal["none", "dp-sgd", "client"] = Field(
        "none",
        description="differential privacy in training. 'dp-sgd': per patient, noise at the sites; 'client': per site, noise at "
        "the server; 'none': only the method's own guarantee (veil, private-gam), if it has one",
    )
    epsilon: float | None = Field(
        None,
        ge=1e-4,
        le=1e9,
        description="privacy budget of the run, which stops before exceeding it; sets the noise if privacy.noise is not set",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of the privacy guarantee, for the whole run")
    clip: float = Field(
        1.0, gt=0, description="clipping norm of one patient's gradient ('dp-sgd') or of one site's update ('client')"
    )
    noise: float | None = Field(
        None, gt=0, description="noise multiplier (standard deviation / clip); not set: the smallest that epsilon allows"
    )
    sampling_rate: float = Field(
        0.1, ge=1e-5, le=1, description="probability that a patient is sampled in a step of 'dp-sgd' (replaces train.batch)"
    )
    min_rows: int = Field(
        50,
        ge=1,
        description="smallest number of training rows of a site in 'dp-sgd'; smaller sites take no part",
    )
    unit: Literal["auto", "patient", "row"] = Field(
        "auto",
        description="unit of privacy of 'dp-sgd', 'veil' and 'private-gam': each patient with all rows (data.patient), or each "
        "row; auto: "
        "patient if data.patient is set",
    )
    sites: int = Field(
        0,
        ge=0,
        description="number of sites by which 'client' divides the sum of updates and scales its noise, whoever takes part; "
        "0: number of training sites at the start, which is written to the plan",
    )
    public_counts: bool = Field(
        False, description="row counts of sites are public, so that 'client' may weight by them"
    )
    secure: bool = Field(
        False, description="secure aggregation: the server sees sums of models and of counts, never those of one site"
    )
    secure_range: float = Field(
        64.0,
        gt=0,
        le=4096,
        description="largest model entry in a secure sum; a site beyond it is left out; a larger range is coarser",
    )
    largest_weight: float = Field(
        0.95, gt=0, le=1, description="largest weight that a site accepts in a secure sum; a larger one would reveal its model"
    )
    on_halt: Literal["stop", "retry", "skip"] = Field(
        "stop",
        description="if a secure sum fails: stop the run, retry up to three times, or skip the round and keep the model",
    )


class Evaluation(Section):
    """Evaluation of the model after a round."""

    every: int = Field(1, ge=1, le=ROUNDS, description="evaluate every this many rounds, and after the last")
    threshold: Literal["half", "youden", "specificity"] = Field(
        "half", description="decision threshold: 0.5, or chosen on the validation rows of all sites"
    )
    specificity: float = Field(0.9, gt=0, lt=1, description="target specificity of threshold = 'specificity'")
    calibrate: Literal["none", "temperature", "platt"] = Field(
        "none",
        description="calibration on all sites' validation rows after training: temperature or Platt scaling (two classes)",
    )
    subgroup: str | None = Field(None, description="column to report metrics by, e.g. sex")
    subgroups: tuple[str, ...] = Field(
        (), max_length=10, description="columns whose groups are compared, e.g. ['sex', 'age']: figures and gaps with intervals"
    )
    bands: dict[str, tuple[float, ...]] = Field(
        default_factory=dict,
        description="cuts of numeric columns of subgroups: { age = [45, 65, 80] }; not set: age bands for a column named age, "
        "else quartiles of the sites' summaries",
    )
    least: int = Field(
        5, ge=1, description="smallest count that subgroups show: smaller groups, and groups with fewer events, are hidden"
    )
    mitigation: Literal["none", "thresholds", "recalibration"] = Field(
        "none",
        description="correction by groups of the first column of subgroups, fitted to validation rows: a threshold for each "
        "group (equal sensitivity), or a recalibration of each group",
    )
    rationale_set: str | None = Field(
        None,
        description="reference images on which the global model's predictions and heat maps are scored after every evaluated "
        "round (by the rule of method.xfed)",
    )
    local_models: Literal["none", "own", "crossed"] = Field(
        "none",
        description="evaluate local models too. own: each on its site's training and test rows; crossed: also by all other sites "
        "on their rows, which sends every local model to all sites; rows stay where they are",
    )
    metrics: Annotated[tuple[str, ...], OwnCode] = Field(
        (), description="your own metrics: 'package.module:function', which receives a Tally"
    )
