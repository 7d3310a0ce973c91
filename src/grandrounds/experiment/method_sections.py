"""The section [method] of an experiment and its parts: who takes part, how answers are weighed, what stands bad ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from grandrounds.core.errors import BadInput
from grandrounds.experiment.section import ROUNDS, OwnCode, Section
from grandrounds.methods.weigh import checked


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


class Veil(Section):
    """Method 'veil': sites propose features or sums of clipped scores, never a model."""

    selection: Literal["auto", "score", "select_then_fit", "moments", "paper", "strongly_convex", "non_expansive"] = (
        Field(
            "auto",
            description="`rounds list proposals`; auto: select_then_fit with privacy.secure, else score; 'paper' is not private",
        )
    )
    k: int = Field(4, ge=1, description="proposals of a site in a round")
    votes: Literal["net", "quorum"] = Field(
        "net", description="how proposals become a step: net votes, or the paper's quorum and mean sign"
    )
    weight: Literal["root", "uniform"] = Field(
        "root", description="how a site's votes count: by the root of its rows, which it says with noise, or alike"
    )
    prior: float | None = Field(
        None, gt=0, lt=1, description="share of patients with the event, as published; not set: asked, with noise"
    )
    claims: float | None = Field(
        None, gt=0, description="the epsilon that 'paper' is printed with, over all rounds; no budget: it keeps none"
    )
    asking: float = Field(0.05, gt=0, lt=1, description="share of the budget for rows and events, where they are asked")
    quorum: float = Field(
        0.1, ge=0, le=1, description="share of the sites that must propose a feature (tau), for 'quorum'"
    )
    step: float = Field(2.0, gt=0, description="length of the server's step (eta_g)")
    decay: bool = Field(True, description="steps shrink as 2 / (t + 2)")
    value: float | None = Field(
        None,
        gt=0,
        description="standardised values are clipped to this on either side; not set: 1, and 1.5 for 'moments'",
    )
    features: int = Field(
        20,
        ge=0,
        description="features the model ends with ('score': the strongest after half of the rounds); 0, and for 'paper': all",
    )
    stages: int | None = Field(
        None,
        ge=1,
        description="times that 'select_then_fit' selects some and fits; not set: 5, or a third of the rounds if that is fewer",
    )
    norm: float | None = Field(
        None, gt=0, description="longest vector of one patient in a sum (R); not set: 3, and 6 for 'moments'"
    )
    lr: float = Field(4.0, gt=0, description="learning rate of the steps of 'select_then_fit'")
    selecting: float = Field(0.25, gt=0, lt=1, description="share of the budget for selecting, where steps follow")
    outcome: float = Field(2.0, gt=0, description="how much the outcome's part of 'moments' counts, in units of norm")
    l2: float = Field(1.0, gt=0, description="of 'strongly_convex'")
    percentiles: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the budget for noised percentiles on patients' pages, of the columns that weigh most; 0: none",
    )


PRESETS: dict[str, dict[str, Any]] = {
    "default": {"alpha": 0.5, "beta": 0.3, "gamma": 0.2, "form": "exponential", "signed": False},
    "printed": {"alpha": 0.5, "beta": 0.3, "gamma": 0.2, "form": "printed", "signed": False, "accuracy_at": "site"},
    "robust": {"alpha": 0.89, "beta": 0.07, "gamma": 0.04, "form": "exponential", "signed": True},
}
"""What [method.trust] means by a preset, where a setting is not given."""


class Trust(Section):
    """Method 'fedxchain': what trust is made of, and how it becomes a weight; `trust = "robust"` is short for its preset."""

    preset: Literal["default", "printed", "robust"] = Field(
        "default",
        description="what the settings below are where they are not set; 'printed': the paper's; 'robust': accuracy decides, and "
        "reasons that point the other way have no weight",
    )
    alpha: float | None = Field(None, ge=0, le=1, description="share of accuracy in trust; not set: 0.5, robust 0.89")
    beta: float | None = Field(
        None, ge=0, le=1, description="share of agreement with the consortium's reasons, exp(-NSDS); 0.3, robust 0.07"
    )
    gamma: float | None = Field(None, ge=0, le=1, description="share of consistency; 0.2, robust 0.04")
    tau: float = Field(0.5, ge=0, description="how strongly NSDS lowers a weight")
    kappa: float = Field(0.0, ge=0, le=1, description="power of a site's rows in its weight; 1 lets large sites win")
    form: Literal["exponential", "printed"] | None = Field(
        None, description="exp(-tau NSDS), or eq. 8 as printed, 1 - tau NSDS but at least 0; not set: by the preset"
    )
    signed: bool | None = Field(
        None,
        description="whether SHAP values that point the other way are no agreement and have no weight; not set: preset",
    )
    accuracy_at: Literal["auto", "reference", "site"] = Field(
        "auto",
        description="where accuracy is measured: on reference rows, by the server (with privacy.secure by the site itself), or "
        "on a site's own validation rows; auto: reference where there are labelled rows for it",
    )
    explained: Literal["auto", "own", "reference"] = Field(
        "auto",
        description="whose rows sites are explained on: their own training rows, or reference rows, by the server; auto: own, "
        "and reference while privacy.epsilon is set",
    )
    explainer: Literal["auto", "shap", "integrated_gradients"] = Field(
        "auto", description="auto: shap for tables, integrated_gradients for pictures"
    )
    rows: int = Field(200, ge=2, description="most rows that a site explains itself on")
    top: int = Field(
        0, ge=0, description="features that are told apart after the first round, all others as one; 0: all"
    )
    window: int = Field(3, ge=2, description="rounds whose accuracies consistency goes by")
    alarm: float = Field(1.0, gt=0, description="NSDS above which a site is named in the Decision (tau_max)")
    rewards: bool = Field(
        True, description="work out each site's contribution and reward, where there are labelled reference rows"
    )
    reasons: bool = Field(
        False,
        description="multiply weights by how far a site's sketch is in line with the others' (SSE-AGG; [method.weigh])",
    )

    @model_validator(mode="after")
    def _filled(self) -> Trust:
        given = [self.alpha, self.beta, self.gamma]
        if any(v is not None for v in given):
            if None in given:
                raise ValueError("alpha, beta and gamma are shares of one trust: give all three")
            if abs(sum(v for v in given if v is not None) - 1) > 1e-6:
                raise ValueError("alpha, beta and gamma must sum to 1, so that trust is between 0 and 1")
        return self

    def resolved(self) -> Trust:
        """With what the preset means said."""
        meant = PRESETS[self.preset]
        unset = {
            n: v
            for n, v in meant.items()
            if getattr(self, n) is None or (n == "accuracy_at" and self.accuracy_at == "auto")
        }
        return self.model_copy(update=unset)


class Xfed(Section):
    """Method 'xfed': who sends a model is chosen by how right it is on scoring pictures, and for which reasons."""

    keep: float = Field(0.9, gt=0, le=1, description="share of the sites that send their model; at least one does not")
    xai_share: float = Field(0.2, ge=0, le=1, description="share of reasons in the score; 0: accuracy alone (XFed-a)")
    score: Literal["grid", "masks"] = Field(
        "grid", description="reasons by scenes of four pictures (the warmest cell is the right one), or by truth masks"
    )
    measure: Literal["accuracy", "cross-entropy"] = Field("accuracy", description="what else is in the score")
    form: Literal["mass", "pixels", "nonzero"] = Field(
        "mass", description="how heat inside and outside of a mask is held against each other; 'nonzero': as printed"
    )
    top: float = Field(0.25, gt=0, lt=1, description="share of pixels that are hot, for form 'pixels'")
    grid: int = Field(2, ge=0, le=5, description="cells on a side of a scene; 0: no scenes")
    until: int = Field(0, ge=0, description="last round with a choice; 0: all rounds")
    weights: Literal["rows", "rank"] = Field("rows", description="how those that are kept are averaged")
    score_at: Literal["site", "server"] = Field(
        "site", description="server: it scores the models that it is sent as well, and names sites that said more"
    )
    tolerance: float = Field(0.05, ge=0, description="by how much that may differ")
    steps: int = Field(5, ge=1, description="points on a path of integrated gradients")
    samples: int = Field(5, ge=1, description="noisy copies of a picture (SmoothGrad)")
    sigma: float = Field(0.5, ge=0, description="their noise, in a pixel's standard deviations")


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
    contrast: float = Field(1.0, ge=0, description="strength of MOON's contrastive loss")
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
    hold: float = Field(
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
    veil: Veil = Veil()
    trust: Trust = Trust()
    xfed: Xfed = Xfed()
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
