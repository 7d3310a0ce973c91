"""The keeper answers the server's messages at a hospital. It has the data, the keys, the policy and the budget.

Code from the network is never run: a message is data, signed and encrypted by the server. It is answered if it is from the
server, to this site, belongs to a run that was opened here, is allowed by the site's policy and within its budget. Failures
leave as a fixed code, because an exception's text may contain patients' values.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.codes import Refusal
from grandrounds.capabilities.hospital.keeper.policy.describe import explain_code
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.capabilities.hospital.keeper.runtime.answers import UNREADABLE, AnsweredAsk, AnsweredMessage
from grandrounds.capabilities.hospital.keeper.runtime.run import SiteIdentity, SiteRun, read_opening, refuse_other_rows
from grandrounds.capabilities.hospital.keeper.store import Store, run_folder
from grandrounds.core.errors import BadInput
from grandrounds.core.version import __version__
from grandrounds.data.images import ImageSet
from grandrounds.data.new_patients import NewPatients
from grandrounds.data.table import Table
from grandrounds.protocol.codec import ParsedAsk, bundle, encode_answer, parse_ask, unbundle
from grandrounds.protocol.envelope import ANYBODY, ENVELOPE_PROTOCOL, Envelope, digest, peek, seal, unseal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answer, AskId, Value
from grandrounds.protocol.sessions import KEY, EphemeralKey, Handshake, Session, SessionError, SiteSessions
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
    def parse(cls, envelope: Envelope, body: bytes) -> _Question:
        """Parse one Ask of a message. A message without a recipient may ask for the site's name only."""
        parsed = parse_ask(body)
        if parsed.id.run != envelope.run or (envelope.to == ANYBODY and parsed.task != HELLO):
            raise Refusal(codes.REFUSED)
        return cls(body, parsed, hashlib.sha256(body).hexdigest())

    def answered(self, code: str) -> AnsweredAsk:
        return AnsweredAsk(self.id.run, self.id.round, self.id.step, self.task, code)


@dataclass(frozen=True)
class _BodyAnswer:
    """The encoded answer to one Ask, and its line of the log."""

    body: bytes
    ask: AnsweredAsk


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
        renew: Returns other access control if the site's policy is not this one any more, else None.
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
        renew: Callable[[Policy], AccessControl | None] | None = None,
    ) -> None:
        self._new, self._renew = new, renew
        self.me, self._server, self._state, self._device = me, server, state, device
        self._access = access or AccessControl()
        self._read = rows
        self._rows: Table | ImageSet | None = None
        self._runs: dict[str, SiteRun] = {}
        self._sessions = SiteSessions()
        self._turn = threading.Lock()

    def handle(self, data: bytes) -> bytes:
        """Answer a message; never raises."""
        return self.answer_message(data).message

    def answer_message(self, data: bytes) -> AnsweredMessage:
        """Answer a message; never raises. Several Asks in one message are answered in order."""
        run, sentence = "", ""
        try:
            request = self._open(data)
            run = request.run
            with self._turn:
                if not request.session:
                    return self._greet(request, data)
                session = self._sessions.find(request)
                if session is None:
                    raise Refusal(codes.NO_SESSION)
                try:
                    content = session.decrypt(request)
                except SessionError as e:
                    _log.warning("a message of run %s is refused: %s", run[:100], e)
                    raise Refusal(codes.REPLAYED) from None
                return self._answer_all(request, session, content, data)
        except Refusal as e:
            code, sentence = e.code, e.sentence
        except BadInput as e:
            code, sentence = codes.REFUSED, str(e)
        self._note(AskId(run, 0, 0), code, sentence)
        return refuse_message(self.me.identity, self.me.name, data, code, sentence)

    def _greet(self, request: Envelope, data: bytes) -> AnsweredMessage:
        """Answer a `hello` with the site's name and its half of the session's keys.

        Raises:
            Refusal: It is another Ask, which is answered only if it is encrypted, or a hello that arrived before.
        """
        question = _Question.parse(request, request.body)
        if question.task != HELLO:
            raise Refusal(codes.NO_SESSION)
        try:
            self._sessions.check_hello(data)
        except SessionError:
            raise Refusal(codes.REPLAYED) from None
        other = question.parsed.build(self.me.name, None).shared.get(KEY, "")
        key = EphemeralKey()
        values: dict[str, Value] = {"site": self.me.name, "version": __version__, "ready": True, KEY: key.public}
        body = encode_answer(Answer(self.me.name, question.id, values), None)
        message = seal(self.me.identity, _envelope(self.me.name, request.run, body, about=digest(data)))
        handshake = Handshake(self._server, self.me.identity.public, data, message)
        self._sessions.add(request.run, handshake.site_session(key, str(other)))
        return AnsweredMessage(message, (question.answered(""),))

    def _answer_all(self, request: Envelope, session: Session, content: bytes, data: bytes) -> AnsweredMessage:
        """Answer the Asks of a decrypted message, and encrypt the answers."""
        try:
            answers = [self._answer_body(request, body) for body in unbundle(content)]
        except BadInput:
            answers = [self._refused(AskId(request.run, 0, 0), codes.REFUSED, sentence="the message cannot be read")]
        body = bundle([answer.body for answer in answers])
        envelope = session.encrypt_answer(_envelope(self.me.name, request.run, body, about=digest(data)), request)
        if any(answer.ask.task == CLOSE for answer in answers):
            self._sessions.end(request.run)
        return AnsweredMessage(seal(self.me.identity, envelope), tuple(answer.ask for answer in answers))

    def _answer_body(self, request: Envelope, body: bytes) -> _BodyAnswer:
        """Answer one Ask; failures become codes."""
        id, task = AskId(request.run, 0, 0), ""
        try:
            question = _Question.parse(request, body)
            id, task = question.id, question.task
            return _BodyAnswer(self._answer(question), question.answered(""))
        except Refusal as e:
            return self._refused(id, e.code, task, e.sentence)
        except (BadInput, OSError) as e:
            if isinstance(e, OSError) or e.code == CANNOT_WRITE:
                return self._not_stored(id, e, task)
            if e.code in codes.OF_SITE_FILES and not e.quotes_cells:
                return self._refused(id, e.code, task, str(e))
            _log.warning("%s refused at %s: %s [%s]", id, _where(e), e, e.code)  # work.log, which stays at the site
            hidden = "its sentence can quote cells and is in state/work.log"
            sentence = f"error {e.code or 'without a code'}: {hidden if e.quotes_cells else e}"
        except Exception as e:
            sentence = f"{type(e).__name__} at {_where(e)}"
            _log.error("%s failed: %s", id, sentence)
        try:
            if id.run in self._runs:
                self._runs[id.run].count_refusal()
        except OSError as e:
            return self._not_stored(id, e, task)
        return self._refused(id, codes.REFUSED, task, sentence)

    def _not_stored(self, id: AskId, e: Exception, task: str) -> _BodyAnswer:
        """Refuse an Ask whose answer or charge cannot be written. The run is read from disk again before its next Ask."""
        _log.error("%s: the site's state cannot be written (%s at %s): free disk space", id, type(e).__name__, _where(e))
        self._runs.pop(id.run, None)
        return self._refused(id, codes.STORAGE, task)

    def _refused(self, id: AskId, code: str, task: str = "", sentence: str = "") -> _BodyAnswer:
        """Refuse an Ask: the code leaves, the sentence is for the site's log and screen."""
        self._note(id, code, sentence)
        body = encode_answer(Answer(self.me.name, id, error=code), None)
        cause = sentence or explain_code(code)
        return _BodyAnswer(body, AnsweredAsk(id.run, id.round, id.step, task or UNREADABLE, code, cause))

    def _note(self, id: AskId, code: str, sentence: str) -> None:
        _log.warning("%s not answered: %s [%s]", id, sentence or explain_code(code), code)

    def _open(self, data: bytes) -> Envelope:
        """Open a message, and check that it is from the server and to this site."""
        try:
            envelope = unseal(data, public=self._server)
        except BadInput:
            raise Refusal(codes.UNSIGNED) from None
        if envelope.sender != SERVER or envelope.to not in (self.me.name, ANYBODY):
            raise Refusal(codes.UNSIGNED)
        if envelope.protocol != ENVELOPE_PROTOCOL:
            _log.warning(
                "the server uses protocol %d (version %s), this site %d (version %s): install the same version at both",
                envelope.protocol,
                envelope.version[:20],
                ENVELOPE_PROTOCOL,
                __version__,
            )
            raise Refusal(codes.PROTOCOL)
        return envelope

    def _answer(self, question: _Question) -> bytes:
        """Return the encoded answer; a repeated request gets the same bytes."""
        id = question.id
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
        self._read_policy()
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

    def _read_policy(self) -> None:
        """Use a policy that was changed. Runs are restored from disk under it, unless only section [runs] is another."""
        access = None if self._renew is None else self._renew(self._access.policy)
        if access is None:
            return
        if replace(self._access.policy, runs=access.policy.runs) == access.policy:
            self._access.policy = access.policy  # also that of runs, which stay: one may be in the middle of a secure sum
        else:
            self._access = access
            self._runs.clear()

    def _run_ask(self, question: _Question, store: Store) -> bytes:
        self._read_policy()
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


def _envelope(site: str, run: str, body: bytes, *, about: str) -> Envelope:
    """Address an answer of a site to the message with digest `about`."""
    return Envelope(site, SERVER, run, body, about=about, version=__version__)


def refuse_message(identity: Identity, site: str, message: bytes, code: str, sentence: str = "") -> AnsweredMessage:
    """Sign the refusal of a whole message: a bare code, which is not encrypted. The sentence is for the site's log."""
    try:
        run = peek(message).run
    except BadInput:
        run = ""
    body = encode_answer(Answer(site, AskId(run, 0, 0), error=code), None)
    sealed = seal(identity, _envelope(site, run, body, about=digest(message)))
    return AnsweredMessage(sealed, (AnsweredAsk(run, 0, 0, UNREADABLE, code, sentence or explain_code(code)),))
