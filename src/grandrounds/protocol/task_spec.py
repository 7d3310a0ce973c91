"""Specification of tasks and reports: kind of disclosure, class under a privacy budget, and role in a run.

`protocol.tasks` declares all tasks and reports with these classes. A site's policy uses the kind of a report and refuses
unknown kinds. The accountant uses its class and its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NOTHING = "nothing about patients: keys, masks, signatures, yes or no"
COUNT = "number of rows at the site"
MODEL = "the site's own model, from which facts about its patients can be inferred"
SUM = "sums over the site's patients"
CELLS = "patients counted in cells; small groups show single patients"
FIGURE = "one metric over the site's rows"
REASONS = "feature attributions, as shares"
SUMMARY = "means, standard deviations, quantiles and category counts of every column"
WORDS = "notes that may name a rare category"
VOTES = "features that the site proposes"

KINDS = (NOTHING, COUNT, MODEL, SUM, CELLS, FIGURE, REASONS, SUMMARY, WORDS, VOTES)
"""Every kind of disclosure, as hospital staff read it."""

SUMMABLE = (MODEL, SUM, CELLS, VOTES)
"""Kinds that leave by secure aggregation only, if the site's policy sets `secure.only`."""

CHARGED, PUBLIC, REFUSED, EMPTY, UNCOVERED = "charged", "public", "refused", "empty", "not covered"

CLASSES = {
    CHARGED: "has noise; the accountant is charged before the site is asked",
    PUBLIC: "discloses nothing about patients",
    REFUSED: "refused by the plan before the run starts, and by the site",
    EMPTY: "sent without values: the site treats these rows as absent",
    UNCOVERED: "sent as it is; the privacy statement lists it under `not covered`",
}
"""Every class of a release, and its meaning while privacy.epsilon is set."""

ROW_COUNTS = "number of rows of each site"
TEST_ROWS = "metrics on test rows, which have no noise"
PREPARATION = "summaries of training rows"
"""Beginnings of sentences of the privacy statement (`experiment.checks.privacy.not_covered`)."""

NO_COST, TRAINING_COST, MODEL_COST, ROWS_COST, OWN_COST, UNKNOWN_COST = (
    "uses no patient's data",
    "training: by its noise and steps",
    "computed from the model that was trained before",
    "no noise: each report discloses the rows that it names",
    "computed by a reader of its own",
    "unknown: all rows, without noise",
)
"""Rules for the privacy cost of an Ask, used by the site's accountant."""

REQUIRED, OFFERED = "required", "offered"
"""Setup tasks: every site must answer (`REQUIRED`), or a site may refuse (`OFFERED`)."""

SUMMARY_CELLS, TALLY_CELLS, SKETCH_CELLS = "summary", "tally", "sketch"
"""Rules for removing counts of few patients from a report before it leaves."""


@dataclass(frozen=True)
class Release:
    """Release of a report, or of a file of the run folder, while privacy.epsilon is set.

    Attributes:
        kind: Its class, one of `CLASSES`.
        tells: The data in it.
        why: The account that is charged, the cause why it is public, the setting that is refused, or the line of the
            privacy statement that lists it.
    """

    kind: str
    tells: str
    why: str


def charged(tells: str, why: str) -> Release:
    """Make a release that has noise and is charged to the budget."""
    return Release(CHARGED, tells, why)


def public(tells: str, why: str = "made of no patient's data") -> Release:
    """Make a release that discloses nothing about patients."""
    return Release(PUBLIC, tells, why)


def refused(tells: str, why: str) -> Release:
    """Make a release that is refused under a budget."""
    return Release(REFUSED, tells, why)


def empty(tells: str, why: str) -> Release:
    """Make a release that leaves without a value under a budget."""
    return Release(EMPTY, tells, why)


def uncovered(tells: str, listed: str) -> Release:
    """Make a release that is sent as it is; `listed` begins a sentence of the privacy statement."""
    return Release(UNCOVERED, tells, f'listed as "{listed}"')


@dataclass(frozen=True)
class ReportSpec:
    """Specification of a report that a task may be answered with.

    Attributes:
        name: Name of the report, as in an Ask; its columns are called `name` or `name.part`.
        kind: Kind of disclosure, one of `KINDS`.
        release: Class while privacy.epsilon is set.
        account: Name of the release in the site budget, if the accountant charges by rows or by the model.
        rows: Splits of the site's rows that it is computed from (train, val, test), besides those that trained the model.
        omits_withheld: The site leaves withheld splits out of it.
        of_model: It is computed from the model that the same Ask trains, so a private model covers it.
        is_raw: It discloses training or validation rows without noise, however it is requested.
        is_masked: It is summed by secure aggregation if privacy.secure is set.
        cells: Rule for counts of few patients; "" if it has no counts.
        hidden: (split, column) pairs: the column is blank if the split has few rows. A name that ends in a dot means all
            columns with this prefix.
        nan_columns: Columns that may be NaN, such as the AUROC of patients of one class.
        is_claim: Weights follow from this self-reported value, so a number out of range is refused.
        is_ragged: Its shape differs between sites.
    """

    name: str
    kind: str
    release: Release
    account: str = ""
    rows: tuple[str, ...] = ()
    omits_withheld: bool = False
    of_model: bool = False
    is_raw: bool = False
    is_masked: bool = False
    cells: str = ""
    hidden: tuple[tuple[str, str], ...] = ()
    nan_columns: tuple[str, ...] = ()
    is_claim: bool = False
    is_ragged: bool = False

    @property
    def is_summable(self) -> bool:
        """True for a report that a site with `secure.only` sends by secure aggregation only."""
        return self.kind in SUMMABLE


def by_name(*specs: ReportSpec) -> dict[str, ReportSpec]:
    """Index reports by name."""
    return {spec.name: spec for spec in specs}


@dataclass(frozen=True)
class TaskSpec:
    """Specification of a task that a site can be asked for. The defaults are those of an undeclared task.

    Attributes:
        name: Name of the task, as in an Ask.
        reports: Reports by name, in the order in which they are requested.
        asked_by: Runs or settings that ask for it, for hospital staff.
        cost: Rule for its privacy cost, one of the `..._COST` texts.
        noised_by: Settings of the Ask; if one is above zero the site adds noise.
        setup: `REQUIRED` or `OFFERED` for a setup task, which a restarted keeper repeats for itself.
        is_repeatable: A server that resumes a run asks for it again in round 0.
        is_round_work: Rounds consist of it: a site that is asked takes part in the round, and may drop out of it.
        is_training: It trains a model on the site's rows.
        is_learning: It requires `cells.fewest_rows` training rows of the site's policy.
        is_sum_step: It is a step of a secure sum.
        is_late: A site that drops out of it is already in the sum.
        may_fail: All sites may leave it unanswered; the method decides how to continue.
        is_counted: Its bytes and messages are part of the cost of a run.
        is_payload: Its arrays are part of the payload of a round.
        per_round: Number of requests in one round.
        chosen_once: Settings of the Ask that a server may choose once in a run.
    """

    name: str
    reports: Mapping[str, ReportSpec] = field(default_factory=dict)
    asked_by: str = ""
    cost: str = UNKNOWN_COST
    noised_by: tuple[str, ...] = ()
    setup: str = ""
    is_repeatable: bool = False
    is_round_work: bool = False
    is_training: bool = False
    is_learning: bool = False
    is_sum_step: bool = False
    is_late: bool = False
    may_fail: bool = False
    is_counted: bool = True
    is_payload: bool = False
    per_round: int = 1
    chosen_once: tuple[str, ...] = ()

    @property
    def is_raw(self) -> bool:
        """True if every report discloses training or validation rows without noise."""
        return bool(self.reports) and all(r.is_raw for r in self.reports.values())
