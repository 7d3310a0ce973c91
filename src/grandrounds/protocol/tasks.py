"""The table of tasks and reports: every task that a site can be asked for, and every report that it may answer with.

A task of the kernel is declared here, one of a capability in its manifest (`core.capability.SiteTask`), and nowhere else. The
site's policy, its accountant, its rule for small cells, the releases under a privacy budget, the cost of a run, setup and the
requests that a plan declares look it up:

    spec_of("calibrate").reports["losses"].kind     # a sum over the site's patients
    spec_of(ask.task).is_counted                    # of any task; for an unknown one the most cautious value
    report_of("evaluate", "test.count")             # by a column of an answer
    specs()                                         # all of them

A task that is not in the table is refused at every hospital.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from grandrounds.core.capability import collect, load
from grandrounds.protocol.messages import UPLOAD
from grandrounds.protocol.task_spec import (
    CELLS,
    COUNT,
    FIGURE,
    MODEL,
    MODEL_COST,
    NO_COST,
    NOTHING,
    OFFERED,
    OWN_COST,
    PREPARATION,
    REQUIRED,
    ROW_COUNTS,
    ROWS_COST,
    SKETCH_CELLS,
    SUM,
    SUMMARY,
    SUMMARY_CELLS,
    TALLY_CELLS,
    TEST_ROWS,
    TRAINING_COST,
    VOTES,
    WORDS,
    Release,
    ReportSpec,
    TaskSpec,
    by_name,
    charged,
    empty,
    public,
    refused,
    uncovered,
)
from grandrounds.protocol.task_spec import REASONS as SHARES

HELLO, OPEN, CLOSE = "hello", "open", "close"
SUMMARISE, PREPARE, LEND = "summarise", "prepare", "lend"
TRAIN, FINETUNE = "train", "finetune"
EVALUATE, SCORE, CALIBRATE, PLATT = "evaluate", "score", "calibrate", "platt"
EXPLAIN, MAPS, WITNESS = "explain", "maps", "witness"
DIVERGE, WEIGHTS, CONTRIBUTE = "trust.diverge", "trust.weights", "trust.contribute"
CENSUS, PROPOSE, SCORES, MOMENTS = "veil.census", "veil.propose", "veil.scores", "veil.moments"
PERCENTILES = "veil.percentiles"
STATISTIC, STORE = "statistic", "statistic.store"
PERSONAL, PERSONAL_SPREAD, PERSONAL_HARM = "personal", "personal.spread", "personal.harm"
INTRODUCE, MEET = "secagg.introduce", "secagg.meet"
KEYS, MASK_SHARES, MASKED = "secagg.keys", "secagg.shares", "secagg.masked"
SIGN, UNMASK = "secagg.sign", "secagg.unmask"

ERROR = "error"
"""Report with the code of a refusal; empty if the site took part."""

MODELS, TALLIES, REASONS, STATISTICS = "models", "tallies", "reasons", "statistics"
"""Purposes of a secure sum: the first word of its tag."""


_BY_MODEL = "DP-SGD: `models of the sites`; client level: `mean update`, with the noise in the sum"
_WITH_MODEL = "charged with the model of DP-SGD, on reference rows only; refused at client level and on own patients"
_SUM_STEP = "a step of a secure sum: keys, shares of masks, signatures"
_WITHHELD = "the site counts no withheld rows"
_LEARNT = "a model trained without noise"
_FIGURES = "figures of a model"

_REFUSAL = ReportSpec(ERROR, NOTHING, public("code of a refusal", "a fixed word"))


def _nothing(name: str, tells: str, why: str = "made of no patient's data", *, is_ragged: bool = False) -> ReportSpec:
    """Declare a report that discloses nothing of patients."""
    return ReportSpec(name, NOTHING, public(tells, why), is_ragged=is_ragged)


def _trust(release: Release, *, of_model: bool = False) -> ReportSpec:
    """Declare FedXChain's figures of a local model."""
    return ReportSpec(
        "trust", FIGURE, release, of_model=of_model, account=_LEARNT, nan_columns=("trust",), is_claim=True
    )


_TASKS = (
    TaskSpec(HELLO, is_counted=False),
    TaskSpec(OPEN, setup=REQUIRED, is_counted=False),
    TaskSpec(CLOSE, is_counted=False),
    TaskSpec(
        SUMMARISE,
        by_name(
            ReportSpec(
                "summary", SUMMARY,
                uncovered("column by column: means, deviations, quantiles, category counts", PREPARATION),
                account="a summary of training rows", rows=("train",), is_raw=True, cells=SUMMARY_CELLS, is_ragged=True,
            ),
        ),
        asked_by="before round 1, where `data.encoding = \"fitted\"`",
        cost=ROWS_COST, is_repeatable=True, is_learning=True, per_round=2, chosen_once=("low", "high"),
    ),
    TaskSpec(
        PREPARE,
        by_name(
            ReportSpec("train_rows", COUNT, uncovered("number of training rows", ROW_COUNTS)),
            ReportSpec("val_rows", COUNT, uncovered("number of validation rows", ROW_COUNTS)),
            ReportSpec("test_rows", COUNT, uncovered("number of test rows", ROW_COUNTS)),
            ReportSpec(
                "notes", WORDS,
                refused("sentences on rows, which may name a rare category", "not asked for under a budget"),
                account="notes on rows", rows=("train", "val", "test"), is_raw=True, is_ragged=True,
            ),
            ReportSpec(
                "centre", SUMMARY,
                refused("mean training row", "`explain.sketch` and `method.trust` that start from the mean patient"),
                account="the mean of training rows", rows=("train",), is_raw=True,
            ),
        ),
        asked_by="every run",
        cost=OWN_COST, setup=REQUIRED, chosen_once=("encoding",),
    ),
    TaskSpec(
        LEND,
        by_name(_nothing("held", "number of reference rows that arrived", is_ragged=True)),
        asked_by="methods with reference rows (anchors, XFed, FedXChain)",
        cost=NO_COST, setup=OFFERED,
    ),
    TaskSpec(
        TRAIN,
        by_name(
            ReportSpec(
                "model", MODEL, charged("trained model", _BY_MODEL), account=_LEARNT, of_model=True, is_masked=True
            ),
            ReportSpec(
                "update", MODEL, charged("trained model minus the one sent", _BY_MODEL),
                account=_LEARNT, of_model=True, is_masked=True,
            ),
            ReportSpec(
                "variate", MODEL,
                charged("SCAFFOLD's control variate", "computed from DP-SGD's noisy steps; refused at client level"),
                account=_LEARNT, of_model=True, is_masked=True,
            ),
            ReportSpec("count", COUNT, uncovered("number of training rows", ROW_COUNTS)),
            ReportSpec("steps", COUNT, uncovered("number of steps", ROW_COUNTS)),
            ReportSpec(
                ERROR, NOTHING, uncovered("code of a site with fewer rows than privacy.min_rows", ROW_COUNTS)
            ),
            ReportSpec(
                "val_loss", FIGURE, refused("loss on validation rows", "`method.weigh.lambdas` with worst_site"),
                account="figures of validation rows", rows=("val",), is_raw=True,
                hidden=(("val", "val_loss"),), nan_columns=("val_loss",),
            ),
            ReportSpec(
                "ece", FIGURE,
                refused("calibration error on validation rows", "`method.weigh.lambdas` with calibration"),
                account="figures of validation rows", rows=("val",), is_raw=True,
                hidden=(("val", "ece"),), nan_columns=("ece",),
            ),
            ReportSpec(
                "local", FIGURE, refused("metrics of the local model on its own rows", "`evaluation.local_models`"),
                account="how right the site's own model is on its rows", rows=("train", "test"), omits_withheld=True,
                is_raw=True, hidden=(("test", "local.test_accuracy"),), nan_columns=("local",),
            ),
            ReportSpec(
                "reasons", SHARES, refused("sketch of the local model for alignment", "stability `aligned`"),
                account=_LEARNT, of_model=True, is_raw=True,
            ),
            _trust(charged("FedXChain's metrics of the local model", _WITH_MODEL), of_model=True),
            ReportSpec(
                "sketch", SHARES, charged("sketch of the local model", _WITH_MODEL),
                account=_LEARNT, of_model=True, cells=SKETCH_CELLS,
            ),
            ReportSpec(
                "shap", SHARES, charged("attributions of the local model", _WITH_MODEL),
                account=_LEARNT, of_model=True, is_masked=True, is_claim=True,
            ),
            ReportSpec(
                "rationale", FIGURE, charged("attention of the local model on reference images", _WITH_MODEL),
                account=_LEARNT, of_model=True, nan_columns=("rationale.xai", "rationale.grid"), is_claim=True,
            ),
        ),
        asked_by="every round, except with VEIL",
        cost=TRAINING_COST, is_round_work=True, is_training=True, is_learning=True, is_payload=True,
    ),
    TaskSpec(
        FINETUNE,
        by_name(
            ReportSpec(
                "model", MODEL, refused("model fine-tuned on the site's own rows", "`train.finetune`"),
                account=_LEARNT, of_model=True,
            )
        ),
        asked_by="`train.finetune`",
        cost=TRAINING_COST, is_training=True, is_learning=True,
    ),
    TaskSpec(
        UPLOAD,
        by_name(
            ReportSpec(
                "model", MODEL,
                charged("local model that the site stored", "when DP-SGD trained it; method `xfed` is refused"),
            )
        ),
        asked_by="XFed",
        cost=MODEL_COST, is_payload=True,
    ),
    TaskSpec(
        EVALUATE,
        by_name(
            ReportSpec(
                "train", CELLS, empty("score counts of training rows", _WITHHELD),
                account=_FIGURES, rows=("train",), omits_withheld=True, is_masked=True, cells=TALLY_CELLS,
            ),
            ReportSpec(
                "val", CELLS, empty("score counts of validation rows", _WITHHELD),
                account=_FIGURES, rows=("val",), omits_withheld=True, is_masked=True, cells=TALLY_CELLS,
            ),
            ReportSpec(
                "test", CELLS, uncovered("score counts of test rows", TEST_ROWS),
                account=_FIGURES, rows=("test",), omits_withheld=True, is_masked=True, cells=TALLY_CELLS,
            ),
            ReportSpec(
                "test_clean", CELLS, uncovered("score counts of test images without patches", TEST_ROWS),
                account=_FIGURES, rows=("test_clean",), omits_withheld=True, is_masked=True, cells=TALLY_CELLS,
            ),
            ReportSpec(
                "test_groups", CELLS, uncovered("score counts of test rows by group of each column", TEST_ROWS),
                account=_FIGURES, rows=("test",), omits_withheld=True, is_masked=True, cells=TALLY_CELLS,
            ),
            ReportSpec(
                "val_groups", CELLS, refused("score counts of validation rows by group", "`evaluation.mitigation`"),
                account=_FIGURES, rows=("val",), omits_withheld=True, is_masked=True, cells=TALLY_CELLS,
            ),
            ReportSpec(
                "figures", FIGURE, uncovered("metrics of test rows", TEST_ROWS),
                account=_FIGURES, rows=("test",), omits_withheld=True,
                hidden=(("test", "figures.test."),), nan_columns=("figures",),
            ),
        ),
        asked_by="every run",
        cost=ROWS_COST, per_round=3,
    ),
    TaskSpec(
        SCORE,
        by_name(
            ReportSpec(
                "loss", FIGURE, refused("loss of a model on training rows", "`method.select` by loss"), is_raw=True
            ),
            ReportSpec(
                "losses", FIGURE, refused("losses of several models on training rows", "method `clustered`"), is_raw=True
            ),
            ReportSpec(
                "accuracy", FIGURE, refused("accuracy of a model on training rows", "`method.select` by loss"), is_raw=True
            ),
            ReportSpec(
                "accuracies", FIGURE, refused("accuracies of several models on training rows", "method `clustered`"),
                is_raw=True,
            ),
            ReportSpec(
                "lent", FIGURE,
                refused("accuracy of other sites' models on own rows", "`evaluation.local_models = \"crossed\"`"),
                is_raw=True, hidden=(("test", "lent.test"),), nan_columns=("lent",),
            ),
        ),
        asked_by="selection by loss, clustered, `evaluation.local_models = \"crossed\"`",
        cost=OWN_COST, per_round=3,
    ),
    TaskSpec(
        CALIBRATE,
        by_name(
            ReportSpec(
                "losses", SUM, refused("losses of validation rows", "`evaluation.calibrate = \"temperature\"`"),
                account="losses at temperatures", rows=("val",), is_raw=True, is_masked=True, hidden=(("val", "losses"),),
            )
        ),
        asked_by="`evaluation.calibrate = \"temperature\"`",
        cost=ROWS_COST,
    ),
    TaskSpec(
        PLATT,
        by_name(
            ReportSpec(
                "sums", SUM,
                refused("sums over validation rows", "replaced by `counts` under a budget"),
                is_raw=True, is_masked=True, hidden=(("val", "sums."),),
            ),
            ReportSpec(
                "counts", CELLS,
                charged("validation scores counted in cells", "once for each model that is calibrated"), is_masked=True,
            ),
        ),
        asked_by="`evaluation.calibrate = \"platt\"`",
        cost=OWN_COST, noised_by=("epsilon",), per_round=20,
    ),
    TaskSpec(
        EXPLAIN,
        by_name(
            ReportSpec(
                "sketch", SHARES,
                refused("explanation of the model in use for own patients", "`explain.at`; not asked for under a budget"),
                account="explanations on own patients", rows=("train", "val", "test"), is_raw=True, cells=SKETCH_CELLS,
            )
        ),
        asked_by="`explain.sketch`",
        cost=ROWS_COST,
    ),
    TaskSpec(
        MAPS,
        by_name(
            ReportSpec(
                "maps", FIGURE, refused("heat map statistics of own images", "`explain.maps`"),
                is_raw=True, nan_columns=("maps",),
            )
        ),
        asked_by="`explain.maps`",
        cost=OWN_COST,
    ),
    TaskSpec(
        WITNESS,
        by_name(
            _nothing("signature", "countersignature of the ledger"),
            _nothing("have", "number of entries that the site countersigned"),
            _nothing("refused", "code of a refusal to countersign"),
        ),
        asked_by="the ledger, every round",
        cost=NO_COST, is_repeatable=True, is_counted=False,
    ),
    TaskSpec(
        DIVERGE,
        by_name(_trust(charged("distance of the local model's attributions from their mean", _WITH_MODEL))),
        asked_by="FedXChain with secure aggregation",
        cost=MODEL_COST,
    ),
    TaskSpec(
        WEIGHTS,
        by_name(_nothing("agreed", "acceptance of the weights: yes or no", "follows from earlier reports"), _REFUSAL),
        asked_by="FedXChain",
        cost=NO_COST, may_fail=True,
    ),
    TaskSpec(
        CONTRIBUTE,
        by_name(_trust(charged("loss of the model without this site's contribution", _WITH_MODEL))),
        asked_by="FedXChain with secure aggregation",
        cost=MODEL_COST, is_late=True, may_fail=True,
    ),
    TaskSpec(
        CENSUS,
        by_name(ReportSpec("census", SUM, charged("rows and events", "VEIL: `rows and events`"), is_masked=True)),
        asked_by="VEIL",
        cost=OWN_COST, noised_by=("noise", "epsilon"), is_learning=True, is_payload=True,
    ),
    TaskSpec(
        PROPOSE,
        by_name(ReportSpec("votes", VOTES, charged("features with a sign", "VEIL: `proposals of features with a sign`"))),
        asked_by="VEIL, votes",
        cost=OWN_COST, noised_by=("epsilon",), is_round_work=True, is_learning=True, is_payload=True,
    ),
    TaskSpec(
        SCORES,
        by_name(
            ReportSpec("scores", SUM, charged("sums of clipped scores", "VEIL: `sums of clipped scores`"), is_masked=True)
        ),
        asked_by="VEIL, sums",
        cost=OWN_COST, noised_by=("noise", "epsilon"), is_round_work=True, is_learning=True, is_payload=True,
    ),
    TaskSpec(
        MOMENTS,
        by_name(
            ReportSpec("moments", SUM, charged("sums of second moments", "VEIL: `sums of second moments`"), is_masked=True)
        ),
        asked_by="VEIL, moments",
        cost=OWN_COST, noised_by=("noise", "epsilon"), is_round_work=True, is_learning=True, is_payload=True,
    ),
    TaskSpec(
        PERCENTILES,
        by_name(
            ReportSpec(
                "cells", CELLS, charged("patients counted in agreed cells", "VEIL: a share of its budget"), is_masked=True
            )
        ),
        asked_by="VEIL, `method.veil.percentiles`",
        cost=OWN_COST, noised_by=("noise", "epsilon"), is_learning=True, is_late=True, may_fail=True, is_payload=True,
    ),
    TaskSpec(
        STATISTIC,
        by_name(
            ReportSpec(
                "sums", SUM,
                refused("sums over training rows that a regression, trees, a card, a survival curve or a table needs",
                        "methods `glm`, `cox`, `trees`, `card`, `table1` and `survival`: they have no DP accounting; model `gam` "
                        "has noisy counts instead (`gam.counts`)"),
                account="sums of a statistic", rows=("train",), is_raw=True, is_masked=True,
            ),
        ),
        asked_by="`glm`, `cox`, `gam`, `trees`, `card`, `table1`, `survival`",
        cost=ROWS_COST, is_round_work=True, is_learning=True, is_payload=True,
    ),
    TaskSpec(
        STORE,
        by_name(_nothing("stored", "yes: the site computed its own intercept or its own shapes, which stay there")),
        asked_by="`glm`, own intercepts; `gam`, own shapes",
        cost=NO_COST, may_fail=True,
    ),
    TaskSpec(
        PERSONAL_SPREAD,
        by_name(
            ReportSpec(
                "sums", SUM,
                refused("gain in likelihood from intercepts of sites", "`personal.spread` is a fixed number under a budget"),
                account="sums of a statistic", rows=("train", "val"), is_raw=True, is_masked=True,
            ),
        ),
        asked_by="`personal.part`, `personal.guard`",
        cost=ROWS_COST, is_learning=True, may_fail=True,
    ),
    TaskSpec(
        PERSONAL,
        by_name(
            _nothing("fitted", "yes: the site fitted its personal model, which stays there"),
            ReportSpec(
                "choice", FIGURE, refused("name of the model that the guard chose", "choices stay at the sites under a budget"),
                account="choice of the guard", rows=("train", "val"), is_raw=True,
            ),
            ReportSpec(
                ERROR, NOTHING, refused("code of a site that could not fit its personal model", "not asked for under a budget"),
                account="choice of the guard", rows=("train", "val"), is_raw=True,
            ),
        ),
        asked_by="`personal.part`, `personal.guard`",
        cost=ROWS_COST, is_learning=True, may_fail=True,
    ),
    TaskSpec(
        PERSONAL_HARM,
        by_name(
            ReportSpec(
                "harmed", FIGURE,
                refused("yes or no: the deployed model is clearly worse than the site's own", "stays at sites under a budget"),
                account="choice of the guard", rows=("train", "test"), is_raw=True,
                hidden=(("test", "harmed"),), nan_columns=("harmed",),
            ),
        ),
        asked_by="`personal.guard`",
        cost=ROWS_COST, may_fail=True, per_round=200,
    ),
    TaskSpec(
        INTRODUCE,
        by_name(_nothing("identity", "public key of the site")),
        asked_by="secure sums",
        cost=NO_COST, setup=REQUIRED,
    ),
    TaskSpec(
        MEET,
        by_name(_nothing("met", "yes or no", _SUM_STEP)),
        asked_by="secure sums",
        cost=NO_COST, setup=OFFERED,
    ),
    TaskSpec(
        KEYS,
        by_name(_nothing("keys", "public keys of one sum", _SUM_STEP), _REFUSAL),
        asked_by="secure sums",
        cost=NO_COST, is_sum_step=True, may_fail=True, is_payload=True,
    ),
    TaskSpec(
        MASK_SHARES,
        by_name(_nothing("sealed", "sealed shares of masks", _SUM_STEP), _REFUSAL),
        asked_by="secure sums",
        cost=NO_COST, is_sum_step=True, may_fail=True, is_payload=True,
    ),
    TaskSpec(
        MASKED,
        by_name(
            ReportSpec(
                "masked", NOTHING,
                charged("masked values; the server sees their sum", "as the summed values, with their noise"),
            ),
            _nothing("unreadable", "sites whose shares could not be read", _SUM_STEP),
            _REFUSAL,
        ),
        asked_by="secure sums",
        cost=OWN_COST, noised_by=("noise",), is_sum_step=True, may_fail=True, is_payload=True,
    ),
    TaskSpec(
        SIGN,
        by_name(_nothing("signature", "signature of the survivors", _SUM_STEP), _REFUSAL),
        asked_by="secure sums",
        cost=NO_COST, is_sum_step=True, is_late=True, may_fail=True, is_payload=True,
    ),
    TaskSpec(
        UNMASK,
        by_name(
            _nothing("owners", "owners of the shares", _SUM_STEP),
            _nothing("shares", "shares of masks", _SUM_STEP),
            _REFUSAL,
        ),
        asked_by="secure sums",
        cost=NO_COST, is_sum_step=True, is_late=True, may_fail=True, is_payload=True,
    ),
)  # fmt: skip

_KERNEL = {spec.name: spec for spec in _TASKS}

SUM_STEPS: Mapping[str, tuple[str, ...]] = {t.name: tuple(t.reports) for t in _TASKS if t.is_sum_step}
"""Steps of a secure sum in order, with the reports of each."""


@cache
def specs() -> dict[str, TaskSpec]:
    """Return every task by name: those of the kernel, then those of capabilities.

    Raises:
        ValueError: A capability declares a task of the kernel anew.
    """
    others = collect("tasks")
    if both := sorted(set(_KERNEL) & set(others)):
        raise ValueError(f"a capability declares task '{both[0]}', which the kernel has")
    return _KERNEL | {name: load(task.spec) for name, task in others.items()}


def spec_of(task: str) -> TaskSpec:
    """Look up a task.

    Args:
        task: Name, as in an Ask.

    Returns:
        Its specification. An undeclared task has no report and unknown cost.
    """
    return _KERNEL.get(task) or specs().get(task) or TaskSpec(task)


def report_of(task: str, report: str) -> ReportSpec | None:
    """Look up a report of a task.

    Args:
        task: Name of the task, as in an Ask.
        report: Name of the report, or a column of an answer ("test.count" belongs to report "test").

    Returns:
        Its specification; None if it is not declared. No site answers with an undeclared report.
    """
    return spec_of(task).reports.get(report.split(".")[0])


def named_like(column: str) -> tuple[ReportSpec, ...]:
    """Find the reports of all tasks to which a column of an answer may belong, if its task is unknown."""
    name = column.split(".")[0]
    return tuple(spec.reports[name] for spec in specs().values() if name in spec.reports)


def may_be_nan(column: str) -> bool:
    """Return True for a column that may be NaN, such as a figure of no patients."""
    names = {column, column.split(".")[0]}
    return any(names & set(report.nan_columns) for report in named_like(column))
