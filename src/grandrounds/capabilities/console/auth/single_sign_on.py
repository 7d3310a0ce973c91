"""Single sign-on: the way to the OpenID provider and back, and the renewal of its sessions.

A sign-in begins with a state, a nonce and a secret of PKCE. The browser keeps them in an encrypted cookie, so that nobody can
fill the console's memory with sign-ins that are never finished, and a callback in another browser is refused. The session's own
cookie is SameSite=Strict. A browser would not send it along a redirect from the provider, hence the last step of a sign-in is a
page of this console that leads on.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass

from cryptography.fernet import Fernet, InvalidToken
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from grandrounds.capabilities.console.access_log import REFUSED, SIGN_IN, SIGN_OUT, WRONG_SIGN_IN
from grandrounds.capabilities.console.app_state import AppState, get_state
from grandrounds.capabilities.console.auth.access import client_address, is_over_tls
from grandrounds.capabilities.console.auth.oidc import Provider, SignInFault, Unreachable
from grandrounds.capabilities.console.auth.oidc_claims import Identity
from grandrounds.capabilities.console.auth.oidc_settings import CALLBACK
from grandrounds.capabilities.console.auth.sessions import Session, secrets_equal
from grandrounds.capabilities.console.render import local_path, render_page
from grandrounds.core.errors import visible

START = "/sso/start"
WAIT = 600
"""Seconds in which a sign-in at the provider has to be finished."""
_MOST_USED = 10_000
_log = logging.getLogger("grandrounds.capabilities.console")
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Attempt:
    """A sign-in that has begun: secrets of this one browser, and the page to open afterwards."""

    state: str
    nonce: str
    verifier: str
    next: str

    @classmethod
    def new(cls, next: str) -> Attempt:
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(32), next)


class SingleSignOn:
    """Sign-ins at one provider."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._box = Fernet(Fernet.generate_key())
        self._used: OrderedDict[str, float] = OrderedDict()  # states that were brought back, each with its time
        self._turn = threading.Lock()

    def begin(self, next: str, *, again: bool = False) -> tuple[str, str]:
        """Begin a sign-in.

        Args:
            next: The path to open afterwards.
            again: Have the provider ask for the credentials also where the user is signed in there.

        Returns:
            The address at the provider, and the value of the cookie.
        """
        attempt = Attempt.new(next)
        url = self.provider.authorization_url(
            state=attempt.state, nonce=attempt.nonce, verifier=attempt.verifier, again=again
        )
        return url, self._box.encrypt(json.dumps(asdict(attempt)).encode()).decode()

    def find(self, cookie: str, query: QueryParams) -> Attempt:
        """Find the sign-in that a callback belongs to. Each can be finished once.

        Raises:
            SignInFault: This browser did not begin it, it took too long, or it was finished before.
        """
        try:
            attempt = Attempt(**json.loads(self._box.decrypt(cookie, ttl=WAIT)))
        except InvalidToken:
            raise SignInFault(
                "this browser began no sign-in, or it took longer than ten minutes", code="no-attempt"
            ) from None
        if len(query.getlist("state")) != 1 or not secrets_equal(query["state"], attempt.state):
            raise SignInFault("the answer belongs to another sign-in", code="wrong-state")
        with self._turn:
            now = time.monotonic()
            while self._used and (len(self._used) >= _MOST_USED or now - next(iter(self._used.values())) > WAIT):
                self._used.popitem(last=False)
            if attempt.state in self._used:
                raise SignInFault("this sign-in was finished before", code="used-state")
            self._used[attempt.state] = now
        return attempt

    def finish(self, attempt: Attempt, query: QueryParams) -> Identity:
        """Finish a sign-in with the provider's answer.

        Raises:
            SignInFault: The provider refused it, or the answer does not pass the checks.
            Unreachable: The provider does not answer.
        """
        issuer = self.provider.settings.issuer
        if query.get("iss", issuer if not self.provider.endpoints.names_issuer else "") != issuer:
            raise SignInFault("the answer is of another provider", code="wrong-issuer")
        if "error" in query:
            error = visible(query["error"])[:60]
            raise SignInFault(f"the provider refused the sign-in ({error})", code=error)
        codes = query.getlist("code")
        if len(codes) != 1 or not codes[0]:
            raise SignInFault("the answer has no code", code="no-code")
        return self.provider.exchange(codes[0], nonce=attempt.nonce, verifier=attempt.verifier)


@router.get(START)
def start(request: Request, next: str = "/", again: bool = False) -> Response:
    """Send the browser to the provider; with `again` it asks for the credentials in any case."""
    app_state, sso = get_state(request), _require_sso(request)
    url, cookie = sso.begin(local_path(next), again=again)
    answer = RedirectResponse(url, 303)
    answer.set_cookie(
        app_state.sso_cookie,
        cookie,
        max_age=WAIT,
        httponly=True,
        samesite="lax",  # the provider's redirect brings it back; a form or a script of another site does not
        secure=sso.provider.settings.url.startswith("https:"),
        path="/sso",
    )
    return answer


@router.get(CALLBACK)
def callback(request: Request) -> Response:
    """Take the provider's answer: begin a session, or say why not."""
    app_state, sso = get_state(request), _require_sso(request)
    address, settings = client_address(request), sso.provider.settings
    try:
        attempt = sso.find(request.cookies.get(app_state.sso_cookie, ""), request.query_params)
        identity = sso.finish(attempt, request.query_params)
    except SignInFault as e:
        _log.warning("a single sign-on from %s failed: %s", address, e)
        app_state.log.try_write(WRONG_SIGN_IN, user="", address=address, by="sso", why=e.code)
        return _fault(request, "Sign-in failed", str(e), status=403)
    except Unreachable as e:
        _log.warning("a single sign-on from %s failed: %s", address, e)
        return _fault(request, "Sign-in failed", f"{e}. Try again later.", status=503)
    if not identity.roles:
        _log_refusal(app_state, identity, address)
        sentence = (
            f"{identity.name} has no role in this console. Ask its administrator: your account needs a value of the "
            f"claim {settings.roles_claim} that is mapped to a role."
        )
        return _fault(request, "No role", sentence, status=403, sign_out=sso.provider.sign_out_url(identity))
    app_state.log.write(
        SIGN_IN, user=identity.name, roles=identity.roles, address=address, by="sso", subject=identity.subject
    )
    app_state.sessions.end(request.cookies.get(app_state.session_cookie, ""))
    number, _ = app_state.sessions.begin(identity.name, identity.roles, "", identity=identity)
    _log.info("%r signed in by single sign-on", identity.name)
    answer = render_page(request, "leave.html", title="Signed in", sentence="You are signed in.", url=attempt.next)
    secure = is_over_tls(request) or settings.url.startswith("https:")
    answer.set_cookie(app_state.session_cookie, number, httponly=True, samesite="strict", secure=secure, path="/")
    answer.delete_cookie(app_state.sso_cookie, path="/sso")
    return answer


class Renewal:
    """ASGI middleware that has the provider renew a session of single sign-on before its time is over."""

    def __init__(self, app: ASGIApp, *, app_state: AppState) -> None:
        self._app, self._state = app, app_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._state.sso is not None and not scope["path"].startswith("/static/"):
            request = Request(scope)
            number = request.cookies.get(self._state.session_cookie, "")
            session = self._state.sessions.find_due(number)
            if session is not None:
                await run_in_threadpool(renew_session, self._state, number, session, client_address(request))
        await self._app(scope, receive, send)


def renew_session(app_state: AppState, number: str, session: Session, address: str) -> None:
    """Renew a session, or end it if the provider refuses. While the provider does not answer, it stays as it is.

    Args:
        app_state: The console's state.
        number: The session's number.
        session: The session.
        address: The network address of the request.
    """
    sessions, sso = app_state.sessions, app_state.sso
    assert sso is not None and session.identity is not None
    if not session.turn.acquire(blocking=not sessions.is_valid(session)):
        return  # another request renews it, and it is valid meanwhile
    try:
        if sessions.find_due(number) is None:
            return
        identity = sso.provider.renew(session.identity)
        if identity.roles:
            sessions.renew(session, identity)
            return
        _log_refusal(app_state, identity, address)
        sessions.end(number)
    except Unreachable as e:
        _log.warning("a session is not renewed: %s", e)
        sessions.postpone(session)
    except SignInFault as e:
        subject = session.identity.subject
        app_state.log.try_write(SIGN_OUT, user=session.user, address=address, by="sso", subject=subject, why=e.code)
        sessions.end(number)
    finally:
        session.turn.release()


def _log_refusal(app_state: AppState, identity: Identity, address: str) -> None:
    assert app_state.sso is not None
    claim = app_state.sso.provider.settings.roles_claim
    why = f"no claim {claim}" if identity.is_missing else "no mapped role"
    _log.warning("%r may not sign in: %s", identity.name, why)
    app_state.log.try_write(REFUSED, user=identity.name, address=address, by="sso", subject=identity.subject, why=why)


def _require_sso(request: Request) -> SingleSignOn:
    sso = get_state(request).sso
    if sso is None:
        raise HTTPException(404, "this console has no single sign-on")
    return sso


def _fault(request: Request, title: str, sentence: str, *, status: int, sign_out: str | None = None) -> Response:
    return render_page(request, "sso_fault.html", status=status, title=title, sentence=sentence, sign_out=sign_out)
