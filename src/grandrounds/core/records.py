"""The records of a run as typed values: the summary, one record a round, and the Decision of a round.

Each is a frozen dataclass that is also the JSON object it was read from: `summary.final["auroc"]` and
`summary["final"]["auroc"]` are the same number, and `json.dumps(summary)` writes the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self

from grandrounds.core.errors import BadInput

Scores = Mapping[str, float | None]
"""Scores by name; None where a score is not defined, such as the AUROC of patients of one class."""

Part = Mapping[str, Any]
"""A part of a record as it is in its file; docs/run-folder.md lists the keys."""


class Record(dict[str, Any]):
    """Base of the records: a dataclass that is also the JSON object of its fields."""

    def __post_init__(self) -> None:
        dict.update(self, {f.name: getattr(self, f.name) for f in fields(self)})  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Read a record.

        Args:
            values: The JSON object. Keys of another version are kept.
            where: The file it is from, for the error.

        Raises:
            BadInput: It is not an object, or lacks a key that every version writes.
        """
        place = where or f"a {cls.__name__}"
        if not isinstance(values, Mapping):
            raise BadInput(
                f"{place} is damaged: it is not a JSON object; run the experiment again", code="damaged-record"
            )
        known_fields = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]  # every record is a dataclass
        for name, f in known_fields.items():
            if name not in values and f.default is MISSING and f.default_factory is MISSING:
                raise BadInput(
                    f"{place} is damaged: it lacks '{name}'; run the experiment again", code="damaged-record"
                )
        read = {name: cls._read(name, value) for name, value in values.items()}
        record = cls(**{name: value for name, value in read.items() if name in known_fields})
        dict.clear(record)
        dict.update(record, read)
        return record

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        """Read the value of one key; records that hold records override it."""
        return value

    def to_dict(self) -> dict[str, Any]:
        """Write the record as a plain JSON object, with its keys in the order they were read in."""
        return {name: _plain(value) for name, value in self.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    records = isinstance(value, tuple | list) and any(isinstance(v, Record) for v in value)
    return [_plain(v) for v in value] if records else value


@dataclass(frozen=True, eq=False)
class Stage(Record):
    """Contribution of one part of a method to a round: its explanation as text, and the weights of sites after it."""

    part: str  # select, cohorts, weigh, robust, stability
    why: str
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Decision(Record):
    """The decision of a method in one round. The engine adds which sites were asked or missing, and the cost.

    Attributes:
        signals: The value of each signal at each site.
        weights: The weight of each site in the aggregate.
        why: The rule that set the weights, as text.
        shares: The part of each site's weight that each signal argued for; parts of a site add up to its weight.
        stages: The contribution of each part of the method, in order.
        cohorts: The groups of sites, where sites are grouped.
        reasons: The consortium's feature attributions, where sites are regularised towards them.
        round: The round, from 1.
        asked: The sites that were asked.
        missing: The sites that did not answer, with the reason.
        cost: Bytes, messages and seconds.
        privacy: Releases of the round and epsilon so far.
        notes: Sentences for people.
    """

    signals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stages: Sequence[Stage] = ()
    cohorts: Part = field(default_factory=dict)
    reasons: Mapping[str, float] = field(default_factory=dict)
    round: int = 0
    asked: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    privacy: Part = field(default_factory=dict)
    notes: Sequence[str] = ()

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        return [Stage.from_dict(stage) for stage in value] if name == "stages" else value

    @property
    def has_trust(self) -> bool:
        """True if the round recorded FedXChain's trust. FLTrust and FoolsGold have a signal "trust" too, but no NSDS."""
        return "trust" in self.signals and "nsds" in self.signals

    def recorded(self, **facts: Any) -> Decision:
        """Return this decision with the facts of the engine.

        Args:
            **facts: Fields that the engine knows: round, asked, missing, cost, privacy, notes.
        """
        return replace(self, **facts)


@dataclass(frozen=True, eq=False)
class RoundRecord(Record):
    """The record of one round, as in round_logs.json.

    Attributes:
        round: The round, from 1.
        decision: The method's Decision.
        virtual_seconds: The simulated time at the end of the round.
        val: Scores on the validation rows of all sites; None in a round without evaluation.
        test: Scores on the test rows of all sites; None in a round without evaluation.
        sites: Scores of each site: score, then site.
        explanation: Drift of explanations: by model ("training", "deployed"), then measure.
        reasons: Scores of the model's heat maps against masks, where the experiment asks for them.
        maps: Stored heat maps, where the experiment asks for them.
        local: Scores of local models, where the experiment asks for them.
        ledger: Hashes for the ledger; in the journal of a run only.
    """

    round: int
    decision: Decision
    virtual_seconds: float = 0.0
    val: Scores | None = None
    test: Scores | None = None
    sites: Mapping[str, Scores] = field(default_factory=dict)
    explanation: Mapping[str, Part] = field(default_factory=dict)
    reasons: Part = field(default_factory=dict)
    maps: Part = field(default_factory=dict)
    local: Part = field(default_factory=dict)
    ledger: Part = field(default_factory=dict)

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        return Decision.from_dict(value) if name == "decision" else value


@dataclass(frozen=True, eq=False)
class RunSummary(Record):
    """The summary of a finished run, as in summary.json (docs/run-folder.md describes every key).

    Attributes:
        name: The experiment's name.
        method: The method's name.
        model: The model's name.
        data: The data set, or the file name of a table.
        seed: The seed.
        sites: Number of sites ("all") and of training sites ("training").
        final: Scores of the final model on the test rows of all sites.
        per_site: Scores of the final model at each site.
        rows: Rows of each site by use: train, val, test.
        privacy: The privacy statement: mechanism, epsilon, unit, releases.
        rounds: Rounds that were run.
        cost: Bytes, messages, seconds and memory.
        task: The type of the outcome: "classification", "regression", "count" or "survival".
        outcome: Of other tasks than classification: label, follow-up time, event and units of training.
    """

    name: str
    method: str
    model: str
    data: str
    seed: int
    sites: Mapping[str, int]
    final: Scores
    per_site: Mapping[str, Scores]
    rows: Mapping[str, Mapping[str, int]]
    privacy: Part
    rounds: int
    cost: Mapping[str, float]
    schema: int = 1
    threshold: float | None = 0.5
    validation: Scores = field(default_factory=dict)
    training: Scores = field(default_factory=dict)
    generalisation_gap: Scores = field(default_factory=dict)
    worst_site: Part | None = None
    below_majority: Sequence[Part] = ()
    subgroups: Mapping[str, Scores] = field(default_factory=dict)
    fairness: Part = field(default_factory=dict)
    decision_curve: Mapping[str, Sequence[float]] = field(default_factory=dict)
    reliability: Part = field(default_factory=dict)
    score_counts: Part = field(default_factory=dict)
    tasks: Mapping[str, Part] = field(default_factory=dict)
    attacks: Part = field(default_factory=dict)
    finetuned: Part = field(default_factory=dict)
    personal: Part = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    shortcut: Part = field(default_factory=dict)
    stopped: str = ""
    temperature: float | None = None
    platt: Sequence[float] | None = None
    parameters: int = 0
    inputs: Sequence[int] = ()
    classes: Sequence[str] = ()
    task: str = "classification"
    outcome: Part = field(default_factory=dict)
    event: Part | None = None
    warnings: Sequence[str] = ()
    assumed: Sequence[str] = ()
    notes: Part = field(default_factory=dict)
    reference: Mapping[str, str] = field(default_factory=dict)
    explanation: Part = field(default_factory=dict)
    cohorts: Part = field(default_factory=dict)
    trust: Part = field(default_factory=dict)
    demoted: Mapping[str, Part] = field(default_factory=dict)
    method_numbers: Part = field(default_factory=dict)
    local: Part = field(default_factory=dict)
    reasons: Part = field(default_factory=dict)
    maps: Part = field(default_factory=dict)
    withdrawal: Part = field(default_factory=dict)
    environment: Part = field(default_factory=dict)

    @property
    def is_tested(self) -> bool:
        """True where the final model was scored on test rows, which a fit of a statistic has not."""
        return bool(self.final.get("count"))
