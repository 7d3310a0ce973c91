"""Exact methods: one exchange of a fit in each round, at the server; the sites' half is in site.py.

A fit is a generator of questions (`question.py`). A round asks one question and adds the answers, in the clear or by
secure aggregation. The totals are the method's state: a resumed run replays them, so the fit ends with the same bits.

A site that drops out changes the sums. The fit continues with the sites left, from the question that they have answered, and no
earlier total is used again; a site that dropped out does not come back.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.linear_sums import KINDS as LINEAR_KINDS
from grandrounds.capabilities.statistics.linear_sums import LinearSums
from grandrounds.capabilities.statistics.methods.site import (
    WHOLE_BITS,
    WHOLE_BOUND,
    StatisticSite,
    ask_question,
    event_sign,
)
from grandrounds.capabilities.statistics.models.column_model import turn_sign
from grandrounds.capabilities.statistics.question import Fit, Question, Total, pack_blocks, unpack_blocks
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan_types import MethodSettings, Plan, TrainSettings
from grandrounds.core.records import Decision, Stage
from grandrounds.data.design import reference_levels
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import LocalRegularizer, Method, Outcome, Round, Server
from grandrounds.methods.secure import STATISTIC_BITS, secure_sum
from grandrounds.methods.sums import ENDED, FEWEST_SITES, RESULT, SUMS, digest, read_result
from grandrounds.models import COLUMN_MODELS
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import STATISTIC, STATISTICS, STORE
from grandrounds.site.plugin import SitePlugin

MOST_EXCHANGES = 100
"""Default of method.rounds: a fit ends by itself long before."""

_TOTAL, _ROSTER, _SITES, _SENT = "total", "roster", "sites", "sent"


class ExactMethod(Method):
    """Base class of exact methods: `fit` builds the fit; a round is one exchange; the run ends with the fit."""

    is_exact: ClassVar[bool] = True
    parts: ClassVar[frozenset[str]] = frozenset()
    site: ClassVar[tuple[type[SitePlugin], ...]] = (StatisticSite,)
    kinds: ClassVar[tuple[str, ...]] = ()  # kinds of question that it asks
    scores_rounds: ClassVar[bool] = False

    def __init__(
        self, settings: MethodSettings, train: TrainSettings, regularizer: LocalRegularizer | None = None
    ) -> None:
        super().__init__(settings, train, regularizer)
        self._fit: Fit[Any] | None = None  # the live fit, and the question that it waits on
        self._question: Question | None = None
        self._round = 0
        self._asked: dict[int, Question] = {}  # questions by round

    @classmethod
    def asks(cls, plan: Plan) -> Mapping[str, Mapping[str, Value]]:
        return {STATISTIC: {}} | ({STORE: {}} if cls.local_part(plan) != "none" else {})

    def keeps_sums(self, server: Server) -> bool:
        """Tell whether sums by site are stored, so that a site's can be subtracted when it withdraws. Default: they are not.

        Args:
            server: The state of a round.
        """
        return False

    def fit(self, server: Server) -> Fit[Any]:
        """Build the fit of this run. Every exact method implements it.

        Args:
            server: The state of a round: sites, input names.

        Returns:
            The generator of questions.
        """
        raise TypeError(f"{type(self).__name__} does not implement fit()")

    def model(self, server: Server, result: Any) -> Array:
        """Return the parameters of the model after the fit. Default: unchanged, for statistics without a model.

        Args:
            server: The state of the round.
            result: The result of the fit.
        """
        return server.model

    def last_ask(self, server: Server, sites: tuple[str, ...], result: Any) -> Ask | None:
        """Return an Ask with the result, after which sites answer with no data; None for most methods.

        Args:
            server: The state of the round.
            sites: The sites of the last total.
            result: The result of the fit.
        """
        return None

    def round(self, server: Server) -> Round:
        question, roster = self._resume(server)
        sites = tuple(s for s in server.available_sites if s in roster)
        total, vector, by_site, missing = yield from self._exchange(server, question, sites)
        if len(total.sites) < FEWEST_SITES:
            raise RunFailed(
                f"exchange {server.round}: only {len(total.sites)} sites answered, and sums need {FEWEST_SITES} at least; "
                f"missing: {', '.join(f'{s} ({why})' for s, why in missing.items())}",
                code="too-few-sites",
            )
        state = {**server.state, **self._remembered(server, vector, by_site, total.sites)}
        assert self._fit is not None
        try:
            self._question, self._round = self._fit.send(total), server.round + 1
        except StopIteration as end:
            last = self.last_ask(server, total.sites, end.value)
            if last is not None:
                yield last
            return self._end(server, question, total, end.value, state)
        if server.round >= self.settings.rounds:
            raise RunFailed(
                f"the fit has not converged after {server.round} exchanges ({question.step or question.kind}): "
                "raise method.rounds, use a ridge penalty (method.exact.ridge), or leave out columns",
                code="not-converged",
            )
        return server.next(server.model, self._decision(server, question, total), **state)

    def _resume(self, server: Server) -> tuple[Question, tuple[str, ...]]:
        """Return the question of this round and the sites that are still in the fit; replay earlier totals if needed."""
        if self._fit is None or self._round != server.round:
            self._fit = self.fit(server)
            question: Question = next(self._fit)
            before: tuple[str, ...] = ()
            for r in range(1, server.round):
                self._asked[r] = question
                total = self._recall(server, question, r, before)
                before, question = total.sites, self._fit.send(total)
            self._question, self._round = question, server.round
        assert self._question is not None
        self._asked[server.round] = self._question
        return self._question, self._roster(server, server.round - 1)

    def _exchange(
        self, server: Server, question: Question, sites: tuple[str, ...]
    ) -> Generator[Ask, Answers, tuple[Total, Array, Array | None, Mapping[str, str]]]:
        """Ask one question: in the clear, or by secure aggregation."""
        rows, columns = sum(server.rows.get(s, 0) for s in sites), len(getattr(server.encoding, "features", ()))
        foreseen = self.foresee_numbers(self.settings, columns)
        ask = ask_question(question, sites, rows=rows, foreseen=foreseen)
        before = self._roster(server, server.round - 1)
        stored = read_sums(server.state)
        if stored is not None and question.kind in LINEAR_KINDS and len(stored.n) == len(sites):
            summed_up = pack_blocks(question, stored.answer(question))  # nobody is asked
            return self._total(question, summed_up, sites, before, None), summed_up, None, {}
        if server.secure is None:
            answers: Answers = yield ask
            vectors = np.asarray(answers["sums"], float).reshape(len(answers), -1)
            vector: Array = vectors.sum(axis=0) if len(vectors) else np.zeros(question.numbers)
            if question.whole and np.abs(vector).max(initial=0.0) > WHOLE_BOUND:
                raise RunFailed(
                    f"exchange {server.round}: a sum over all sites has more than 30 bits", code="out-of-range"
                )
            shown = vectors if question.by_site or self.keeps_sums(server) else None
            total = self._total(question, vector, answers.sites, before, shown)
            return total, vector, shown, answers.missing
        withheld: Answers = yield ask.withholding("sums")
        summed = yield from secure_sum(
            server.secure,
            withheld,
            bits=WHOLE_BITS if question.whole else STATISTIC_BITS,
            bound=WHOLE_BOUND if question.whole else self.bound(),
            whole=question.whole,
            purpose=STATISTICS,
        )
        beyond = [s for s, why in summed.missing.items() if "(beyond-bound)" in why]
        if beyond and question.whole:
            raise RunFailed(f"exchange {server.round}: a sum at {beyond[0]} has more than 30 bits", code="out-of-range")
        if beyond:
            raise RunFailed(
                f"exchange {server.round}: a sum at {beyond[0]} is larger than method.exact.bound = {self.bound():g}: set a "
                "larger one (a power of two), or look for outliers in its columns",
                code="out-of-range",
            )
        vector = np.asarray(summed.values["sums"], float)
        return self._total(question, vector, summed.sites, before, None), vector, None, summed.missing

    def bound(self) -> float:
        """Return the largest entry of a site's answer in a secure sum."""
        return float(self.settings.exact.bound)

    @staticmethod
    def _total(
        question: Question, vector: Array, sites: tuple[str, ...], before: tuple[str, ...], by_site: Array | None
    ) -> Total:
        shown = {} if by_site is None else dict(zip(sites, (unpack_blocks(question, v) for v in by_site), strict=True))
        return Total(unpack_blocks(question, vector), sites, bool(before) and set(before) != set(sites), shown)

    def _remembered(
        self, server: Server, vector: Array, by_site: Array | None, sites: tuple[str, ...]
    ) -> dict[str, Array]:
        """Return one exchange for the method's state: totals and sites, and the answers of single sites if they are used."""
        number = f"{server.round:04d}"
        assert self._question is not None
        down = sum(len(v) if isinstance(v, str) else np.asarray(v).nbytes for v in self._question.values.values())
        up = len(vector) * (WHOLE_BITS if self._question.whole else STATISTIC_BITS) // 8
        is_sent = read_sums(server.state) is None or self._question.kind not in LINEAR_KINDS
        out = {
            _SENT: np.asarray(server.state.get(_SENT, np.zeros(3))) + is_sent * np.array([len(vector), up, down], float),
            f"{_TOTAL}.{number}": vector.astype(np.int32) if self._question.whole else vector,
            f"{_ROSTER}.{number}": np.array([s in sites for s in server.sites], np.uint8),
        }
        return out if by_site is None else {**out, f"{_SITES}.{number}": by_site}

    def _recall(self, server: Server, question: Question, round: int, before: tuple[str, ...]) -> Total:
        number = f"{round:04d}"
        try:
            vector, by_site = server.state[f"{_TOTAL}.{number}"], server.state.get(f"{_SITES}.{number}")
            return self._total(question, vector, self._roster(server, round), before, by_site)
        except (KeyError, ValueError, BadInput):
            raise BadInput(
                f"the checkpoint is damaged: the total of exchange {round} is missing or has another shape",
                code="damaged-checkpoint",
            ) from None

    @staticmethod
    def _roster(server: Server, round: int) -> tuple[str, ...]:
        """Return the sites that are in the total of a round; before the first round all of them."""
        kept = server.state.get(f"{_ROSTER}.{round:04d}")
        return server.sites if kept is None else tuple(s for s, k in zip(server.sites, kept, strict=True) if k)

    def _decision(self, server: Server, question: Question, total: Total, *notes: str) -> Decision:
        """Record one exchange: the digests of the question and of its total, and the sites in it."""
        rows = np.array([server.rows.get(s, 0) for s in total.sites], float)
        weights = dict(zip(total.sites, (rows / max(1.0, rows.sum())).tolist(), strict=True))
        digests = f"question {digest(question.values)[:16]}, total {digest(total.values)[:16]}"
        is_stored = question.kind in LINEAR_KINDS and read_sums(server.state) is not None
        what = "step" if is_stored else "exchange"
        source = " from stored sums, nobody was asked" if is_stored else ""
        why = f"{what} {server.round}, {question.step or question.kind}: {question.numbers} numbers{source} ({digests})"
        gone = [s for s in self._roster(server, server.round - 1) if s not in total.sites]
        said = [f"{s} dropped out: the fit continues with the {len(total.sites)} sites left" for s in gone]
        stage = Stage("sums", f"{why}; every row has the same weight at any site", weights)
        signals = {"data_size": dict(zip(total.sites, rows.tolist(), strict=True))}
        return Decision(signals=signals, weights=weights, why=stage.why, stages=(stage,), notes=(*said, *notes))

    def _end(self, server: Server, question: Question, total: Total, result: Any, state: dict[str, Array]) -> Outcome:
        """End the run with the result; totals of single exchanges are dropped, the ledger has their digests."""
        numbers, up, down = (int(n) for n in state[_SENT])
        rows = sum(server.rows.get(s, 0) for s in total.sites)
        held = rows * max(1, len(getattr(server.encoding, "features", ())))
        exchanges = {
            "count": server.round,
            "numbers_sent": numbers,
            "numbers_held": held,
            "ratio": numbers / max(1, held),
            "bytes_up": up,
            "bytes_down": down,
        }
        record = {"result": result.to_dict(), "exchanges": exchanges, "sites": list(total.sites), "rows": rows}
        kept = {RESULT: np.frombuffer(json.dumps(record).encode(), np.uint8), **self._sums(server, state)}
        why = f"{ENDED} after {server.round} exchanges"
        theta = self.model(server, result)
        if self.has_model and event_sign(server.encoding) < 0:
            theta = turn_sign(theta) if self.name in COLUMN_MODELS else -theta
        outcome = server.next(theta, self._decision(server, question, total, why), **kept)
        return Outcome(outcome.assignment, outcome.decision, outcome.state, ended=why)

    def _sums(self, server: Server, state: Mapping[str, Array]) -> dict[str, Array]:
        """Return the sums by site at the end of a fit, where they are kept."""
        stored = read_sums(server.state)
        if stored is None and self.keeps_sums(server):
            rounds = {self._asked[r].kind: r for r in sorted(self._asked)}  # the last of each kind
            answers = [state.get(f"{_SITES}.{rounds[kind]:04d}") for kind in LINEAR_KINDS if kind in rounds]
            if len(answers) == len(LINEAR_KINDS) and all(a is not None for a in answers):
                first, last = ((self._asked[rounds[k]], np.asarray(a)) for k, a in zip(LINEAR_KINDS, answers, strict=True))
                stored = LinearSums.read(first, last)
        return {} if stored is None else _named(stored)

    @classmethod
    def foresee_numbers(cls, settings: Any, columns: int) -> int | None:
        """Estimate from below the numbers that one site sends in the whole fit; None if they are few or not known before.

        An estimate that is too large would make sites refuse fits that their policy allows.

        Args:
            settings: The section [method].
            columns: Number of inputs.
        """
        return None

    @classmethod
    def default_rounds(cls, settings: Any) -> int:
        """Return the largest number of exchanges of a fit."""
        return MOST_EXCHANGES

    @classmethod
    def group_column(cls, settings: Any, subgroup: str | None) -> str | None:
        """Return the column of the groups of a table or of curves; of a method with a model evaluation.subgroup."""
        own: str | None = settings.exact.group
        return subgroup if cls.has_model else own

    @classmethod
    def sums_without(
        cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding, site: str
    ) -> Mapping[str, Array] | None:
        """Return the sums without a site, where the fit equals one with an encoding agreed without the site.

        Centre and scale of inputs drop out in original units. Fill-in values, limits, a penalty, and levels that are merged or
        chosen by their rows do not: there are no such sums.
        """
        sums, record, d = read_sums(state), read_result(state), plan.data
        sites = [] if record is None else record["sites"]
        if sums is None or site not in sites or len(sums.n) != len(sites):
            return None
        if not d.complete or d.clip or d.coding != "reference":
            return None
        if not isinstance(encoding, Encoding) or encoding.left_out or any(c.other for c in encoding.categorical):
            return None
        rest = sums.drop(sites.index(site))
        counts = dict(zip(encoding.features, rest.counts().tolist(), strict=True))
        least, most = int(plan.method.exact.least), int(d.max_categories)
        for column in encoding.categorical:
            levels = {level: round(counts[f"{column.name}={level}"]) for level in column.levels}
            levels[column.baseline] = round(float(rest.n.sum())) - sum(levels.values())
            if reference_levels(levels, most=most, least=least) != (column.baseline, column.levels, False):
                return None
        return _named(rest)

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        name = plan.method.name
        if sites < FEWEST_SITES:
            yield (
                f"method '{name}' adds sums over hospitals, and {sites} could subtract their own part and read the "
                f"other's: use at least {FEWEST_SITES} training sites"
            )
        if pictures:
            yield f"method '{name}' needs the columns of a table, and the data are images: use 'fedavg'"
        if plan.engine.precision != "float64":
            yield f"method '{name}' computes in double precision: set engine.precision = 'float64'"
        if plan.privacy.epsilon is not None or plan.privacy.mechanism != "none":
            yield (
                f"no DP accounting for method '{name}' yet: remove privacy.epsilon and privacy.mechanism, or use model 'gam' or "
                "method 'veil', which have one"
            )
        if plan.privacy.secure and plan.privacy.on_halt == "skip":
            yield f"a fit of method '{name}' cannot skip an exchange: set privacy.on_halt = 'retry' or 'stop'"
        if plan.train.early_stop or plan.train.finetune:
            yield f"method '{name}' has no training steps: set train.early_stop = 0 and train.finetune = 0"
        if plan.tasks.plain():
            yield f"method '{name}' fits one outcome: remove [tasks]"
        if plan.plain()["attacks"]:
            yield f"method '{name}' has no local models to attack: remove [[attacks]]"

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        yield from ()

    @classmethod
    def exposes(cls, plan: Plan) -> tuple[str, ...]:
        return ("sums over training rows in every exchange: a sum over few patients discloses them, masked or not",)


def read_sums(state: Mapping[str, Array]) -> LinearSums | None:
    """Read the sums by site from a method's state; None where there are none."""
    named = {name.removeprefix(SUMS): value for name, value in state.items() if name.startswith(SUMS)}
    return LinearSums.from_arrays(named) if named else None


def _named(sums: LinearSums) -> dict[str, Array]:
    """Return sums by site as entries of a method's state."""
    return {f"{SUMS}{name}": value for name, value in sums.arrays().items()}
