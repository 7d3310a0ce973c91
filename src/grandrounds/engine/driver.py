"""What every engine does with a method's generator, wherever its sites are: number Asks, look at answers, keep count.

An engine says how answers are got (`_blocks`, `_send`, `_receive`). What is believed of them is the same for all: refusals
and values that are no numbers, or cannot be, leave a site out with a reason, and a round needs enough sites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.engine.claims import doubt
from grandrounds.engine.cost import Meter, arrays_of_answers, arrays_of_ask, size_of_ask
from grandrounds.engine.faults import IMPOSSIBLE, NOT_FINITE, Faults, finite_rows, possible_rows
from grandrounds.methods.secure import SecureRule, with_secure_totals
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import KEEP, UPLOAD, Answers, Arrival, Ask, AskId, Receive, Send
from grandrounds.protocol.tasks import ERROR, EVALUATE, SCORE, TALLIES, spec_of

Result = TypeVar("Result")
_CODE = 20
"""Characters of a refusal's code; what a site sends beyond is no code."""


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
    untold: tuple[str, ...] = ()


class Engine(ABC):
    """Drives generators. `asked` and `missing` tell who took part in the round that was driven last."""

    def __init__(self, sites: tuple[str, ...], settings: EngineSettings) -> None:
        self.settings = settings
        self.sites = sites
        self.meter = Meter()
        self.clock = 0.0
        self.asked: dict[str, None] = {}
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []  # what went otherwise than planned since the last round that counts
        self.agreed: dict[str, dict[str, int]] = {}  # rows of each part, as real sites told them at set-up
        self.secure: SecureRule | None = None  # how totals are added up where no single answer may be seen
        self._accepted: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._round = 0
        self._step = 0
        self._counts = False  # whether the round that was driven last does, so that its Decision has the notes

    @property
    def round(self) -> int:
        """The round that was driven last."""
        return self._round

    @property
    @abstractmethod
    def layout(self) -> ParameterLayout | None:
        """How a model's parameters lie side by side; None before sites have prepared."""

    @abstractmethod
    def _blocks(self, ask: Ask, to: tuple[str, ...]) -> Iterator[Answers]:
        """The answers of these sites as they came, in this order, some at a time; who does not answer is missing."""

    @abstractmethod
    def _send(self, ask: Ask) -> None:
        """Put an Ask on its way to each site."""

    @abstractmethod
    def _receive(self) -> Arrival:
        """The next answer to what was sent."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """For a checkpoint: what the engine holds in arrays."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """For a checkpoint: the rest."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
        """Take up where a checkpoint left off."""

    def _absent(self, ask: Ask, to: tuple[str, ...]) -> dict[str, str]:
        """Sites that will not answer, and why, where that is known before they are asked."""
        return {}

    def _took(self, ask: Ask, answers: Answers) -> float:
        """Seconds by which these answers move the clock."""
        return 0.0

    def drive(self, work: Generator[Any, Any, Result], *, round: int) -> Result:
        """Run a generator to its end, answering whatever it yields."""
        if round != self._round:
            self._round, self._step = round, 0
            self.asked, self.missing = {}, {}
            if self._counts:
                self.notes, self._counts = [], False
        if self.secure is not None:
            work = with_secure_totals(work, self.secure)
        return self._driven(work, None)

    def along(self, work: Generator[Any, Any, Result], then: Callable[[Result], None]) -> None:
        """Drive this too, and say what came of it: at once, or with the next letters where each exchange takes seconds."""
        then(self.drive(work, round=self._round))

    def flush(self) -> int:
        """Have all that goes along with something else go now; how much there was."""
        return 0

    def _driven(self, work: Generator[Any, Any, Result], reply: Any) -> Result:
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
        """Hold sites to the row counts that they told at set-up; who told none that can be takes no part in the run.

        Args:
            rows: By site, its rows of each part.

        Returns:
            A warning for each site that takes no part.
        """
        self.agreed = {site: dict(held) for site, held in rows.items()}
        out = [site for site in self.sites if site not in rows]
        self.sites = tuple(site for site in self.sites if site in rows)
        return [f"{site} takes no part: {self.missing.get(site, 'it told no row counts')}" for site in out]

    def commit(self) -> None:
        """The round counts: those whose answers it was made of may move their state on."""
        self._accepted |= self._answered
        self._answered = {}
        self._counts = True

    def _number(self, ask: Ask) -> Ask:
        """Give the Ask its id, its readers, and the round each of them may count as done."""
        id = AskId(self.settings.run, self._round, self._step)
        self._step += 1
        to = self.sites if ask.to is None else ask.to
        latest = max(self._accepted.values(), default=0)
        behind = {s: self._accepted.get(s, 0) for s in to if self._accepted.get(s, 0) != latest}
        each = {**ask.each, **{s: {**ask.each.get(s, {}), "committed": r} for s, r in behind.items()}}
        deadline = self.settings.deadline if ask.deadline is None else ask.deadline
        shared = {**ask.shared, "committed": latest}
        return replace(ask, shared=shared, each=each, to=to, deadline=deadline, id=id)

    def _ask(self, ask: Ask) -> Answers:
        ask = self._number(ask)
        to, spec = ask.to or (), spec_of(ask.task)
        if spec.is_round_work:
            self.asked |= dict.fromkeys(to)
        absent = self._absent(ask, to)
        answers = self._answers(ask, tuple(s for s in to if s not in absent))
        answers.id = ask.id
        answers.missing |= absent
        if not spec.is_late:  # who leaves that late is in the sum
            self.missing |= answers.missing
        self._count(ask, answers)
        if (spec.is_training or ask.task == UPLOAD) and not ask.shared.get(
            KEEP
        ):  # what a site keeps counts once it is sent
            self._answered |= dict.fromkeys(answers.sites, self._round)
        if spec.is_round_work:
            self.clock += self._took(ask, answers)
        for site in () if spec.is_late else answers.missing:
            self._answered.pop(site, None)
        return answers

    def _count(self, ask: Ask, answers: Answers) -> None:
        """Count what an exchange carried, and whether enough took part."""
        if spec_of(ask.task).is_counted:
            self.meter.asked(counted_as(ask), sum(size_of_ask(ask, self.layout).values()), len(ask.to or ()))
            self.meter.carried(counted_as(ask), arrays_of_ask(ask), arrays_of_answers(answers))
        self._check_enough(ask, answers)

    def _check_enough(self, ask: Ask, answers: Answers) -> None:
        spec = spec_of(ask.task)
        need = self.settings.min_sites if spec.is_round_work else int(not spec.may_fail)
        if ask.task == UPLOAD:  # fewer may have been chosen
            need = min(self.settings.min_sites, len(ask.to or ()))
        if len(answers) < need:
            if len(answers.missing) == len(ask.to or ()) and set(answers.missing.values()) == {NOT_FINITE}:
                raise RunFailed(
                    f"round {self._round}: training diverged at every site: lower train.lr (or data.clip outliers)",
                    code="training-diverged",
                )
            who = ", ".join(f"{s} ({why})" for s, why in sorted(answers.missing.items()))
            raise RunFailed(
                f"round {self._round}: only {len(answers)} of {len(ask.to or ())} sites answered, "
                f"engine.min_sites is {need}; missing: {who}",
                code="too-few-sites",
            )

    def _answers(self, ask: Ask, to: tuple[str, ...]) -> Answers:
        """The answers of these sites; who sends what is no number, or cannot be, is left out."""
        return self._joined((self._believed(ask, block) for block in self._blocks(ask, to)), len(to))

    def _joined(self, blocks: Iterable[Answers], most: int) -> Answers:
        """Blocks of answers as one, of so many sites at most."""
        found = list(blocks)
        return Answers.join(found) if found else Answers((), {})

    def _believed(self, ask: Ask, block: Answers) -> Answers:
        """One block of answers without refusals and nonsense, added up where only the sum is needed."""
        block = _without_refusals(block)
        for look, why in ((finite_rows, NOT_FINITE), (possible_rows, IMPOSSIBLE)):
            good = look(block)
            if not good.all():
                block = block.only(np.flatnonzero(good), {block.sites[k]: why for k in np.flatnonzero(~good)})
        doubted = doubt(ask, block, self.agreed)
        if doubted:
            left = [k for k in range(len(block)) if k not in doubted]
            block = block.only(left, {block.sites[k]: why for k, why in doubted.items()})
        return block.summed(ask.total) if ask.total else block


def counted_as(ask: Ask) -> str:
    """The task that an Ask's bytes are counted under: to add up tallies securely, or to lend scores, is part of evaluating."""
    adding = spec_of(ask.task).is_sum_step and str(ask.shared["tag"]).startswith(TALLIES)
    return EVALUATE if adding or (ask.task == SCORE and "parts" in ask.shared) else ask.task


def _without_refusals(answers: Answers) -> Answers:
    """The answers without those of sites that answered with the code of a refusal."""
    if ERROR not in answers:
        return answers
    codes = [str(code)[:_CODE] for code in answers[ERROR]]
    refused = {site: f"refused ({code})" for site, code in zip(answers.sites, codes, strict=True) if code}
    return answers.only([k for k, code in enumerate(codes) if not code], refused) if refused else answers
