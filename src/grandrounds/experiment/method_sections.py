"""The section [method] of an experiment and its parts: who takes part, how answers are weighed, what stands bad ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from grandrounds.core.errors import BadInput
from grandrounds.core.section import ROUNDS, OwnCode, Section
from grandrounds.methods.fedxchain.options import TrustOptions
from grandrounds.methods.veil.options import VeilOptions
from grandrounds.methods.weigh import check_lambdas
from grandrounds.methods.xfed.options import XFedOptions


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
    guard: float = Field(
        0.0,
        ge=0,
        description="an update longer than so many times the median of its round is cut to that length, whatever the rule; "
        "0: none is; 10 for an own table (`rounds run --table`)",
    )


class Weigh(Section):
    """How answers are weighed; `weigh = "uniform"` is short for its rule. All but the rule is for 'explanations'."""

    rule: Literal["auto", "data_size", "uniform", "distance", "reference_accuracy", "explanations", "trust"] = Field(
        "auto",
        description="`rounds list weighing`; auto: explanations for method 'sse-agg', trust for 'fedxchain', data_size for all "
        "others; with 'fedxchain' and another rule trust is watched and has no say",
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
        1.5,
        gt=0,
        description="how many times as far off as all but the furthest quarter a site may be, for form 'outlier'",
    )
    memory: float = Field(
        0.5, ge=0, lt=1, description="share of earlier rounds in how far a site stands out, for form 'outlier'"
    )
    least_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of its rows' weight that a site whose explanations stand out keeps unless the model is worse with it "
        "on labelled reference rows, for form 'outlier'; not set: 0.5, and 0 with method.preset 'defence'",
    )
    own_halves: bool | None = Field(
        None,
        description="a site that would be demoted for harm first trains on either half of its own patients in turn, and is "
        "demoted only if the model is worse with both, for form 'outlier'; not set: true, but false with a "
        "privacy.mechanism or privacy.secure",
    )
    tau: float = Field(5.0, ge=0, description="of form 'exponential'")
    beta: float = Field(1.0, ge=0, description="how strongly signal worst_site follows the validation loss")
    gamma: float = Field(5.0, ge=0, description="how strongly signal calibration follows the calibration error")
    floor: float = Field(
        0.0, ge=0, lt=1, description="least weight of a site (w_min), before they are made to sum to 1"
    )
    every: int = Field(1, ge=1, description="ask for reasons every so many rounds (T_s)")
    between_rounds: Literal["last", "data_size"] = Field(
        "last", description="in rounds between: the last known agreement, or the paper's shares of rows"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Weigh:
        if self.lambdas and self.explanation_weight is not None:
            raise ValueError("explanation_weight is short for lambdas: give one of them")
        if self.lambdas:
            try:
                check_lambdas(self.lambdas)
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
    preset: Literal["default", "drift", "defence"] = Field(
        "default",
        description="of 'sse-agg', for settings that are not given; 'drift': local models are kept alike, which also hides a bad "
        "site; 'defence': a site whose explanations stand out may lose all of its weight",
    )
    rounds: int = Field(20, ge=1, le=ROUNDS, description="rounds of training")
    select: Select = Select()
    weigh: Weigh = Weigh()
    cohorts: Cohorts = Cohorts()
    robust: Robust = Robust()
    stability: Literal[
        "auto", "none", "proximal", "scaffold", "moon", "anchor", "permuted_anchor", "anchored_scaffold", "alignment"
    ] = Field(
        "auto",
        description="what holds sites together; `rounds list stability`; auto: none; for 'sse-agg' permuted_anchor where rows "
        "are sent, and with preset 'drift' and optimizer 'sgd' anchored_scaffold (without rows that are sent: scaffold)",
    )
    reference: str | None = Field(
        None, description="the [reference.NAME] rows that the server uses; not set: the only one"
    )
    mu: float = Field(0.01, ge=0, description="strength of FedProx's pull to the global model")
    moon_mu: float = Field(1.0, ge=0, description="strength of MOON's contrastive loss")
    temperature: float = Field(0.5, gt=0, description="of MOON's contrastive loss")
    anchor: float | None = Field(
        None,
        ge=0,
        description="strength of stability 'anchor' and 'permuted_anchor'; not set: 3, where from 10 on accuracy falls, and "
        "40 with adam and adamw",
    )
    anchor_rows: str | None = Field(
        None,
        description="the [reference.NAME] rows that sites are sent for it; not set: 'anchor', or the only ones sent",
    )
    anchor_gain: float = Field(
        20.0,
        ge=0,
        description="strength of the anchor of 'anchored_scaffold', times the fourth power of the model's doubt",
    )
    alignment: float = Field(0.3, ge=0, description="strength of stability 'alignment', which costs accuracy at any")
    server: ServerStep = ServerStep()
    clusters: int = Field(2, ge=1, le=10_000, description="models of method 'clustered'")
    mixing: float = Field(0.6, gt=0, le=1, description="share of a fresh answer in fedasync's next model")
    buffer: int = Field(3, ge=1, description="answers that make a round of fedbuff")
    staleness: Staleness = Staleness()
    veil: VeilOptions = VeilOptions()
    trust: TrustOptions = TrustOptions()
    xfed: XFedOptions = XFedOptions()
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="settings of a method of your own"
    )

    @field_validator("select", "weigh", "robust", "staleness", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @field_validator("trust", mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        return {"preset": value} if isinstance(value, str) else value

    @field_validator("cohorts", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return {"count": value} if isinstance(value, bool | int | float | str) else value
