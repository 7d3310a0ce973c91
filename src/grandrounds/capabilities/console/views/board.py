"""The start page of the board: models in use, their benefit at each hospital, the record, the costs, and missing signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from grandrounds.audit.register_state import State
from grandrounds.capabilities.console.register.view import load_register
from grandrounds.capabilities.console.run_index import FINISHED, NotFound, RunEntry, RunIndex, Unreadable
from grandrounds.capabilities.console.views.overview import (
    check_record,
    compare_run_hospitals,
    make_run_overview,
)
from grandrounds.capabilities.dossier.register import ModelStatus, RegisterView
from grandrounds.report.hospitals import BETTER, UNCLEAR, WORSE, Hospital
from grandrounds.report.overview import BETTER as BETTER_OVERALL
from grandrounds.report.overview import MIXED, Overview
from grandrounds.report.overview import WORSE as WORSE_OVERALL

_NEWEST = 3
"""Finished runs that are listed where no model is registered."""


class Tone(StrEnum):
    """The tone of an answer, which its words say too."""

    GOOD = "good"
    FAIR = "fair"
    BAD = "bad"
    NONE = ""


@dataclass(frozen=True)
class Answer:
    """An answer to a question of the board.

    Attributes:
        question: The question.
        answer: The answer in a few words.
        detail: A sentence that explains it.
        tone: Good, fair or bad.
        path: The page with the details; "" where there is none.
    """

    question: str
    answer: str
    detail: str
    tone: Tone = Tone.NONE
    path: str = ""


@dataclass(frozen=True)
class BoardModel:
    """A model of the register with the facts of its run.

    Attributes:
        status: Its state in the register; None for a run that is in none.
        overview: The facts of its run.
        better, unclear, worse: Hospitals by their comparison with no model.
        trained_only: Number of hospitals without test patients.
    """

    status: ModelStatus | None
    overview: Overview
    better: tuple[Hospital, ...] = ()
    unclear: tuple[Hospital, ...] = ()
    worse: tuple[Hospital, ...] = ()
    trained_only: int = 0

    @property
    def tone(self) -> Tone:
        """The tone of the verdict."""
        if self.status is not None and self.status.fault:
            return Tone.BAD
        if self.overview.verdict in (MIXED, WORSE_OVERALL) or self.worse:
            return Tone.BAD
        return Tone.GOOD if self.overview.verdict == BETTER_OVERALL and not self.unclear else Tone.FAIR

    @property
    def tested(self) -> int:
        """Number of hospitals with a comparison."""
        return len(self.better) + len(self.unclear) + len(self.worse)


@dataclass(frozen=True)
class Board:
    """The start page of the board.

    Attributes:
        answers: Answers to the questions of the board, the most important first.
        models: Models in use.
        waiting: Candidates that wait for a signature.
        approved: Models that are approved and not in use.
        withdrawn: Models that were withdrawn, or whose state is not valid any more.
        newest: The newest finished runs, where the register has no model.
        has_register: There is a register of models.
        unreadable: Runs of models that cannot be read.
    """

    answers: list[Answer]
    models: list[BoardModel]
    waiting: list[ModelStatus]
    approved: list[ModelStatus]
    withdrawn: list[ModelStatus]
    newest: list[BoardModel]
    has_register: bool
    unreadable: list[str]


def make_board(run_index: RunIndex, *, user: str = "") -> Board:
    """Collect the facts of the board's start page.

    Args:
        run_index: The runs.
        user: The user's name, for the signatures that this person can give.

    Returns:
        The page's content.
    """
    register = load_register(run_index)
    statuses = () if register is None else register.models
    in_use = [m for m in statuses if m.state is State.IN_USE]
    models, unreadable = _load_models(run_index, in_use)
    waiting = [m for m in statuses if m.state is State.CANDIDATE and not m.fault]
    newest = [] if statuses else _load_newest(run_index)
    answers = [
        _answer_use(register, models, run_index),
        _answer_benefit(models),
        _answer_record(register, models, list(unreadable)),
        _answer_spending(models),
        _answer_signatures(register, waiting, user),
    ]
    return Board(
        answers=answers,
        models=models,
        waiting=waiting,
        approved=[m for m in statuses if m.state is State.APPROVED and not m.fault],
        withdrawn=[m for m in statuses if m.state is State.WITHDRAWN or (m.fault and m.state is not State.IN_USE)],
        newest=newest,
        has_register=register is not None,
        unreadable=[f"{run}: {sentence}" for run, sentence in unreadable.items()],
    )


def _load_models(run_index: RunIndex, statuses: Iterable[ModelStatus]) -> tuple[list[BoardModel], dict[str, str]]:
    models: list[BoardModel] = []
    unreadable: dict[str, str] = {}
    for status in statuses:
        try:
            models.append(_load_model(run_index, status.run, status))
        except (NotFound, Unreadable) as e:
            unreadable[status.run] = str(e)
    return models, unreadable


def _load_newest(run_index: RunIndex) -> list[BoardModel]:
    found: list[BoardModel] = []
    for entry in _finished(run_index):
        if len(found) == _NEWEST:
            break
        try:
            found.append(_load_model(run_index, entry.name, None))
        except (NotFound, Unreadable):
            continue
    return found


def _finished(run_index: RunIndex) -> Iterable[RunEntry]:
    return (entry for entry in run_index.runs() if entry.state == FINISHED)


def _load_model(run_index: RunIndex, name: str, status: ModelStatus | None) -> BoardModel:
    use = "" if status is None else status.record.purpose
    overview = make_run_overview(run_index, name, use=use, ledger=check_record(run_index, name))
    compared = compare_run_hospitals(run_index, name)
    if compared is None:
        return BoardModel(status, overview)
    by_verdict = {v: tuple(h for h in compared.tested if h.verdict == v) for v in (BETTER, UNCLEAR, WORSE)}
    return BoardModel(
        status, overview, by_verdict[BETTER], by_verdict[UNCLEAR], by_verdict[WORSE], len(compared.trained_only)
    )


def _answer_use(register: RegisterView | None, models: Sequence[BoardModel], run_index: RunIndex) -> Answer:
    question = "Which models are in use?"
    if models:
        names = ", ".join(
            f"{m.overview.prediction or m.overview.outcome or m.overview.name} at "
            f"{', '.join(m.status.record.in_use) if m.status else '–'}"
            for m in models
        )
        return Answer(question, _count(len(models), "model"), f"{names}.", Tone.GOOD, "/models")
    finished = sum(1 for _ in _finished(run_index))
    detail = (
        f"{_count(finished, 'run')} finished. An engineer proposes a model with `rounds models propose RUN`."
        if register is not None
        else f"{_count(finished, 'run')} finished. There is no register of models yet: `rounds models init` creates one."
    )
    return Answer(question, "No model", detail, path="/models")


def _answer_benefit(models: Sequence[BoardModel]) -> Answer:
    question = "Are they better than no model at every hospital?"
    if not models:
        return Answer(
            question, "No model in use", "A model in use is compared with no model at each hospital."
        )
    tested, worse = sum(m.tested for m in models), [h.name for m in models for h in m.worse]
    unclear = [h.name for m in models for h in m.unclear]
    if worse:
        return Answer(question, f"No: clearly worse at {_count(len(worse), 'hospital')}", _names(worse), Tone.BAD)
    if not tested:
        return Answer(question, "Not tested", "No hospital has test patients with two outcomes.", Tone.FAIR)
    if unclear:
        detail = f"No clear gain at {_names(unclear)}"
        return Answer(question, f"At {tested - len(unclear)} of {tested} hospitals", detail, Tone.FAIR)
    return Answer(question, "Yes", f"Clearly better at all {_count(tested, 'hospital')}.", Tone.GOOD)


def _answer_record(register: RegisterView | None, models: Sequence[BoardModel], unreadable: Sequence[str]) -> Answer:
    question = "Is the record intact?"
    if register is not None and register.fault:
        return Answer(question, "No: the register does not verify", register.fault, Tone.BAD, "/audit")
    broken = [m.overview.name for m in models if m.overview.ledger.fails or (m.status and m.status.fault)] + [*unreadable]
    if broken:
        return Answer(question, f"No: {_count(len(broken), 'record')} failed", _names(broken), Tone.BAD, "/audit")
    if not models:
        return Answer(question, "No model in use", "The ledger of each run can be checked on its own.", path="/audit")
    unknown = [m.overview.name for m in models if m.overview.ledger.state not in ("verifies", "fails")]
    if unknown:
        return Answer(question, "Not fully checked", models[0].overview.ledger.sentence, Tone.FAIR, "/audit")
    simulated = any(m.overview.ledger.simulated for m in models)
    detail = (
        "Every entry verifies. The keys are simulated, so the record proves nothing about real hospitals."
        if simulated
        else f"Ledger and register verify for {_count(len(models), 'model')}."
    )
    return Answer(question, "Yes", detail, Tone.FAIR if simulated else Tone.GOOD, "/audit")


def _answer_spending(models: Sequence[BoardModel]) -> Answer:
    question = "What was spent?"
    if not models:
        return Answer(
            question, "No model in use", "Privacy loss and cost of each run are on its page.", path="/privacy"
        )
    losses = [m.overview.epsilon for m in models]
    known = [e for e in losses if e is not None]
    answer = f"Privacy loss (epsilon) {max(known):.2f}" if known else "No formal privacy guarantee"
    tone = Tone.GOOD if known and len(known) == len(losses) else Tone.FAIR
    costs = "; ".join(m.overview.cost for m in models if m.overview.cost)
    return Answer(question, answer, f"{costs}." if costs else "", tone, "/privacy")


def _answer_signatures(register: RegisterView | None, waiting: Sequence[ModelStatus], user: str) -> Answer:
    question = "What needs a signature?"
    if register is None:
        return Answer(question, "Nothing", "There is no register of models.")
    if not waiting:
        return Answer(question, "Nothing", "No candidate waits for approval.", Tone.GOOD)
    mine = register.waiting_for(user)
    roles = sorted({role for m in waiting for role in m.record.missing})
    detail = f"Waiting for: {', '.join(roles)}."
    if mine:
        detail += f" You can sign {_count(len(mine), 'of them') if len(mine) > 1 else 'it'}."
    return Answer(question, _count(len(waiting), "candidate"), detail, Tone.FAIR, "/models")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}."
