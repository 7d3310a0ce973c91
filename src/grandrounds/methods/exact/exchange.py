"""Exact methods: one exchange of a fit in each round, at the server and at the site.

A fit is a generator of questions (`grandrounds.statistics`). A round asks one question and adds the answers, in the clear or by
secure aggregation. The totals are the method's state: a resumed run replays them, so the fit ends with the same bits.

A site that drops out changes the sums. The fit continues with the sites left, from the question that they have answered, and no
earlier total is used again; a site that dropped out does not come back.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import MethodSettings, Plan, TrainSettings
from grandrounds.core.records import Decision, Stage
from grandrounds.data.dataset import Dataset
from grandrounds.data.event import event_place
from grandrounds.data.kinds import AnyEncoding, task_of
from grandrounds.methods.base import LocalRegularizer, Method, Outcome, Round, Server
from grandrounds.methods.secure import STATISTIC_BITS, secure_sum
from grandrounds.models import COLUMN_MODELS
from grandrounds.models.column_model import turn_sign
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import STATISTIC, STATISTICS, STORE
from grandrounds.site.plugin import Columns, SitePlugin, Task
from grandrounds.site.state import SHAPES
from grandrounds.statistics import ANSWERS, GROUP_ANSWERS
from grandrounds.statistics.intercepts import own_intercept
from grandrounds.statistics.own_shapes import fit_own_shapes
from grandrounds.statistics.question import Fit, Question, RowGroup, Rows, Total, pack_blocks, unpack_blocks

_log = logging.getLogger("grandrounds.site")

FEWEST_SITES = 3
"""Fewest sites of a sum: of two, each could subtract its own part and read the other's."""

MOST_EXCHANGES = 100
"""Default of method.rounds: a fit ends by itself long before."""

ENDED = "the fit ended"
"""First words of the reason for which the run of an exact method stops: its fit is complete."""

STORED = "stored"
"""Report of a site that stored its own intercept or shapes."""

RESULT = "result"
"""Entry of the method's state with the result, as JSON in bytes."""

WHOLE_BITS, WHOLE_BOUND = 32, 2.0**30
"""Bits and largest sum over all sites of answers in whole numbers."""

FORESEEN = "foreseen"
"""Value of an Ask: numbers that one site sends in the whole fit at least."""

_BETWEEN = "\x1f"  # between names in a text
_KIND, _BLOCKS, _CELLS, _WHOLE, _VALUE = "kind", "blocks", "cells", "whole", "value."
_TOTAL, _ROSTER, _SITES, _SENT = "total", "roster", "sites", "sent"


def ask_question(question: Question, sites: tuple[str, ...], *, rows: int, foreseen: int | None = None) -> Ask:
    """Build the Ask of a question.

    Args:
        question: The question.
        sites: The sites that are asked.
        rows: Rows of these sites in all, for the policy's ratio of numbers sent and held.
        foreseen: Numbers that one site sends in the whole fit at least, if the method knows them before: a policy that allows
            fewer then refuses the first exchange, not a later one.

    Returns:
        An Ask for the report `sums`, one vector.
    """
    shared: dict[str, Value] = {
        _KIND: question.kind,
        _BLOCKS: json.dumps({name: list(shape) for name, shape in question.blocks.items()}),
        _CELLS: ",".join(question.cells),
        "rows": rows,
        **({_WHOLE: 1} if question.whole else {}),
        **({FORESEEN: foreseen} if foreseen is not None else {}),
        **{f"{_VALUE}{name}": value for name, value in question.values.items()},
    }
    return Ask(STATISTIC, shared=shared, to=sites, report=("sums",))


def read_question(ask: Ask) -> Question:
    """Read the question of an Ask.

    Args:
        ask: The Ask, as a site received it.

    Returns:
        The question.

    Raises:
        BadInput: The kind is unknown, or the shapes of its blocks are not valid.
    """
    kind = str(ask.shared.get(_KIND, ""))
    if kind not in ANSWERS:
        raise BadInput(
            f"statistic '{kind[:80]}' is unknown: install the same version everywhere", code="unknown-statistic"
        )
    try:
        blocks = {str(n): tuple(int(v) for v in shape) for n, shape in json.loads(str(ask.shared[_BLOCKS])).items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        raise BadInput(f"the question '{kind}' has no valid list of blocks", code="malformed-message") from None
    cells = tuple(name for name in str(ask.shared.get(_CELLS, "")).split(",") if name)
    values = {name.removeprefix(_VALUE): v for name, v in ask.shared.items() if name.startswith(_VALUE)}
    return Question(kind, values, blocks, cells=cells, whole=bool(ask.shared.get(_WHOLE, 0)))


def ask_shapes(theta: Array, sites: tuple[str, ...], *, family: str, outcome: Any, common: Sequence[str]) -> Ask:
    """Build the Ask after which each site stores its own shapes over those of an additive model.

    Args:
        theta: The common model.
        sites: The sites of the fit.
        family: "logistic", "linear" or "poisson".
        outcome: Units of the outcome, as the encoding has them; None for classes.
        common: Columns that keep the common shape at every site.

    Returns:
        An Ask for the report `stored`.
    """
    shared: dict[str, Value] = {
        SHAPES: np.asarray(theta, float),
        "family": family,
        "common": _BETWEEN.join(common),
        "shift": 0.0 if outcome is None else float(outcome.centre),
        "scale": 1.0 if outcome is None else float(outcome.scale),
    }
    return Ask(STORE, shared=shared, to=sites, report=(STORED,))


class StatisticSite(SitePlugin):
    """The sites' half of exact methods: sums over training rows."""

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self._rows: dict[int, Rows] = {}
        self._groups: dict[bytes, RowGroup] = {}
        self._part: object = None

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {STATISTIC: self._answer, STORE: self._store}

    def _answer(self, ask: Ask, members: Array) -> Columns:
        """Answer a question for these sites: one vector each."""
        question = read_question(ask)
        if len(members) > 1 and question.kind in GROUP_ANSWERS:
            blocks = GROUP_ANSWERS[question.kind](question, self._group(members))
            sums = np.array([pack_blocks(question, {n: b[k] for n, b in blocks.items()}) for k in range(len(members))])
        else:
            rows = [self._rows_of(k) for k in members.tolist()]
            sums = np.array([pack_blocks(question, ANSWERS[question.kind](question, mine)) for mine in rows])
        return {"sums": _as_whole(sums) if question.whole else sums}

    def _store(self, ask: Ask, members: Array) -> Columns:
        """Store each site's own intercept or shapes, as its model uses them. They stay at the site: the answer is yes."""
        if SHAPES in ask.shared:
            return self._store_shapes(ask, members)
        v = ask.shared
        tau2 = float(v["tau2"]) or None
        beta, family = np.asarray(v["beta"]), str(v["family"])
        own = [own_intercept(beta, self._rows_of(k), family=family, tau2=tau2) for k in members.tolist()]
        values = event_sign(self.site.encoding) * (np.array(own) - float(v["shift"])) / float(v["scale"])
        self.site.states.stage(members, ask.round, {"own": values[:, None]})
        return {STORED: np.ones(len(members), np.uint8)}

    def _store_shapes(self, ask: Ask, members: Array) -> Columns:
        """Store what each site adds to the common shapes of an additive model; its log names the columns."""
        model: Any = self.site.prepared_model()
        theta = np.asarray(ask.shared[SHAPES], float)
        arrays, common = model.read(theta), tuple(name for name in str(ask.shared["common"]).split(_BETWEEN) if name)
        stored = []
        for k in members.tolist():
            rows = self._rows_of(k)
            values = model.values(rows.x)
            score, y = model.scores(arrays, values)[:, 0], rows.y
            family, scale = str(ask.shared["family"]), float(ask.shared["scale"])
            if family == "poisson":
                score = score + np.log(scale)
            elif family == "linear":
                y = (y - float(ask.shared["shift"])) / scale
            own = fit_own_shapes(arrays, model.columns, values, y, score, family=family, common=common)
            name = self.site.stack.names[k]
            _log.info("%s: own shapes of %s", name, ", ".join(own.kept) or "no column: the common model is kept")
            stored.append(own.pack())
        self.site.states.stage(members, ask.round, {"own": np.array(stored)})
        return {STORED: np.ones(len(members), np.uint8)}

    def _rows_of(self, k: int) -> Rows:
        """Return the training rows of one site; they are built once."""
        part = self.site.stack.parts["train"]
        if self._part is not part:
            self._part, self._rows, self._groups = part, {}, {}
        if k not in self._rows:
            self._rows[k] = build_rows(self.site, k)
        return self._rows[k]

    def _group(self, members: Array) -> RowGroup:
        """Return the rows of several sites; a group is built once, so that what is stored about it is found again."""
        rows, key = tuple(self._rows_of(k) for k in members.tolist()), members.tobytes()
        return self._groups.setdefault(key, RowGroup(rows))


def build_rows(site: Any, k: int) -> Rows:
    """Build the rows of one site as statistics read them.

    Args:
        site: The host of the sites.
        k: Number of the site.

    Returns:
        Its training rows, with its validation rows.
    """
    name = site.stack.names[k]

    def draw(purpose: str) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=np.frombuffer(site.secret(name).bytes(purpose, 16), "<u8")))

    return replace(_part_rows(site, k, "train"), validation=_part_rows(site, k, "val"), random=draw)


def _part_rows(site: Any, k: int, name: str) -> Rows:
    stack = site.stack
    part = stack.parts[name]
    mine = slice(int(part.offsets[k]), int(part.offsets[k + 1]))
    raw = getattr(stack.rows[k], name)
    patient = numeric = codes = None
    if stack.data.patient is not None:
        patient = np.unique(stack.data.patient[raw].astype(str), return_inverse=True)[1].ravel()
    if isinstance(stack.data, Dataset):
        numeric, codes = stack.data.numeric[raw], site.encoding.level_numbers(stack.data.take(raw))
    event = stack.event if part.time is None else 1
    binary = part.y.dtype.kind in "iu" and part.time is None and len(site.encoding.classes) == 2
    return Rows(
        np.asarray(part.x[mine], float),
        (part.y[mine] == event).astype(float) if binary else np.asarray(part.y[mine], float),
        time=None if part.time is None else np.asarray(part.time[mine], float),
        patient=patient,
        group=np.where(part.group[mine] < len(site.encoding.groups), part.group[mine], -1)
        if site.encoding.groups
        else None,
        numeric=numeric,
        codes=codes,
    )


def event_sign(encoding: AnyEncoding | None) -> float:
    """Return -1 if the event is the first of two classes, else 1: fits are of the event, and a model's log-odds of class 1.

    Args:
        encoding: The agreed encoding of rows.
    """
    if encoding is None or task_of(encoding) != CLASSIFICATION or len(encoding.classes) != 2:
        return 1.0
    return -1.0 if event_place(encoding.classes, encoding.event) == 0 else 1.0


class ExactMethod(Method):
    """Base class of exact methods: `fit` builds the fit; a round is one exchange; the run ends with the fit."""

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
                total = self._recall(server, question, r, before)
                before, question = total.sites, self._fit.send(total)
            self._question, self._round = question, server.round
        assert self._question is not None
        return self._question, self._roster(server, server.round - 1)

    def _exchange(
        self, server: Server, question: Question, sites: tuple[str, ...]
    ) -> Generator[Ask, Answers, tuple[Total, Array, Array | None, Mapping[str, str]]]:
        """Ask one question: in the clear, or by secure aggregation."""
        rows, columns = sum(server.rows.get(s, 0) for s in sites), len(getattr(server.encoding, "features", ()))
        foreseen = self.foresee_numbers(self.settings, columns)
        ask = ask_question(question, sites, rows=rows, foreseen=foreseen)
        before = self._roster(server, server.round - 1)
        if server.secure is None:
            answers: Answers = yield ask
            vectors = np.asarray(answers["sums"], float).reshape(len(answers), -1)
            vector: Array = vectors.sum(axis=0) if len(vectors) else np.zeros(question.numbers)
            if question.whole and np.abs(vector).max(initial=0.0) > WHOLE_BOUND:
                raise RunFailed(
                    f"exchange {server.round}: a sum over all sites has more than 30 bits", code="out-of-range"
                )
            shown = vectors if question.by_site else None
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
        out = {
            _SENT: np.asarray(server.state.get(_SENT, np.zeros(3))) + np.array([len(vector), up, down], float),
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
        why = f"exchange {server.round}, {question.step or question.kind}: {question.numbers} numbers ({digests})"
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
        kept = {RESULT: np.frombuffer(json.dumps(record).encode(), np.uint8)}
        why = f"{ENDED} after {server.round} exchanges"
        theta = self.model(server, result)
        if self.has_model and event_sign(server.encoding) < 0:
            theta = turn_sign(theta) if self.name in COLUMN_MODELS else -theta
        outcome = server.next(theta, self._decision(server, question, total, why), **kept)
        return Outcome(outcome.assignment, outcome.decision, outcome.state, ended=why)

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
    def most_exchanges(cls, settings: Any) -> int:
        """Return the largest number of exchanges of a fit, the default of method.rounds.

        Args:
            settings: The section [method].
        """
        return MOST_EXCHANGES

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


def _as_whole(sums: Array) -> Array:
    """Return whole numbers as int32; refuse others, which would make the sum depend on who holds which row."""
    if not (np.rint(sums) == sums).all() or np.abs(sums).max(initial=0.0) > WHOLE_BOUND:
        raise BadInput("a sum is not a whole number of 30 bits", code="out-of-range")
    return sums.astype(np.int32)


def digest(values: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of named arrays, numbers and texts."""
    hashed = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        content = value.encode() if isinstance(value, str) else np.ascontiguousarray(np.asarray(value, float)).tobytes()
        hashed.update(f"{name}\x1f{len(content)}\x1f".encode() + content)
    return hashed.hexdigest()


def read_result(state: Mapping[str, Array]) -> dict[str, Any] | None:
    """Return the record of a finished fit from a method's state; None if there is none.

    Args:
        state: The method's state at the end of the run.

    Returns:
        Keys `result`, `exchanges` (count, numbers sent by one site and held by all, their ratio, bytes of one site), `sites`
        and `rows`.
    """
    if RESULT not in state:
        return None
    record: dict[str, Any] = json.loads(np.asarray(state[RESULT], np.uint8).tobytes().decode())
    return record
