"""Routes of the register: the list, one model, and the form by which a signatory decides.

A decision needs the role approver, a form of this session (Origin and CSRF token), and the signing passphrase, which is asked
each time. Wrong passphrases make the next attempt wait, as wrong sign-ins do. Each attempt is in the access log.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response

from grandrounds.audit.register_entry import DECISIONS, MOST, USE
from grandrounds.audit.register_entry import LONGEST as LONGEST_NOTE
from grandrounds.capabilities.console import access_log
from grandrounds.capabilities.console.app_state import AppState, get_state
from grandrounds.capabilities.console.auth.access import (
    CurrentUser,
    check_origin,
    client_address,
    log_access,
    require_area,
)
from grandrounds.capabilities.console.auth.sessions import secrets_equal
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.cache import hide_root
from grandrounds.capabilities.console.register.view import find_signatory, load_register, model_page, sort_models
from grandrounds.capabilities.console.render import link, render_page
from grandrounds.capabilities.dossier.register.register import ChangedMeanwhile, Register
from grandrounds.capabilities.dossier.register.signing_key import LONGEST, WrongPassphrase
from grandrounds.core.errors import BadInput

router = APIRouter(include_in_schema=False)
_SIGNING = ThreadPoolExecutor(2, thread_name_prefix="signing")
"""Decisions that are signed in parallel: opening a key needs 32 MB."""
_RUN = 1024
Reader = Annotated[CurrentUser, require_area(Area.REGISTER)]
Approver = Annotated[CurrentUser, require_area(Area.APPROVAL)]


@dataclass(frozen=True)
class Decision:
    """A form that a signatory sent, without the passphrase.

    Attributes:
        run: The run's folder.
        kind: One of `register_entry.DECISIONS`.
        seen: Version of the record that the page showed.
        hospitals: The hospitals that were chosen; None for other decisions than use.
        note: A remark, or the reason.
    """

    run: str
    kind: str
    seen: int
    hospitals: tuple[str, ...] | None
    note: str


@router.get("/models")
def models(request: Request, who: Reader, run: Annotated[str | None, Query(max_length=_RUN)] = None) -> Response:
    """Show the register, or one model."""
    if run is not None:
        return _model(request, who, run)
    view = load_register(get_state(request).run_index)
    signatory = None if view is None else find_signatory(view, who)
    may_sign = signatory is not None and who.may_see(Area.APPROVAL)
    waiting = view.waiting_for(who.name) if view is not None and may_sign else ()
    rows = [] if view is None else sort_models(view)
    return render_page(request, "models.html", who=who, view=view, rows=rows, waiting=waiting, signatory=signatory)


@router.post("/models/sign")
async def sign(request: Request, who: Approver) -> Response:
    """Sign a decision about a model."""
    check_origin(request)
    fields = _read_fields(await request.body())
    if who.session is None:
        raise HTTPException(422, "a decision is signed in a browser, not by a program with a token")
    if not secrets_equal(fields.get("csrf", [""])[0], who.session.csrf):
        raise HTTPException(403, "the form is not of this session")
    decision, passphrase = _read_decision(fields), fields.get("passphrase", [""])[0][:LONGEST]
    app_state, keys = get_state(request), _limit_keys(request, who)
    wait = max(app_state.limiter.wait(keys[0]), app_state.name_limiter.wait(keys[1]))
    if wait:
        sentence = f"Too many wrong passphrases. Try again in {math.ceil(wait)} s."
        return await _refuse(request, who, decision, sentence, 429, code="too-many-attempts")
    log_access(request, access_log.DECISION, who, run=decision.run, view=decision.kind)
    app_state.limiter.count_failure(keys[0])  # counted before the check, so that parallel attempts are counted too
    app_state.name_limiter.count_failure(keys[1])
    work = partial(_decide, app_state, who.name, passphrase, decision)
    try:
        await asyncio.get_running_loop().run_in_executor(_SIGNING, work)
    except WrongPassphrase:
        app_state.log.try_write(
            access_log.WRONG_PASSPHRASE,
            user=who.name,
            roles=who.roles,
            address=client_address(request),
            run=decision.run,
        )
        return await _refuse(request, who, decision, "The signing passphrase is wrong.", 401, code="wrong-passphrase")
    except BadInput as e:
        app_state.limiter.take_back(keys[0])  # not cleared: nobody learns by it that the passphrase is right
        app_state.name_limiter.take_back(keys[1])
        status = 409 if isinstance(e, ChangedMeanwhile) or e.code == "against-register-rules" else 422
        sentence = hide_root(app_state.run_index, str(e))
        return await _refuse(request, who, decision, f"{sentence[:1].upper()}{sentence[1:]}.", status, code=e.code)
    app_state.limiter.clear(keys[0])
    app_state.name_limiter.take_back(keys[1])
    return RedirectResponse(link("/models", run=decision.run), 303)


def _decide(app_state: AppState, by: str, passphrase: str, decision: Decision) -> None:
    Register(app_state.run_index.root).decide(
        decision.kind,
        decision.run,
        by=by,
        passphrase=passphrase,
        note=decision.note,
        hospitals=decision.hospitals,
        seen=decision.seen,
    )


async def _refuse(
    request: Request, who: CurrentUser, decision: Decision, sentence: str, status: int, *, code: str
) -> Response:
    """Show the model again with the reason why nothing was signed; the access log has the code."""
    facts = {"run": decision.run, "view": decision.kind, "why": code}
    get_state(request).log.try_write(
        access_log.REFUSED, user=who.name, roles=who.roles, address=client_address(request), **facts
    )
    show = partial(_model, request, who, decision.run, wrong=sentence, status=status, given=decision)
    return await asyncio.get_running_loop().run_in_executor(_SIGNING, show)


def _model(
    request: Request,
    who: CurrentUser,
    run: str,
    *,
    wrong: str = "",
    status: int = 200,
    given: Decision | None = None,
) -> Response:
    run_index = get_state(request).run_index
    view = load_register(run_index)
    if view is None:
        raise HTTPException(404, "there is no register of models here")
    page, signatory = model_page(run_index, view, run, who), find_signatory(view, who)
    return render_page(
        request,
        "model.html",
        status=status,
        who=who,
        view=view,
        page=page,
        signatory=signatory,
        wrong=wrong,
        given=given,
    )


def _read_fields(body: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(body.decode(), max_num_fields=MOST + 20)
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None


def _read_decision(fields: dict[str, list[str]]) -> Decision:
    """Read the decision of a form.

    Raises:
        HTTPException: It is incomplete or invalid (422).
    """
    one = {name: values[0] for name, values in fields.items()}
    run, kind, seen, note = one.get("run", ""), one.get("decision", ""), one.get("seen", ""), one.get("note", "")
    if not run or len(run) > _RUN or kind not in DECISIONS or not (seen.isascii() and seen.isdigit()) or len(seen) > 9:
        raise HTTPException(422, "the form is incomplete: open the model again")
    if len(note) > LONGEST_NOTE:
        raise HTTPException(422, f"a note has at most {LONGEST_NOTE} characters")
    hospitals = tuple(dict.fromkeys(fields.get("hospital", ()))) if kind == USE else None
    return Decision(run, kind, int(seen), hospitals, note)


def _limit_keys(request: Request, who: CurrentUser) -> tuple[str, str]:
    """Return the keys under which wrong passphrases are counted: of a name at an address, and of a name anywhere."""
    return f"signing as {who.name} at {client_address(request)}", f"signing as {who.name}"
