"""What a training Ask costs: DP-SGD pays for its model once; a clipped update may be noised in a sum, or by a trusted server."""

from __future__ import annotations

from grandrounds.keeper.charges_terms import Terms
from grandrounds.keeper.charges_told import ALL, Reading, Rows, Told, raw, within
from grandrounds.privacy.clipped import sampled_steps
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import spec_of
from grandrounds.site.trusting import ATTRIBUTE, JUDGED_ON, ON
from grandrounds.site.work import Work

_MOST_STEPS = 10**9


def training(ask: Ask, rows: Rows, terms: Terms, *, unbounded: bool) -> Reading:
    """`unbounded`: whether this site has trained without noise before, in this run: it may go on from what it remembers."""
    work = Work.from_values(ask.shared)
    private = bool(work.rate)
    events = dp_sgd(work, rows, unbounded=unbounded) if private else ()
    events += _says(ask, rows, private=private)
    found = {r: _report(r, ask.task, work, rows, terms) for r in ask.report}
    told = {r: t for r, t in found.items() if t is not None}
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


def _report(name: str, task: str, work: Work, rows: Rows, terms: Terms) -> Told | None:
    """Find what a report discloses where nothing but its own noise, if any, stands before it.

    None where the site's row counts say as much, which are taken as known, and where a private model covers it: it is made
    of that model and of lent rows alone (`_says` looks after own rows).
    """
    report = spec_of(task).reports.get(name)
    if report is None:
        return Told("a report of unknown kind", rows.there(*ALL))
    if not (report.rows or report.of_model) or (report.of_model and work.rate):
        return None
    of = () if work.rate else rows.there("train")
    if name == "update" and within(work.longest, 1e-6, 1e6):  # all that a site has to say, whoever its patients are
        return Told("mean update", of, work.longest, work.longest, unit="site")
    hidden = terms.untold if report.omits_withheld else ()
    return Told(report.account, (*of, *rows.there(*(p for p in report.rows if p not in hidden))))


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
