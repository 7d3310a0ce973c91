"""The register of models: states, signatures and history. Decisions are signed in a browser, at /models."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import BaseModel

from grandrounds.audit.register_state import Event
from grandrounds.capabilities.console.api.parameters import RunName
from grandrounds.capabilities.console.api.resources import ROOT, Resources, to_id
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, require_area
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.register.view import load_register
from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.capabilities.dossier.register import ModelStatus, RegisterView

resources = Resources("register")
Reader = Annotated[CurrentUser, require_area(Area.REGISTER)]


class EventLine(BaseModel):
    """An entry of the register about a model."""

    number: int
    date: str
    action: str
    by: str
    role: str
    note: str


class ModelLine(BaseModel):
    """A model in the register. `state`: candidate, approved, in use, withdrawn or not valid; `missing`: roles that must
    still approve it; `hash`: SHA-256 of its file."""

    run: str
    id: str
    url: str
    state: str
    sentence: str
    valid: bool
    fault: str
    purpose: str
    hospitals: list[str]
    in_use: list[str]
    proposed_by: str
    date: str
    missing: list[str]
    hash: str


class Model(ModelLine):
    """A model with its signatures and its history, oldest first."""

    approvals: list[EventLine]
    history: list[EventLine]


class RegisterPage(BaseModel):
    """The register. `fault`: why it does not verify; empty if it does. `roles`: roles that must approve a model."""

    exists: bool
    fault: str
    entries: int
    root: str
    roles: list[str]
    models: list[ModelLine]


@resources.get("/models", summary="The models of the register with their states, the newest first")
def models(request: Request, who: Reader) -> RegisterPage:
    view = load_register(get_state(request).run_index)
    if view is None:
        return RegisterPage(exists=False, fault="", entries=0, root="", roles=[], models=[])
    return RegisterPage(
        exists=True,
        fault=view.fault,
        entries=view.entries,
        root=view.root,
        roles=list(view.roles),
        models=[_line(model) for model in view.models],
    )


@resources.get("/models/{run}", summary="One model: state, intended use, signatures and history")
def model(request: Request, who: Reader, run: RunName) -> Model:
    found = _require_register(get_state(request).run_index).find(run)
    if found is None:
        raise NotFound(f"there is no model '{run[:200]}' in the register", code="not-registered")
    record = found.record
    return Model(
        **_line(found).model_dump(),
        approvals=[_event(e) for e in record.approvals],
        history=[_event(e) for e in record.history],
    )


def _require_register(run_index: RunIndex) -> RegisterView:
    view = load_register(run_index)
    if view is None:
        raise NotFound("there is no register of models here: `rounds models init` creates one", code="no-register")
    return view


def _line(model: ModelStatus) -> ModelLine:
    record = model.record
    return ModelLine(
        run=model.run,
        id=to_id(model.run),
        url=f"{ROOT}/models/{to_id(model.run)}",
        state=model.label,
        sentence=model.sentence,
        valid=model.is_valid,
        fault=model.fault,
        purpose=record.purpose,
        hospitals=list(record.hospitals),
        in_use=list(record.in_use),
        proposed_by=record.proposed_by,
        date=record.date,
        missing=list(record.missing),
        hash=str(record.model["model"]),
    )


def _event(event: Event) -> EventLine:
    return EventLine(
        number=event.number, date=event.date, action=event.action, by=event.by, role=event.role, note=event.note
    )
