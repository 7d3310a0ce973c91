"""The form of a task and of a report: the kind of data that it discloses, its class under a privacy budget, its part in a run.

The table of tasks and reports (`protocol.tasks`) is written in these words. A site's policy goes by the kind of a report
and refuses a report of unknown kind. The accountant goes by its class and its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NOTHING = "nothing of patients: keys, masks, signatures, yes or no"
COUNT = "how many rows the site has"
MODEL = "what this site alone learnt, from which facts about its patients can be guessed"
SUM = "sums over the site's patients"
CELLS = "patients counted in cells: of few patients they show each"
FIGURE = "one figure over the site's rows"
REASONS = "how much features count, as shares"
SUMMARY = "means, spreads, quantiles and category counts of every column"
WORDS = "sentences that may name a rare category"
VOTES = "which features the site proposes"

KINDS = (NOTHING, COUNT, MODEL, SUM, CELLS, FIGURE, REASONS, SUMMARY, WORDS, VOTES)
"""Every kind of disclosure, in the words that a hospital's people read."""

SUMMABLE = (MODEL, SUM, CELLS, VOTES)
"""Kinds that leave under masks only, where a site allows secure sums alone."""

CHARGED, PUBLIC, REFUSED, EMPTY, UNCOVERED = "charged", "public", "refused", "empty", "not covered"

CLASSES = {
    CHARGED: "has noise, and the accountant is charged for it before it is asked for",
    PUBLIC: "tells nothing of patients",
    REFUSED: "is refused: by the plan before the run starts, and by the site",
    EMPTY: "leaves without a value: sites treat these rows as if there were none",
    UNCOVERED: "leaves as it is, and the privacy statement lists it under `not covered`",
}
"""Every class of a release, and its meaning while privacy.epsilon is set."""

ROW_COUNTS = "number of rows of each site"
TEST_ROWS = "metrics on test rows, which have no noise"
PREPARATION = "summaries of training rows"
"""Beginnings of sentences of the privacy statement (`experiment.checks.privacy.not_covered`)."""

NO_COST, TRAINING_COST, MODEL_COST, ROWS_COST, OWN_COST, UNKNOWN_COST = (
    "no patient has a part in it",
    "training: by its noise and steps",
    "made of the model that was trained before",
    "as it is: each report discloses the rows that it names",
    "by a reader of its own in keeper/accounting",
    "not known: all rows, without noise",
)
"""Rules by which the site's accountant finds the privacy cost of an Ask."""

REQUIRED, OFFERED = "required", "offered"
"""Tasks of set-up: a run cannot do without the answer of a site; or a site may refuse."""

SUMMARY_CELLS, TALLY_CELLS, SKETCH_CELLS = "summary", "tally", "sketch"
"""Rules by which counts of few patients are removed from a report before it leaves."""


@dataclass(frozen=True)
class Release:
    """A report of a task, or a file of the run folder, while privacy.epsilon is set.

    Attributes:
        kind: Its class, one of `CLASSES`.
        tells: The data in it.
        why: The account that it is charged to, the reason why it is public, the setting that refuses it, or the line of the
            privacy statement that lists it.
    """

    kind: str
    tells: str
    why: str


def charged(tells: str, why: str) -> Release:
    """Make a release that has noise and is charged to the budget."""
    return Release(CHARGED, tells, why)


def public(tells: str, why: str = "made of no patient's data") -> Release:
    """Make a release that discloses nothing of patients."""
    return Release(PUBLIC, tells, why)


def refused(tells: str, why: str) -> Release:
    """Make a release that is refused under a budget."""
    return Release(REFUSED, tells, why)


def empty(tells: str, why: str) -> Release:
    """Make a release that leaves without a value under a budget."""
    return Release(EMPTY, tells, why)


def uncovered(tells: str, listed: str) -> Release:
    """Make a release that leaves as it is; `listed` begins a sentence of the privacy statement."""
    return Release(UNCOVERED, tells, f'listed as "{listed}"')


@dataclass(frozen=True)
class ReportSpec:
    """A report that a task may be answered with.

    Attributes:
        name: The report, as an Ask names it; its columns are called `name` or `name.part`.
        kind: The kind of disclosure, one of `KINDS`.
        release: Its class while privacy.epsilon is set, and the reason.
        account: The words of the accountant for it, where the accountant goes by rows or by the model.
        rows: Parts of the site's rows that it is computed from (train, val, test), besides those that made the model.
        omits_withheld: The site leaves withheld parts out of it.
        of_model: It is computed from the model that the same Ask trains, so a private model covers it.
        is_raw: It discloses training or validation rows without noise, however it is asked for.
        is_masked: It is added up under masks where privacy.secure is set.
        cells: Rule for counts of few patients in it; "" where it has no counts.
        hidden: (part, column) pairs: the column is blank where the part has few rows. A name that ends in a dot stands for
            all columns that begin with it.
        nan_columns: Columns that may be no number, such as the AUROC of patients of one class.
        is_claim: Weights follow from a site's statement about itself, so a number beyond its range is refused.
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
        """A site that allows secure sums alone sends it under masks only."""
        return self.kind in SUMMABLE


@dataclass(frozen=True)
class TaskSpec:
    """A task that a site can be asked for. The defaults are those of a task that nobody has declared.

    Attributes:
        name: The task, as an Ask names it.
        reports: Its reports by name, in the order in which they are asked for.
        asked_by: The runs or settings that ask for it, for the people of a hospital.
        cost: Rule by which the accountant finds its privacy cost, one of the `..._COST` words.
        noised_by: Settings of the Ask of which one above zero says that the site adds noise.
        setup: `REQUIRED` or `OFFERED` for a task of set-up, which a keeper that starts again repeats for itself.
        is_repeatable: A server that resumes a run asks for it again in round 0.
        is_round_work: Rounds are made of it: a site that is asked takes part in the round, and may drop out of it.
        is_training: It trains a model on the site's rows.
        is_learning: It needs `cells.fewest_rows` training rows of the site's policy.
        is_sum_step: It is a step of a secure sum.
        is_late: A site that drops out of it is in the sum already.
        may_fail: All sites may leave it unanswered; the method decides what follows.
        is_counted: Its bytes and messages are part of the cost of a run.
        is_payload: Its arrays are part of the payload of a round.
        per_round: Questions of it in one round.
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
        """Every report of it discloses training or validation rows without noise."""
        return bool(self.reports) and all(r.is_raw for r in self.reports.values())
