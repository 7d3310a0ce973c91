"""The keeper: answers the server's letters at a hospital. It holds the data, the keys, the policy and the budget.

Code that comes over the wire is never run: a letter is data, signed by the server. A letter is answered if it is the
server's, to this site, of a run that was opened here, allowed by the site's own policy and within its own budget. Whatever
goes wrong leaves as a fixed code; an exception's words can carry patients' values and stay here.
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
from grandrounds.data.table import Table
from grandrounds.keeper import codes
from grandrounds.keeper.access import AccessControl
from grandrounds.keeper.codes import Refusal
from grandrounds.keeper.runtime.run import SiteIdentity, SiteRun, refuse_other_rows, told_to_open
from grandrounds.keeper.store import Store, run_folder
from grandrounds.protocol.codec import bundle, decode_ask, encode_answer, peek_ask, unbundle
from grandrounds.protocol.envelope import ANYBODY, Letter, digest, peek, seal, unseal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import PROTOCOL, Answer, AskId, Value
from grandrounds.protocol.tasks import CLOSE, HELLO, OPEN

_log = logging.getLogger("grandrounds.keeper")

SERVER = "server"


@dataclass(frozen=True)
class _Asked:
    """A letter that was opened: what it asks for, and the digest of its Ask."""

    body: bytes
    task: str
    id: AskId
    digest: str

    @classmethod
    def of(cls, letter: Letter, body: bytes) -> _Asked:
        """One Ask of a letter. Whoever is at an address is asked who they are, and nothing else."""
        task, id = peek_ask(body)
        if id.run != letter.run or (letter.to == ANYBODY and task != HELLO):
            raise Refusal(codes.REFUSED)
        return cls(body, task, id, hashlib.sha256(body).hexdigest())


class Keeper:
    """One site. `server`: the public key of the server; `rows`: reads the site's data, once; `state`: a folder of its own."""

    def __init__(
        self,
        me: SiteIdentity,
        *,
        server: bytes,
        rows: Callable[[], Table | ImageSet],
        state: Path,
        gate: AccessControl | None = None,
        device: str = "auto",
    ) -> None:
        self.me, self._server, self._state, self._device = me, server, state, device
        self._gate = gate or AccessControl()
        self._read = rows
        self._rows: Table | ImageSet | None = None
        self._runs: dict[str, SiteRun] = {}
        self._turn = threading.Lock()

    def handle(self, data: bytes) -> bytes:
        """A letter in, a letter out; never an exception. Several Asks in one letter are answered one by one, in order."""
        run = ""
        try:
            letter = self._open(data)
            run = letter.run
            with self._turn:
                bodies = [self._one(letter, body) for body in unbundle(letter.body)]
        except Refusal as e:
            bodies = [self._refused(AskId(run, 0, 0), e.code)]
        except BadInput:
            bodies = [self._refused(AskId(run, 0, 0), codes.REFUSED)]
        return sealed(self.me.identity, self.me.name, bundle(bodies), run=run, about=digest(data))

    def _one(self, letter: Letter, body: bytes) -> bytes:
        """The answer to one Ask; what goes wrong with it is a code."""
        id = AskId(letter.run, 0, 0)
        try:
            asked = _Asked.of(letter, body)
            id = asked.id
            return self._answer(asked)
        except Refusal as e:
            return self._refused(id, e.code)
        except BadInput as e:
            _log.warning("%s refused at %s", id, _where(e))
        except Exception as e:
            _log.error("%s failed: %s at %s", id, type(e).__name__, _where(e))
        if id.run in self._runs:
            self._runs[id.run].count_refusal()
        return self._refused(id, codes.REFUSED)

    def _refused(self, id: AskId, code: str) -> bytes:
        _log.warning("%s not answered: %s", id, code)
        return encode_answer(Answer(self.me.name, id, error=code), None)

    def _open(self, data: bytes) -> Letter:
        """The letter, if it is the server's and to this site."""
        try:
            letter = unseal(data, public=self._server)
        except BadInput:
            raise Refusal(codes.UNSIGNED) from None
        if letter.sender != SERVER or letter.to not in (self.me.name, ANYBODY):
            raise Refusal(codes.UNSIGNED)
        if letter.protocol != PROTOCOL:
            _log.warning(
                "the server speaks protocol %d (version %s), this site %d", letter.protocol, letter.version, PROTOCOL
            )
            raise Refusal(codes.PROTOCOL)
        return letter

    def _answer(self, asked: _Asked) -> bytes:
        """The answer's bytes: of a question that was answered before, the same ones."""
        id = asked.id
        if asked.task == HELLO:
            values: dict[str, Value] = {"site": self.me.name, "version": __version__, "ready": True}
            return encode_answer(Answer(self.me.name, id, values), None)
        store = Store(run_folder(self._state, id.run))
        if asked.task == CLOSE:
            self._runs.pop(id.run, None)
            store.close()
            return encode_answer(Answer(self.me.name, id, {}), None)
        known = store.answer(asked.digest)
        if known is not None:
            return known
        body = self._opened(asked, store) if asked.task == OPEN else self._done(asked, store)
        store.keep(id, asked.digest, body)
        return body

    def _opened(self, asked: _Asked, store: Store) -> bytes:
        """Take part in a run, if the site's policy allows it and its data fit."""
        ask = decode_ask(asked.body, self.me.name, None)
        told = told_to_open(ask)
        self._gate.opens(ask, told["plan"])
        before = self._run(asked.id.run, store)
        refuse_other_rows(before, told)
        try:
            run = SiteRun(told, store, self._data(), self.me, self._gate, device=self._device)
        except BadInput as e:
            _log.error("the data do not fit run %s: %s", asked.id.run, e)
            raise Refusal(codes.SCHEMA) from None
        store.open(told)
        run.recall()
        self._runs[asked.id.run] = run
        return encode_answer(Answer(self.me.name, asked.id, {}), None)

    def _done(self, asked: _Asked, store: Store) -> bytes:
        run = self._run(asked.id.run, store)
        if run is None:
            raise Refusal(codes.UNKNOWN_RUN)
        ask = decode_ask(asked.body, self.me.name, run.layout)
        run.check(ask)
        return run.answer(ask, asked.body)

    def _run(self, name: str, store: Store) -> SiteRun | None:
        """A run that is open here, brought back from disk if need be."""
        if name not in self._runs:
            run = SiteRun.again(store, self._data(), self.me, self._gate, device=self._device)
            if run is None:
                return None
            self._runs[name] = run
        return self._runs[name]

    def _data(self) -> Table | ImageSet:
        if self._rows is None:
            self._rows = self._read()
        return self._rows


def _where(e: BaseException) -> str:
    """File and line of an exception, without its words."""
    at = e.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "?" if at is None else f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"


def sealed(identity: Identity, site: str, body: bytes, *, run: str, about: str) -> bytes:
    """The answer of a site to the letter whose digest is `about`."""
    return seal(identity, Letter(site, SERVER, run, body, about=about, version=__version__))


def refusal(identity: Identity, site: str, letter: bytes, code: str) -> bytes:
    """The answer to this letter that there is none; of one that cannot be read, to no question at all."""
    run, ids = "", [AskId("", 0, 0)]
    try:
        opened = peek(letter)
        run, ids = opened.run, [peek_ask(body)[1] for body in unbundle(opened.body)]
    except BadInput:
        pass
    bodies = [encode_answer(Answer(site, id, error=code), None) for id in ids]
    return sealed(identity, site, bundle(bodies), run=run, about=digest(letter))
