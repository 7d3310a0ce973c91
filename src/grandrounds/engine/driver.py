"""Drive a method's generator: number Asks, check answers, count cost.

An engine defines how answers are obtained (`_blocks`, `_send`, `_receive`). The checks are the same for all: refusals, values
that are not finite and impossible claims exclude a site with a reason, and a round needs enough sites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.engine.claims import doubt
from grandrounds.engine.cost import Meter, arrays_of_answers, arrays_of_ask, size_of_ask
from grandrounds.engine.faults import IMPOSSIBLE, NOT_FINITE, Faults, finite_rows, possible_rows
from grandrounds.methods.secure import SecureRule, with_secure_totals
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import KEEP, UPLOAD, Answers, Arrival, Ask, AskId, Receive, Send
from grandrounds.protocol.tasks import ERROR, EVALUATE, SCORE, STORE, TALLIES, spec_of

if TYPE_CHECKING:
    from grandrounds.site.plugin import SitePlugin

Result = TypeVar("Result")
_CODE_LENGTH = 20
"""Characters of a refusal's code that are read."""

_TOO_MANY = "(too-many-numbers)"
"""Reason of a site whose policy does not allow so many sums (`exact.most_ratio`)."""


class EngineState(TypedDict, total=False):
    """State of an engine in a checkpoint, besides arrays."""

    clock: float
    accepted: dict[str, int]
    sent: int
    flights: list[Any]  # sites, or time, order, site and loss of each pending Ask


@dataclass(frozen=True)
class EngineSettings:
    """The experiment's [engine] section, as the engine needs it."""

    run: str
    seed: int
    wire: bool = False
    kernel: str = "auto"
    device: str = "auto"
    precision: str = "float32"
    workers: int = 1
    chunk: int = 0
    min_sites: int = 1
    deadline: float | None = None
    faults: Faults = field(default_factory=Faults)
    largest_weight: float = 1.0
    withheld_splits: tuple[str, ...] = ()
    plugins: tuple[type[SitePlugin], ...] = ()  # site halves of the plan, which hosts of a simulation build


class Engine(ABC):
    """Drive generators. `asked` and `missing` are the sites of the last round."""

    def __init__(self, sites: tuple[str, ...], settings: EngineSettings) -> None:
        self.settings = settings
        self.sites = sites
        self.meter = Meter()
        self.clock = 0.0
        self.asked: dict[str, None] = {}
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []  # deviations from the plan since the last committed round
        self.agreed: dict[str, dict[str, int]] = {}  # rows of each part, as real sites reported them at set-up
        self.secure: SecureRule | None = None  # computes totals under secure aggregation
        self._accepted: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._round = 0
        self._step = 0
        self._counts = False  # the last round does, so that its Decision has the notes

    @property
    def round(self) -> int:
        """Number of the last round."""
        return self._round

    @property
    @abstractmethod
    def layout(self) -> ParameterLayout | None:
        """Layout of a model's parameters; None before sites have prepared."""

    @abstractmethod
    def _blocks(self, ask: Ask, sites: tuple[str, ...]) -> Iterator[Answers]:
        """Yield the answers of these sites in this order, some at a time; sites that do not answer are missing."""

    @abstractmethod
    def _send(self, ask: Ask) -> None:
        """Send an Ask to each of its sites."""

    @abstractmethod
    def _receive(self) -> Arrival:
        """Return the next answer to Asks that were sent."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return the engine's arrays, for a checkpoint."""

    @abstractmethod
    def state(self) -> EngineState:
        """Return the rest of the engine's state, for a checkpoint."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, Array], state: EngineState) -> None:
        """Continue from a checkpoint."""

    def _absent(self, ask: Ask, sites: tuple[str, ...]) -> dict[str, str]:
        """Find sites that are known not to answer, with the reason."""
        return {}

    def _elapsed(self, ask: Ask, answers: Answers) -> float:
        """Return the seconds by which these answers advance the clock."""
        return 0.0

    def drive(self, work: Generator[Any, Any, Result], *, round: int) -> Result:
        """Run a generator to its end, answering its Asks."""
        if round != self._round:
            self._round, self._step = round, 0
            self.asked, self.missing = {}, {}
            if self._counts:
                self.notes, self._counts = [], False
        if self.secure is not None:
            work = with_secure_totals(work, self.secure)
        return self._run(work, None)

    def piggyback(self, work: Generator[Any, Any, Result], on_result: Callable[[Result], None]) -> None:
        """Run work that nothing waits for: at once, or with the next messages if each exchange takes seconds.

        Args:
            work: A generator of one Ask.
            on_result: Called with the generator's result.
        """
        on_result(self.drive(work, round=self._round))

    def flush(self) -> int:
        """Run all deferred work now, and return its amount."""
        return 0

    def _run(self, work: Generator[Any, Any, Result], reply: Any) -> Result:
        while True:
            try:
                effect = work.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(effect, Send):
                self._send(effect.ask)
                reply = None
            elif isinstance(effect, Receive):
                reply = self._receive()
            else:
                reply = self._ask(effect)

    def agree_rows(self, rows: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Store the row counts of set-up, which later answers must match; a site without valid counts is excluded from the run.

        Args:
            rows: By site, its rows of each part.

        Returns:
            A warning for each site that takes no part.
        """
        self.agreed = {site: dict(counts) for site, counts in rows.items()}
        excluded = [site for site in self.sites if site not in rows]
        self.sites = tuple(site for site in self.sites if site in rows)
        return [f"{site} takes no part: {self.missing.get(site, 'it reported no row counts')}" for site in excluded]

    def commit(self) -> None:
        """Commit the round: sites whose answers were used may commit their state."""
        self._accepted |= self._answered
        self._answered = {}
        self._counts = True

    def _number(self, ask: Ask) -> Ask:
        """Return the Ask with its id, its sites, and the round that each of them may commit."""
        id = AskId(self.settings.run, self._round, self._step)
        self._step += 1
        sites = self.sites if ask.to is None else ask.to
        latest = max(self._accepted.values(), default=0)
        behind = {s: self._accepted.get(s, 0) for s in sites if self._accepted.get(s, 0) != latest}
        each = {**ask.each, **{s: {**ask.each.get(s, {}), "committed": r} for s, r in behind.items()}}
        deadline = self.settings.deadline if ask.deadline is None else ask.deadline
        shared = {**ask.shared, "committed": latest}
        return replace(ask, shared=shared, each=each, to=sites, deadline=deadline, id=id)

    def _ask(self, ask: Ask) -> Answers:
        ask = self._number(ask)
        sites, spec = ask.to or (), spec_of(ask.task)
        if spec.is_round_work:
            self.asked |= dict.fromkeys(sites)
        absent = self._absent(ask, sites)
        answers = self._answers(ask, tuple(s for s in sites if s not in absent))
        answers.id = ask.id
        answers.missing |= absent
        if not spec.is_late:  # a site that leaves this late is in the sum
            self.missing |= answers.missing
        self._count(ask, answers)
        if (spec.is_training or ask.task in (UPLOAD, STORE)) and not ask.shared.get(
            KEEP
        ):  # a stored model takes part once it is sent
            self._answered |= dict.fromkeys(answers.sites, self._round)
        if spec.is_round_work:
            self.clock += self._elapsed(ask, answers)
        for site in () if spec.is_late else answers.missing:
            self._answered.pop(site, None)
        return answers

    def _count(self, ask: Ask, answers: Answers) -> None:
        """Count the bytes of an exchange, and check that enough sites took part."""
        if spec_of(ask.task).is_counted:
            self.meter.count_asks(counted_as(ask), sum(size_of_ask(ask, self.layout).values()), len(ask.to or ()))
            self.meter.count_payload(counted_as(ask), arrays_of_ask(ask), arrays_of_answers(answers))
        self._check_enough(ask, answers)

    def _check_enough(self, ask: Ask, answers: Answers) -> None:
        spec = spec_of(ask.task)
        need = self.settings.min_sites if spec.is_round_work else int(not spec.may_fail)
        if ask.task == UPLOAD:  # fewer may have been selected
            need = min(self.settings.min_sites, len(ask.to or ()))
        if len(answers) < need:
            if len(answers.missing) == len(ask.to or ()) and set(answers.missing.values()) == {NOT_FINITE}:
                raise RunFailed(
                    f"round {self._round}: training diverged at every site: lower train.lr (or data.clip outliers)",
                    code="training-diverged",
                )
            if any(_TOO_MANY in why for why in answers.missing.values()):
                raise RunFailed(_describe_numbers(ask, answers, self._round), code="too-many-numbers")
            who = ", ".join(f"{s} ({why})" for s, why in sorted(answers.missing.items()))
            raise RunFailed(
                f"round {self._round}: only {len(answers)} of {len(ask.to or ())} sites answered, "
                f"engine.min_sites is {need}; missing: {who}",
                code="too-few-sites",
                settings=(f"engine.min_sites={len(answers)}",) if len(answers) else (),
            )

    def _answers(self, ask: Ask, sites: tuple[str, ...]) -> Answers:
        """Get the valid answers of these sites."""
        return self._join((self._validated(ask, block) for block in self._blocks(ask, sites)), len(sites))

    def _join(self, blocks: Iterable[Answers], max_sites: int) -> Answers:
        """Join blocks of answers, of at most this many sites."""
        listed = list(blocks)
        return Answers.join(listed) if listed else Answers((), {})

    def _validated(self, ask: Ask, block: Answers) -> Answers:
        """Return a block of answers without refusals and invalid values, summed if only the sum is needed."""
        block = _without_refusals(block)
        for check, why in ((finite_rows, NOT_FINITE), (possible_rows, IMPOSSIBLE)):
            good = check(block)
            if not good.all():
                block = block.only(np.flatnonzero(good), {block.sites[k]: why for k in np.flatnonzero(~good)})
        doubted = doubt(ask, block, self.agreed)
        if doubted:
            valid = [k for k in range(len(block)) if k not in doubted]
            block = block.only(valid, {block.sites[k]: why for k, why in doubted.items()})
        return block.summed(ask.summed) if ask.summed else block


def _describe_numbers(ask: Ask, answers: Answers, round: int) -> str:
    """Describe that sites do not send so many sums."""
    sites = sorted(site for site, why in answers.missing.items() if _TOO_MANY in why)
    sent = f"at least {int(ask.shared['foreseen']):,} numbers" if "foreseen" in ask.shared else "more numbers"
    masked = "sums" in ask.withheld
    key, usual = ("exact.most_ratio", 1) if masked else ("exact.most_ratio_clear", 0.33)
    who = ", ".join(sites[:5]) + (" and others" if len(sites) > 5 else "")
    return (
        f"exchange {round}: {who} refused, because this fit sends {sent} "
        f"from {int(ask.shared.get('rows', 0)):,} rows and {key} of their policy allows fewer for each number held (default "
        f"{usual}): keep fewer columns, choose a smaller fit, or ask the sites for a larger {key}"
    )


def counted_as(ask: Ask) -> str:
    """Return the task that an Ask's bytes count for: secure sums of tallies, and scores of several models, are evaluation."""
    sums_tallies = spec_of(ask.task).is_sum_step and str(ask.shared["tag"]).startswith(TALLIES)
    return EVALUATE if sums_tallies or (ask.task == SCORE and "parts" in ask.shared) else ask.task


def _without_refusals(answers: Answers) -> Answers:
    """Remove the answers of sites that answered with the code of a refusal."""
    if ERROR not in answers:
        return answers
    codes = [str(code)[:_CODE_LENGTH] for code in answers[ERROR]]
    refused = {site: f"refused ({code})" for site, code in zip(answers.sites, codes, strict=True) if code}
    return answers.only([k for k, code in enumerate(codes) if not code], refused) if refused else answers
