"""The keeper answers the server's messages at a hospital. It has the data, the keys, the policy and the budget.

Code from the network is never run: a message is data, signed by the server. It is answered if it is from the server, to
this site, belongs to a run that was opened here, is allowed by the site's policy and within its budget. Failures leave as a
fixed code, because an exception's text may contain patients' values.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grandrounds import __version__
from grandrounds.core.errors import BadInput
from grandrounds.data.images import ImageSet
from grandrounds.data.new_patients import NewPatients
from grandrounds.data.table import Table
from grandrounds.keeper import codes
from grandrounds.keeper.access import AccessControl
from grandrounds.keeper.codes import Refusal
from grandrounds.keeper.runtime.run import SiteIdentity, SiteRun, read_opening, refuse_other_rows
from grandrounds.keeper.store import Store, run_folder
from grandrounds.protocol.codec import ParsedAsk, bundle, encode_answer, parse_ask, peek_ask, unbundle
from grandrounds.protocol.envelope import ANYBODY, Letter, digest, peek, seal, unseal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import PROTOCOL, Answer, AskId, Value
from grandrounds.protocol.tasks import CLOSE, HELLO, OPEN

_log = logging.getLogger("grandrounds.keeper")

SERVER = "server"

CANNOT_WRITE = "cannot-write"
"""Code of a `BadInput` that the site budget raises where its charge cannot be written."""


@dataclass(frozen=True)
class _Question:
    """One Ask of a verified message, with its bytes and their digest."""

    body: bytes
    parsed: ParsedAsk
    digest: str

    @property
    def task(self) -> str:
        return self.parsed.task

    @property
    def id(self) -> AskId:
        return self.parsed.id

    @classmethod
    def parse(cls, envelope: Letter, body: bytes) -> _Question:
        """Parse one Ask of a message. A message without a recipient may ask for the site's name only."""
        parsed = parse_ask(body)
        if parsed.id.run != envelope.run or (envelope.to == ANYBODY and parsed.task != HELLO):
            raise Refusal(codes.REFUSED)
        return cls(body, parsed, hashlib.sha256(body).hexdigest())


class Keeper:
    """The program of one site that answers messages.

    Args:
        me: The site's name, key and secret.
        server: Public key of the server.
        rows: Reads the site's data; called once.
        state: Folder for the state of runs.
        access: Policy and budget of the site.
        device: Device to train on.
        new: The site's new patients, for runs of method 'watch'; None: it names none.
    """

    def __init__(
        self,
        me: SiteIdentity,
        *,
        server: bytes,
        rows: Callable[[], Table | ImageSet],
        state: Path,
        access: AccessControl | None = None,
        device: str = "auto",
        new: NewPatients | None = None,
    ) -> None:
        self._new = new
        self.me, self._server, self._state, self._device = me, server, state, device
        self._access = access or AccessControl()
        self._read = rows
        self._rows: Table | ImageSet | None = None
        self._runs: dict[str, SiteRun] = {}
        self._turn = threading.Lock()

    def handle(self, data: bytes) -> bytes:
        """Answer a message; never raises. Several Asks in one message are answered in order."""
        run = ""
        try:
            envelope = self._open(data)
            run = envelope.run
            with self._turn:
                bodies = [self._answer_body(envelope, body) for body in unbundle(envelope.body)]
        except Refusal as e:
            bodies = [self._refused(AskId(run, 0, 0), e.code)]
        except BadInput:
            bodies = [self._refused(AskId(run, 0, 0), codes.REFUSED)]
        return seal_answer(self.me.identity, self.me.name, bundle(bodies), run=run, about=digest(data))

    def _answer_body(self, envelope: Letter, body: bytes) -> bytes:
        """Answer one Ask; failures become codes."""
        id = AskId(envelope.run, 0, 0)
        try:
            question = _Question.parse(envelope, body)
            id = question.id
            return self._answer(question)
        except Refusal as e:
            return self._refused(id, e.code)
        except (BadInput, OSError) as e:
            if isinstance(e, OSError) or e.code == CANNOT_WRITE:
                return self._not_stored(id, e)
            _log.warning("%s refused at %s", id, _where(e))
        except Exception as e:
            _log.error("%s failed: %s at %s", id, type(e).__name__, _where(e))
        try:
            if id.run in self._runs:
                self._runs[id.run].count_refusal()
        except OSError as e:
            return self._not_stored(id, e)
        return self._refused(id, codes.REFUSED)

    def _not_stored(self, id: AskId, e: Exception) -> bytes:
        """Refuse an Ask whose answer or charge cannot be written. The run is read from disk again before its next Ask."""
        _log.error("%s: the site's state cannot be written (%s at %s): free disk space", id, type(e).__name__, _where(e))
        self._runs.pop(id.run, None)
        return self._refused(id, codes.STORAGE)

    def _refused(self, id: AskId, code: str) -> bytes:
        _log.warning("%s not answered: %s", id, code)
        return encode_answer(Answer(self.me.name, id, error=code), None)

    def _open(self, data: bytes) -> Letter:
        """Open a message, and check that it is from the server and to this site."""
        try:
            envelope = unseal(data, public=self._server)
        except BadInput:
            raise Refusal(codes.UNSIGNED) from None
        if envelope.sender != SERVER or envelope.to not in (self.me.name, ANYBODY):
            raise Refusal(codes.UNSIGNED)
        if envelope.protocol != PROTOCOL:
            _log.warning(
                "the server uses protocol %d (version %s), this site %d",
                envelope.protocol,
                envelope.version,
                PROTOCOL,
            )
            raise Refusal(codes.PROTOCOL)
        return envelope

    def _answer(self, question: _Question) -> bytes:
        """Return the encoded answer; a repeated request gets the same bytes."""
        id = question.id
        if question.task == HELLO:
            values: dict[str, Value] = {"site": self.me.name, "version": __version__, "ready": True}
            return encode_answer(Answer(self.me.name, id, values), None)
        store = Store(run_folder(self._state, id.run))
        if question.task == CLOSE:
            self._runs.pop(id.run, None)
            store.close()
            return encode_answer(Answer(self.me.name, id, {}), None)
        cached = store.answer(question.digest)
        if cached is not None:
            return cached
        body = self._open_run(question, store) if question.task == OPEN else self._run_ask(question, store)
        store.keep(id, question.digest, body)
        return body

    def _open_run(self, question: _Question, store: Store) -> bytes:
        """Take part in a run, if the site's policy allows it and its data fit."""
        ask = question.parsed.build(self.me.name, None)
        opening = read_opening(ask)
        self._access.check_opening(ask, opening.plan)
        before = self._run(question.id.run, store)
        refuse_other_rows(before, opening)
        try:
            run = SiteRun(
                opening, store, self._data(), self.me, self._access, device=self._device, new=self._new
            )
        except BadInput as e:
            _log.error("the data do not fit run %s: %s", question.id.run, e)
            raise Refusal(codes.SCHEMA) from None
        store.open(opening)
        run.restore()
        self._runs[question.id.run] = run
        return encode_answer(Answer(self.me.name, question.id, {}), None)

    def _run_ask(self, question: _Question, store: Store) -> bytes:
        run = self._run(question.id.run, store)
        if run is None:
            raise Refusal(codes.UNKNOWN_RUN)
        ask = question.parsed.build(self.me.name, run.layout)
        run.check(ask)
        return run.answer(ask, question.body, question.digest)

    def _run(self, name: str, store: Store) -> SiteRun | None:
        """Find a run that is open here, and load it from disk if needed."""
        if name not in self._runs:
            run = SiteRun.load(
                store, self._data(), self.me, self._access, device=self._device, new=self._new
            )
            if run is None:
                return None
            self._runs[name] = run
        return self._runs[name]

    def _data(self) -> Table | ImageSet:
        if self._rows is None:
            self._rows = self._read()
        return self._rows


def _where(e: BaseException) -> str:
    """Return file and line of an exception, without its text."""
    frame = e.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return "?" if frame is None else f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"


def seal_answer(identity: Identity, site: str, body: bytes, *, run: str, about: str) -> bytes:
    """Sign the answer of a site to the message with digest `about`."""
    return seal(identity, Letter(site, SERVER, run, body, about=about, version=__version__))


def seal_refusal(identity: Identity, site: str, message: bytes, code: str) -> bytes:
    """Sign a refusal of every Ask in a message, or of none in particular if the message cannot be read."""
    run, ids = "", [AskId("", 0, 0)]
    try:
        envelope = peek(message)
        run, ids = envelope.run, [peek_ask(body)[1] for body in unbundle(envelope.body)]
    except BadInput:
        pass
    bodies = [encode_answer(Answer(site, id, error=code), None) for id in ids]
    return seal_answer(identity, site, bundle(bodies), run=run, about=digest(message))
