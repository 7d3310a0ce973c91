"""Privacy cost of an Ask: the disclosures of its answer, derived from the Ask and the site's row counts only.

An unknown task discloses all rows without noise: a new task or report is refused until its rule is in the table of tasks
(`protocol.tasks`), and the reader of its cost here or in the manifest of its capability. The parts of this file are: any Ask,
training, VEIL, secure sums.

A site knows the noise of its own share of a secure sum, but cannot see the others' shares. The guarantee holds if as many
sites are honest as `Terms.honest` says, or as the protocol's threshold lets survive. The number of participants is read
from the roster for which the site shared its masks, never from the number in the request (`parties`), which determines the
size of its share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.core.capability import collect, load
from grandrounds.methods.fedxchain.site import ATTRIBUTE, JUDGED_ON, ON
from grandrounds.privacy.clipping import count_sampled_steps
from grandrounds.privacy.events import Event
from grandrounds.protocol import task_spec
from grandrounds.protocol.messages import USE_PERSONAL, Ask, Value
from grandrounds.protocol.packing import layout_reports, narrow_layout, packed_size
from grandrounds.protocol.tasks import (
    CENSUS,
    MAPS,
    MOMENTS,
    PERCENTILES,
    PLATT,
    PREPARE,
    PROPOSE,
    SCORE,
    SCORES,
    spec_of,
)
from grandrounds.site.ask_cost import (
    ALL,
    ROW_KINDS,
    AskCost,
    Disclosure,
    RowCounts,
    clipped_sum,
    every_report,
    number,
    raw,
    within,
)
from grandrounds.site.stack import PARTS
from grandrounds.site.train_job import TrainConfig

TRUST = "secure aggregation"

_MOST_STEPS = 10**9
_MOST_DRAWS = 10**6
_CELLS = "counts of patients in agreed cells, for percentiles"
_COUNTS, _SCORES, _MOMENTS = "rows and events", "sums of clipped scores", "sums of second moments"

_NORMAL = 2.0**25
"""Variance of a share, in steps of the ring, above which it is a rounded normal draw (privacy/secagg/ring.py)."""


def ask_cost(ask: Ask, rows: RowCounts, terms: Terms, *, unbounded: bool) -> AskCost:
    """Find the disclosures of an answer, by the rule of its task in the table of tasks.

    Args:
        ask: The Ask.
        rows: Number of rows of the site.
        terms: Rules of accounting.
        unbounded: The site trained without noise before, in this run.

    Returns:
        The releases of the answer. A task without a rule discloses all rows without noise.
    """
    match spec_of(ask.task).cost:
        case task_spec.NO_COST:
            return AskCost()
        case task_spec.TRAINING_COST:
            return _training(ask, rows, terms, unbounded=unbounded)
        case task_spec.MODEL_COST:
            return every_report(
                ask, "what is made of a model trained without noise", rows.present("train") if unbounded else ()
            )
        case task_spec.ROWS_COST:
            return _by_rows(ask, rows, terms)
        case task_spec.OWN_COST if ask.task in READERS:
            return READERS[ask.task](ask, rows, terms)
        case task_spec.OWN_COST if ask.task in (others := collect("tasks")) and others[ask.task].cost:
            cost: AskCost = load(others[ask.task].cost)(ask, rows)
            return cost
    return every_report(ask, "an answer of unknown kind", rows.present(*ALL))


def _by_rows(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge each report, without noise, for the rows that the table names; an undeclared one for all rows.

    Figures of a personal model also disclose the rows that it was fitted to and chosen by.
    """
    fitted = ("train", "val") if ask.shared.get(USE_PERSONAL) else ()
    disclosures = {}
    for name in ask.report:
        report = spec_of(ask.task).reports.get(name)
        if report is None:
            disclosures[name] = Disclosure("a report of unknown kind", rows.present(*ALL))
        elif report.rows:
            hidden = terms.withheld_splits if report.omits_withheld else ()
            named = dict.fromkeys((*(p for p in report.rows if p not in hidden), *fitted))
            disclosures[name] = Disclosure(report.account, rows.present(*named))
    return AskCost((), disclosures)


def _prepare(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge mean inputs and notes; row counts are taken as known."""
    if not _is_sound(json.loads(str(ask.shared["encoding"])), terms.classes):
        return AskCost(raw("rows by an encoding that could tell single patients", rows.present(*ALL)))
    return _by_rows(ask, rows, terms)


def _is_sound(encoding: Any, classes: Sequence[str]) -> bool:
    """Check that every row is finite under this encoding, and that every label has a place.

    A scale of 0 gives NaN for values exactly at the centre, and one such row is visible in a sum through any noise. A
    missing label makes the site fail if a patient has it.
    """
    columns = encoding.get("numeric", ()) if isinstance(encoding, dict) else None
    if columns is None or not set(classes) <= set(encoding.get("classes", ())):
        return False
    for column in columns:
        numbers = [float(v) for v in column.values() if isinstance(v, int | float)]
        if not (all(map(math.isfinite, numbers)) and within(abs(float(column["scale"])), 1e-12, 1e12)):
            return False
    return True


def _score(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge losses on training rows, or metrics of models on the named splits."""
    if "parts" not in ask.shared:
        return every_report(ask, "losses of models", rows.present("train"))
    named = [p for p in str(ask.shared["parts"]).split(",") if p not in terms.withheld_splits]
    return every_report(ask, "figures of models", rows.present(*(named if set(named) <= set(ROW_KINDS) else ALL)))


def _platt(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge Platt scaling: sums without noise, counts with the site's own noise, or counts held for a sum with noise.

    A row is in one cell, so it changes one count by one. Far below an epsilon of 1e-6 the geometric draws exceed 64 bits
    and cancel, so no noise is left.
    """
    parts = rows.present("val")
    if "lines" in ask.shared:
        return every_report(ask, "sums over validation scores", parts)
    description = "validation scores by outcome" if ask.shared.get("by_outcome") else "where validation scores lie"
    if "counts" in ask.withheld:
        return AskCost(
            (), dict.fromkeys(ask.report, Disclosure(description, parts, reach=1.0, largest=float(max(1, rows.val))))
        )
    epsilon = float(ask.shared.get("epsilon", 0.0))
    if not within(epsilon, 1e-6, 1e3):
        return AskCost(raw(description, parts))
    return AskCost((Event("laplace", description, epsilon=epsilon, of="validation"),) if parts else ())


def _maps(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge the last split that exists, and the site's own model, which training rows made."""
    counts = {"train": rows.train, "val": rows.val, "test": rows.test}
    looked = next((p for p in reversed(PARTS) if counts[p]), "train")
    return every_report(ask, "numbers of heat maps", rows.present(looked, "train"))


def _training(ask: Ask, rows: RowCounts, terms: Terms, *, unbounded: bool) -> AskCost:
    """Charge training. `unbounded`: this site trained without noise before, in this run, and may continue from that state."""
    work = TrainConfig.from_values(ask.shared)
    private = bool(work.rate)
    events = _dp_sgd(work, rows, unbounded=unbounded) if private else ()
    events += _trust_events(ask, rows, private=private)
    costs = {r: _report(r, ask.task, work, rows, terms) for r in ask.report}
    disclosures = {r: t for r, t in costs.items() if t is not None}
    released = {r for r in ("model", "update") if r in disclosures and r not in ask.withheld}
    if released and work.longest and terms.trust_server and terms.declared:
        noise = Event("gaussian", "mean update", sigma=terms.declared, unit="site", trust="trusted server")
        events, disclosures = (*events, noise), {r: t for r, t in disclosures.items() if r not in released}
    return AskCost(events, disclosures, unbounded=not private and rows.train > 0)


def _dp_sgd(work: TrainConfig, rows: RowCounts, *, unbounded: bool) -> tuple[Event, ...]:
    """Charge the steps that this site will make, whatever is reported, because the site's state depends on them.

    Work that is refused for too few rows costs nothing. Parameters for which clipping is not exact count as no noise.
    """
    description = "models of the sites"
    if unbounded:  # even a site that takes no step answers with its stored model
        return raw(description, rows.present("train"))
    if rows.train < max(1, work.fewest):
        return ()
    sound = within(work.rate, 1e-9, 1.0) and within(work.clip, 1e-6, 1e6) and within(work.noise, 1e-3, 1e6)
    if not sound or work.steps < 0 or not (work.steps or 0 < work.epochs <= _MOST_STEPS):
        return raw(description, rows.present("train"))
    steps = count_sampled_steps(work.rate, epochs=work.epochs, steps=work.steps)
    if steps > _MOST_STEPS:
        return raw(description, rows.present("train"))
    return (Event("sampled_gaussian", description, count=steps, sigma=work.noise, rate=work.rate),)


def _report(name: str, task: str, work: TrainConfig, rows: RowCounts, terms: Terms) -> Disclosure | None:
    """Find the disclosure of a report that is protected by its own noise only, if any.

    None if it discloses only row counts, which are taken as known, or if a private model covers it: it is computed from
    that model and reference rows only (`_trust_events` handles own rows).
    """
    report = spec_of(task).reports.get(name)
    if report is None:
        return Disclosure("a report of unknown kind", rows.present(*ALL))
    if not (report.rows or report.of_model) or (report.of_model and work.rate):
        return None
    parts = () if work.rate else rows.present("train")
    if name == "update" and within(work.longest, 1e-6, 1e6):  # independent of the patients
        return Disclosure("mean update", parts, work.longest, work.longest, unit="site")
    hidden = terms.withheld_splits if report.omits_withheld else ()
    return Disclosure(report.account, (*parts, *rows.present(*(p for p in report.rows if p not in hidden))))


def _trust_events(ask: Ask, rows: RowCounts, *, private: bool) -> tuple[Event, ...]:
    """Charge FedXChain's attributions and accuracy: disclosed even if withheld, since a site compares them with those it is
    shown.
    """
    parts = () if private else rows.present("train")
    events: tuple[Event, ...] = ()
    if ATTRIBUTE in ask.shared:
        shown = parts if str(ask.shared.get(ON, "")) else rows.present("train")
        events += raw("reasons of the site's own model", shown)  # language: ok (on sites' disks)
    if JUDGED_ON in ask.shared:
        shown = parts if str(ask.shared[JUDGED_ON]) else (*parts, *rows.present("val"))
        events += raw("how right the site's own model is", shown)
    return events


def _census(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge rows and events: one patient changes both by 1. With a `norm` also a vector of norm at most 1: sqrt(3) in
    total.
    """
    settings = ask.shared
    if "epsilon" in settings:  # Laplace noise of scale 2 / epsilon on two counts
        epsilon = number(settings, "epsilon")
        if "norm" in settings or not within(epsilon, 1e-6, 1e3):
            return AskCost(raw(_COUNTS, rows.present("train")))
        return AskCost((Event("laplace", _COUNTS, epsilon=epsilon),) if rows.train else ())
    sound = "norm" not in settings or (_is_exact_length(settings, "norm") and _is_exact_length(settings, "value"))
    return clipped_sum(ask, rows, _COUNTS, math.sqrt(3 if "norm" in settings else 2) if sound else math.inf)


def _scores(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge a sum of patients' vectors, each of norm at most `norm`."""
    sound = _is_exact_length(ask.shared, "norm") and _is_exact_length(ask.shared, "value")
    return clipped_sum(ask, rows, _SCORES, number(ask.shared, "norm") if sound else math.inf)


def _moments(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge z z' and a z (y - prior) for z of norm at most R: sqrt(R^4 + a^2 R^2 (y - prior)^2), for any prior."""
    settings = ask.shared
    r, a, prior = (number(settings, name) for name in ("norm", "outcome", "prior"))
    sound = (
        _is_exact_length(settings, "norm")
        and _is_exact_length(settings, "value")
        and within(abs(a), 0.0, 1e3)
        and within(prior, -1e3, 1e3)
    )
    off = max(1.0, abs(prior), abs(1 - prior))
    return clipped_sum(ask, rows, _MOMENTS, r * math.sqrt(r**2 + (a * off) ** 2) if sound else math.inf)


def _propose(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge k draws by scores that one patient changes by at most 1. Other forms give no guarantee that a site can check.

    As published, signs are sent without noise. With a site's own fit, a patient's influence depends on the number of other
    patients and on convergence: there is no bound for one patient more or less.
    """
    settings = ask.shared
    description = "proposals of features with a sign"
    epsilon, k = number(settings, "epsilon"), number(settings, "k")
    sound = within(epsilon, 1e-6, 1e3) and within(k, 1, _MOST_DRAWS) and _is_exact_length(settings, "value")
    if str(settings.get("selection")) != "score" or not sound:
        return AskCost(raw(description, rows.present("train")))
    return AskCost((Event("exponential", description, count=int(k), epsilon=epsilon),) if rows.train else ())


def _percentiles(ask: Ask, rows: RowCounts, terms: Terms) -> AskCost:
    """Charge counts: a patient is in one cell of each named column, whatever the cells are."""
    return clipped_sum(ask, rows, _CELLS, math.sqrt(len(json.loads(str(ask.shared["columns"])))))


def _is_exact_length(settings: Mapping[str, Value], name: str) -> bool:
    """Check that clipping is exact for this norm."""
    return within(number(settings, name), 1e-3, 1e3)


READERS: Mapping[str, Callable[[Ask, RowCounts, Terms], AskCost]] = {
    PREPARE: _prepare,
    SCORE: _score,
    PLATT: _platt,
    MAPS: _maps,
    CENSUS: _census,
    PROPOSE: _propose,
    SCORES: _scores,
    MOMENTS: _moments,
    PERCENTILES: _percentiles,
}
"""Readers of the kernel's tasks whose cost follows from the settings of the Ask (`OWN_COST` in the table of tasks)."""


@dataclass(frozen=True)
class WithheldAnswer:
    """An answer that the site withholds: the disclosure of each report (none if it is already private), and its layout."""

    disclosures: Mapping[str, Disclosure]
    layout: str
    digest: str


@dataclass(frozen=True)
class JoinedSum:
    """A sum for which the site shared its masks: number of sites on the roster, and its own weights, one for each report."""

    sites: int
    weights: tuple[float, ...]

    @classmethod
    def from_settings(cls, settings: Mapping[str, Value], site: str) -> JoinedSum:
        names = list(json.loads(str(settings["names"])))
        return cls(len(names), tuple(np.asarray(settings["weights"], float)[names.index(site)].tolist()))


def sum_cost(
    settings: Mapping[str, Value], withheld: WithheldAnswer | None, joined: JoinedSum | None, honest: int | None
) -> tuple[Event, ...]:
    """Find the events of a `secagg.masked` Ask.

    Args:
        settings: Settings of the Ask.
        withheld: The answer that is summed; None if it is not known for certain.
        joined: The sum for which the site shared its masks.
        honest: Sites whose noise counts; None for the protocol's threshold.

    Returns:
        The releases.
    """
    if withheld is None:
        return raw("a secure sum of what this account does not know", ("training", "validation", "test"), trust=TRUST)
    wanted = [r for r in str(settings.get("reports", "")).split(",") if r]
    shape = narrow_layout(withheld.layout, wanted) if wanted else withheld.layout
    parts = sorted(layout_reports(shape))
    disclosures = {name: withheld.disclosures[name] for name in parts if name in withheld.disclosures}
    if not any(t.rows for t in disclosures.values()):
        return ()
    noised = None if joined is None else _sum_event(settings, disclosures, parts, shape, joined, honest)
    if noised is not None:
        return (noised,)
    return tuple(
        e
        for t in disclosures.values()
        for e in raw(f"a secure sum without enough noise: {t.description}", t.rows, trust=TRUST)
    )


def _sum_event(
    settings: Mapping[str, Value],
    disclosures: Mapping[str, Disclosure],
    parts: list[str],
    shape: str,
    joined: JoinedSum,
    honest: int | None,
) -> Event | None:
    """Find the sum's event; None if there is no valid bound.

    A bound below the possible entries would make the site refuse depending on its patients' values, which would disclose
    them too.
    """
    from grandrounds.privacy.accounting import skellam_rho
    from grandrounds.privacy.secagg import Scale, Skellam, fewest_honest

    sigma, bound, parties, bits = (float(settings.get(n, 0.0)) for n in ("noise", "bound", "parties", "bits"))
    weights = dict(zip(parts, joined.weights, strict=True)) if len(joined.weights) == len(parts) else {}
    whose = {(t.unit, t.rows) for t in disclosures.values()}
    reach = math.hypot(*(t.reach * weights.get(name, 1.0) for name, t in disclosures.items()))
    largest = max(t.largest for t in disclosures.values())
    if bool(joined.weights) != bool(weights) or len(whose) > 1 or not largest <= bound:
        return None
    if not (within(sigma, 1e-12, 1e12) and within(bound, 1e-6, 2.0**40) and within(reach, 1e-12, 1e12)):
        return None
    if bits not in (32, 64) or not 1 <= parties < 2**24:
        return None
    fewest = fewest_honest(int(parties))
    noise = Skellam(sigma, fewest)
    room, whole = noise.room(int(parties)), bool(settings.get("whole", 0))
    if whole and (weights or bound + room > 2 ** (bits - 2)):
        return None
    scale = Scale(int(bits), bound, int(parties), weighted=bool(weights), spare=room, whole=whole)
    surely = fewest_honest(joined.sites) if honest is None else max(1, min(honest, fewest_honest(joined.sites)))
    enough = sigma * math.sqrt(surely / fewest)
    (unit, rows), description = (
        next(iter(whose)),
        " and ".join(dict.fromkeys(t.description for t in disclosures.values())),
    )
    if not within(enough / reach, 1e-6, 1e9):
        return None
    common: dict[str, Any] = {"unit": unit, "of": rows[0] if unit == "patient" else "training", "trust": TRUST}
    if _whole(shape) and not weights and scale.step <= 1 and noise.variance(scale) > _NORMAL:
        # integers lie on the ring: nothing is rounded
        return Event("gaussian", description, sigma=enough / reach, **common)
    rho = skellam_rho(enough, sensitivity=reach, step=scale.step, dimension=packed_size(shape))
    return Event("skellam", description, rho=rho, **common)


def _whole(shape: str) -> bool:
    return all(is_whole for _, _, is_whole in json.loads(shape))
