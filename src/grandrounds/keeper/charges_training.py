"""What a training Ask costs: DP-SGD pays for its model once; a clipped update may be noised in a sum, or by a trusted server."""

from __future__ import annotations

from grandrounds.keeper.charges_terms import Terms
from grandrounds.keeper.charges_told import ALL, Reading, Rows, Told, raw, within
from grandrounds.methods.fedxchain.site import ATTRIBUTE, JUDGED_ON, ON
from grandrounds.privacy.clipped import sampled_steps
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import ERROR
from grandrounds.site.work import Work

_COUNTED = ("count", "steps", ERROR)
"""Follows from how many rows the site has, which is taken as known."""

_OF_MODEL = ("model", "update", "variate", "sketch", "rationale", "reasons", "shap", "trust")
"""Made of the model that was trained and of lent rows alone (`_says` looks after own rows): a private model pays for it."""

_FIGURES = ("val_loss", "ece")
_MOST_STEPS = 10**9


def training(ask: Ask, rows: Rows, terms: Terms, *, unbounded: bool) -> Reading:
    """`unbounded`: whether this site has trained without noise before, in this run: it may go on from what it remembers."""
    work = Work.from_values(ask.shared)
    private = bool(work.rate)
    events = dp_sgd(work, rows, unbounded=unbounded) if private else ()
    events += _says(ask, rows, private=private)
    told = {r: _report(r, work, rows, terms) for r in ask.report if r not in _COUNTED}
    told = {r: t for r, t in told.items() if not (private and r in _OF_MODEL)}
    left = {r for r in ("model", "update") if r in told and r not in ask.held}
    if left and work.longest and terms.trust_server and terms.declared:
        noise = Event("gaussian", "mean update", sigma=terms.declared, unit="site", trust="trusted server")
        events, told = (*events, noise), {r: t for r, t in told.items() if r not in left}
    return Reading(events, told, unbounded=not private and rows.train > 0)


def dp_sgd(work: Work, rows: Rows, *, unbounded: bool) -> tuple[Event, ...]:
    """The steps that this site will really make, whatever is reported of them: the site remembers them.

    Work that it refuses, for too few rows, costs nothing. Numbers that the clipping does not hold for are no noise.
    """
    what = "models of the sites"
    if unbounded:  # even a site that takes no step answers with what it keeps of its model
        return raw(what, rows.there("train"))
    if rows.train < max(1, work.fewest):
        return ()
    sound = within(work.rate, 1e-9, 1.0) and within(work.clip, 1e-6, 1e6) and within(work.noise, 1e-3, 1e6)
    if not sound or work.steps < 0 or not (work.steps or 0 < work.epochs <= _MOST_STEPS):
        return raw(what, rows.there("train"))
    steps = sampled_steps(work.rate, epochs=work.epochs, steps=work.steps)
    if steps > _MOST_STEPS:
        return raw(what, rows.there("train"))
    return (Event("sampled_gaussian", what, count=steps, sigma=work.noise, rate=work.rate),)


def _report(report: str, work: Work, rows: Rows, terms: Terms) -> Told:
    """What a report tells where nothing but its own noise, if any, stands before it."""
    of = () if work.rate else rows.there("train")
    if report in _FIGURES:
        return Told("figures of validation rows", (*of, *rows.there("val")))
    if report == "local":
        parts = [p for p in ("train", "test") if p not in terms.untold]
        return Told("how right the site's own model is on its rows", (*of, *rows.there(*parts)))
    if report == "update" and within(work.longest, 1e-6, 1e6):  # all that a site has to say, whoever its patients are
        return Told("mean update", of, work.longest, work.longest, unit="site")
    if report in _OF_MODEL:
        return Told("a model trained without noise", of)
    return Told("a report of unknown kind", rows.there(*ALL))


def _says(ask: Ask, rows: Rows, *, private: bool) -> tuple[Event, ...]:
    """FedXChain's reasons and accuracy: told even where they are held, since a site compares them with what it is shown."""
    of = () if private else rows.there("train")
    found: tuple[Event, ...] = ()
    if ATTRIBUTE in ask.shared:
        own = of if str(ask.shared.get(ON, "")) else rows.there("train")
        found += raw("reasons of the site's own model", own)
    if JUDGED_ON in ask.shared:
        own = of if str(ask.shared[JUDGED_ON]) else (*of, *rows.there("val"))
        found += raw("how right the site's own model is", own)
    return found
