"""Define the section [method]: client selection, weighting, robust aggregation, local regularization, server optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, field_validator, model_validator

from grandrounds.core.capability import collect, load
from grandrounds.core.errors import BadInput
from grandrounds.core.section import ROUNDS, OwnCode, Section
from grandrounds.methods.fedxchain.options import TrustOptions
from grandrounds.methods.sse_agg.printed import check_lambdas
from grandrounds.methods.veil.options import VeilOptions
from grandrounds.methods.xfed.options import XFedOptions


class Select(Section):
    """Client selection. `select = "random"` is short for its rule."""

    rule: Literal["all", "random", "loss", "power-of-choice"] = Field(
        "all", description="client selection (`rounds list selection`); asynchronous methods support all and random"
    )
    fraction: float = Field(0.5, gt=0, le=1, description="share of the sites per round, for rules other than 'all'")
    candidates: float = Field(
        0.8, gt=0, le=1, description="share of the sites from which 'power-of-choice' requests the loss"
    )


class Robust(Section):
    """Robust aggregation against outlying updates. `robust = "krum"` is short for its rule."""

    rule: Literal[
        "none", "krum", "multi-krum", "median", "trimmed-mean", "geometric-median", "fltrust", "foolsgold", "clip"
    ] = Field("none", description="robust aggregation rule (`rounds list robust`)")
    attackers: int = Field(1, ge=0, description="malicious sites to tolerate, for krum and multi-krum")
    keep: int = Field(0, ge=0, description="updates that multi-krum averages; 0: as many as its proof allows")
    trim: float = Field(0.1, ge=0, lt=0.5, description="share of sites that trimmed-mean cuts off at each end")
    norm: float = Field(0.0, ge=0, description="norm to which 'clip' cuts updates; 0: their median norm")
    guard: float = Field(
        0.0,
        ge=0,
        description="clip updates to this many times the median norm of the round, with any rule; 0: never; `rounds run --table` "
        "sets 10",
    )


class Weigh(Section):
    """Aggregation weights. `weigh = "uniform"` is short for its rule. All other settings are for 'explanations'."""

    rule: Literal["auto", "data_size", "uniform", "distance", "reference_accuracy", "explanations", "trust"] = Field(
        "auto",
        description="aggregation weights (`rounds list weighing`); auto: explanations for 'sse-agg', trust for 'fedxchain', else "
        "data_size; 'fedxchain' with another rule computes trust without using it",
    )
    explanation_weight: float | None = Field(
        None,
        ge=0,
        le=1,
        description="weight e of explanation agreement, 1 - e of data size; 0 is FedAvg; short for lambdas; not set: 1",
    )
    lambdas: dict[str, float] = Field(
        default_factory=dict,
        description="weights of the signals, with sum 1: { data = 0.5, agreement = 0.5, worst_site = 0, calibration = 0 }",
    )
    form: Literal["outlier", "inverse", "exponential"] = Field(
        "outlier",
        description="score of agreement. 'outlier': share of rows, reduced for sites with outlying explanations; 'inverse': the "
        "paper's 1 / (eps + distance); 'exponential': exp(-tau distance)",
    )
    sharpness: float | None = Field(
        None, ge=0, description="exponent of agreement; not set: 4 for 'outlier', 1 for 'inverse'"
    )
    eps: float = Field(
        0.01,
        gt=0,
        le=2,
        description="distance of explanations that does not matter, the epsilon of the paper's eq. 5 (form 'inverse'): a site at "
        "the consensus counts at most (2 + eps) / eps times as much as the furthest possible",
    )
    tolerance: float = Field(
        1.5,
        gt=0,
        description="distance, in units of the third quartile of sites, above which explanations are outlying (form 'outlier')",
    )
    memory: float = Field(
        0.5, ge=0, lt=1, description="weight of earlier rounds in a site's distance (form 'outlier')"
    )
    least_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="smallest share of its data-size weight that a site with outlying explanations keeps, unless the model is "
        "worse with it on labelled reference rows (form 'outlier'); not set: 0.5, and 0 with method.preset 'defence'",
    )
    own_halves: bool | None = Field(
        None,
        description="confirm harm before a site is demoted: it trains on each half of its patients, and is demoted only if the "
        "model is worse with both (form 'outlier'); not set: true, and false with privacy.mechanism or privacy.secure",
    )
    tau: float = Field(5.0, ge=0, description="rate of form 'exponential'")
    beta: float = Field(1.0, ge=0, description="sensitivity of signal worst_site to the validation loss")
    gamma: float = Field(5.0, ge=0, description="sensitivity of signal calibration to the calibration error")
    floor: float = Field(
        0.0, ge=0, lt=1, description="smallest weight of a site (w_min), before normalisation"
    )
    every: int = Field(1, ge=1, description="request explanations every this many rounds (T_s)")
    between_rounds: Literal["last", "data_size"] = Field(
        "last", description="weights in rounds without explanations: by the last known agreement, or by data size (paper)"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Weigh:
        if self.lambdas and self.explanation_weight is not None:
            raise ValueError("explanation_weight and lambdas are both set: explanation_weight is short for lambdas, remove one")
        if self.lambdas:
            try:
                check_lambdas(self.lambdas)
            except BadInput as e:
                raise ValueError(str(e)) from None
        return self


class Cohorts(Section):
    """Clusters of sites with similar updates (k-means). Explanations are compared within. `cohorts = 2` is short for count."""

    count: int | Literal["auto"] = Field(
        1, description="number of cohorts; 1: none; auto: by silhouette score, up to `most`"
    )
    most: int = Field(5, ge=2, description="largest number of cohorts for count 'auto'")
    models: Literal["combined", "separate"] = Field(
        "combined", description="'combined': one global model; 'separate': one model per cohort, with fixed sites"
    )
    consensus: Literal["cohort", "global"] = Field(
        "cohort", description="mean sketch that a site is compared with: its cohort's, or the global one (Algorithm 1 as printed)"
    )
    weight: Literal["weights", "sites", "rows"] = Field(
        "weights", description="weight of a cohort: sum of its sites' weights, number of sites (eq. 11), or number of rows"
    )
    start: int = Field(1, ge=1, description="first round with cohorts")

    @field_validator("count", mode="before")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{value!r} is not a number of cohorts: use 1 or more, or 'auto'")
        return value


class ServerStep(Section):
    """Server optimizer of fedopt, fedadam, fedyogi, fedadagrad, fedrmsprop and fedavgm; learning rate of fedbuff."""

    rule: Literal["adam", "yogi", "adagrad", "rmsprop"] = Field("adam", description="server optimizer of method 'fedopt'")
    lr: float | None = Field(None, gt=0, description="server learning rate; not set: 0.01, and 1 for fedavgm and fedbuff")
    momentum: float = Field(0.9, ge=0, lt=1, description="server momentum of fedavgm")
    beta1: float | None = Field(None, ge=0, lt=1, description="decay of mean updates; not set: 0.9 (adagrad, rmsprop: 0)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of squared updates")
    tau: float = Field(1e-3, gt=0, description="added to the square root of the squared updates")
    v0: float | None = Field(None, ge=0, description="initial squared updates; not set: tau squared")
    bias_correction: bool = Field(False, description="bias correction of Adam in the first rounds, as in Flower")


class Staleness(Section):
    """Discount of stale updates in asynchronous methods. `staleness = "hinge"` is short for its rule."""

    rule: Literal["constant", "polynomial", "hinge"] = Field("polynomial", description="discount (`rounds list staleness`)")
    a: float = Field(0.5, ge=0, description="rate of the discount")
    b: int = Field(4, ge=0, description="rounds without discount, for 'hinge'")


class KernelMethod(Section):
    """Settings of [method] that no capability adds."""

    name: Annotated[str, OwnCode] = Field(
        "fedavg", description="method (`rounds list methods`), or your own: 'package.module:Class'"
    )
    preset: Literal["default", "drift", "defence"] = Field(
        "default",
        description="defaults of 'sse-agg'. 'drift': strong local regularization, which can hide a malicious site; 'defence': a "
        "site with outlying explanations may lose all of its weight",
    )
    rounds: int = Field(20, ge=1, le=ROUNDS, description="training rounds")
    select: Select = Select()
    weigh: Weigh = Weigh()
    cohorts: Cohorts = Cohorts()
    robust: Robust = Robust()
    stability: Literal[
        "auto", "none", "proximal", "scaffold", "moon", "anchor", "permuted_anchor", "anchored_scaffold", "alignment"
    ] = Field(
        "auto",
        description="local regularization (`rounds list stability`); auto: none; for 'sse-agg' permuted_anchor if reference rows "
        "are sent; with preset 'drift' and optimizer 'sgd' anchored_scaffold (scaffold without sent rows)",
    )
    reference: str | None = Field(
        None, description="the [reference.NAME] rows that the server uses; not set: the only one"
    )
    mu: float = Field(0.01, ge=0, description="strength of FedProx's proximal term")
    moon_mu: float = Field(1.0, ge=0, description="strength of MOON's contrastive loss")
    temperature: float = Field(0.5, gt=0, description="temperature of MOON's contrastive loss")
    anchor: float | None = Field(
        None,
        ge=0,
        description="strength of stability 'anchor' and 'permuted_anchor'; not set: 3 (accuracy falls from 10 on), and 40 with "
        "adam and adamw",
    )
    anchor_rows: str | None = Field(
        None,
        description="the [reference.NAME] rows sent to sites for the anchor; not set: 'anchor', or the only set that is sent",
    )
    anchor_gain: float = Field(
        20.0,
        ge=0,
        description="strength of the anchor in 'anchored_scaffold', times the fourth power of the model's uncertainty",
    )
    alignment: float = Field(0.3, ge=0, description="strength of stability 'alignment', which reduces accuracy at any value")
    server: ServerStep = ServerStep()
    clusters: int = Field(2, ge=1, le=10_000, description="number of models of method 'clustered'")
    mixing: float = Field(0.6, gt=0, le=1, description="weight of a new update in fedasync's next model")
    buffer: int = Field(3, ge=1, description="updates per round of fedbuff")
    staleness: Staleness = Staleness()
    veil: VeilOptions = VeilOptions()
    trust: TrustOptions = TrustOptions()
    xfed: XFedOptions = XFedOptions()

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


def _capability_sections() -> dict[str, Any]:
    """Return the sections below [method] of all capabilities as fields of pydantic, in the order in which they are listed."""
    order: list[str] = []
    sections = collect("method_options")
    waiting = dict(sections)
    while waiting:
        ready = [name for name, s in waiting.items() if not s.after or s.after in order] or list(waiting)
        for name in ready:
            after = waiting.pop(name).after
            order.insert(order.index(after) + 1 if after in order else len(order), name)
    kinds = {name: load(sections[name].section) for name in order}
    return {name: (kind, kind()) for name, kind in kinds.items()}


if TYPE_CHECKING:
    MethodSections = KernelMethod
else:
    MethodSections = create_model("MethodSections", __base__=KernelMethod, **_capability_sections())


class Method(MethodSections):
    """Federated method and its parts."""

    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="settings of your own method"
    )
