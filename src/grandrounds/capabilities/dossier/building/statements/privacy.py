"""Statements on privacy: the guarantee, the data that leave sites, and secure aggregation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grandrounds.capabilities.dossier.building.evidence import DISCLOSURES, EXPLANATIONS, PLAN, PRIVACY, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.core.errors import GrandRoundsError
from grandrounds.core.plan_types import Plan
from grandrounds.core.plugins import is_path
from grandrounds.privacy.in_words import is_simulation, plain, rounded_up, secure_aggregation
from grandrounds.protocol.task_spec import CELLS, COUNT, MODEL, NOTHING, REASONS
from grandrounds.protocol.tasks import EVALUATE, EXPLAIN, MAPS, SCORE, STATISTIC, WITNESS

_UNITS = {"patient": "patient", "row": "row of the table", "site": "hospital as a whole"}
_TRUST = {
    "local": "Each site adds the noise before anything leaves it, so the guarantee also holds against the server.",
    "secure aggregation": "Each site adds a share of the noise, and the server sees only the sum. "
    "The guarantee needs enough honest sites.",
    "trusted server": "The server adds the noise and sees answers without it. The sites must trust the server.",
}
_ONCE, _ROUNDS, _END = "once, before round 1", "in rounds", "at the end"
_BEFORE = ("summarise", "prepare", "lend", "secagg.introduce", "secagg.meet")
_ALSO_AFTER = (EVALUATE, SCORE, EXPLAIN, MAPS, WITNESS)
_AFTER = ("finetune", "calibrate", "platt", "personal", "personal.spread", "personal.harm", "personal.differences")


def is_promised(facts: Facts) -> bool:
    """Tell whether the run guarantees a finite epsilon."""
    privacy = facts.get(SUMMARY, "privacy", default={})
    return privacy.get("mechanism", "none") != "none" and privacy.get("epsilon") is not None


def is_secure(facts: Facts) -> bool:
    """Tell whether the plan has secure aggregation."""
    return bool(facts.get(PLAN, "privacy", "secure", default=False))


def state_guarantee(facts: Facts) -> Iterator[Statement]:
    """State epsilon, delta, the unit and the budget, or that the run has no guarantee."""
    mechanism = facts.value(SUMMARY, "privacy", "mechanism")
    if not is_promised(facts):
        yield say("The run has no formal privacy guarantee (mechanism: {mechanism}).", mechanism=mechanism)
        return
    unit = facts.value(SUMMARY, "privacy", "unit")
    yield say(
        "The run guarantees epsilon = {epsilon} with delta = {delta} to each {unit}.",
        epsilon=_read_epsilon(facts, "epsilon"),
        delta=_read_delta(facts),
        unit=replace(unit, text=_UNITS.get(str(unit.value), str(unit.value))),
    )
    if facts.has(SUMMARY, "privacy", "budget"):
        yield say(
            "The budget was epsilon = {budget}; {left} of it was not spent.",
            budget=_read_epsilon(facts, "budget"),
            left=facts.value(PRIVACY, "left", show=".2g"),
        )


def state_mechanism(facts: Facts) -> Iterator[Statement]:
    """Name the mechanism, its noise and clipping, and the party that adds the noise; nothing without a guarantee."""
    if not is_promised(facts):
        return
    yield say("The mechanism is {mechanism}.", mechanism=facts.value(SUMMARY, "privacy", "mechanism"))
    if facts.has(SUMMARY, "privacy", "noise") and facts.has(SUMMARY, "privacy", "clip"):
        yield say(
            "The noise multiplier is {noise}, and the clipping norm is {clip}.",
            noise=facts.value(SUMMARY, "privacy", "noise"),
            clip=facts.value(SUMMARY, "privacy", "clip"),
        )
    trust = str(facts.get(SUMMARY, "privacy", "trust", default=""))
    source = facts.source(SUMMARY, "privacy", "trust")
    yield from (say(sentence, source) for name, sentence in _TRUST.items() if name in trust)


def state_recomputed(facts: Facts) -> Iterator[Statement]:
    """State whether the epsilon recomputed from the recorded releases agrees with the record; nothing without a guarantee."""
    if not is_promised(facts):
        return
    spent = facts.value(PRIVACY, "worked_out_again")
    findings = facts.raw(PRIVACY, "findings")
    if findings:
        found = facts.derive(len(findings), "number of findings", facts.source(PRIVACY, "findings"))
        yield say("The recorded releases do not agree with the stated epsilon: {found} findings.", found=found)
        return
    yield say(
        "Recomputed from the recorded releases, epsilon is {spent}. The summary and the ledger agree with it.",
        facts.source(PRIVACY, "findings"),
        spent=replace(spent, text=rounded_up(spent.value)),
    )


def tabulate_disclosures(facts: Facts) -> Iterator[Table]:
    """List the data that left each site; with a guarantee also those that it does not cover."""
    has_guarantee = is_promised(facts)
    title = "Data that each site disclosed" if has_guarantee else "Data that each site disclosed, without a guarantee"
    yield _list_texts(facts, title, DISCLOSURES, "disclosures")
    if has_guarantee:
        yield _list_texts(facts, "Data that the guarantee does not cover", PRIVACY, "not_covered")


def _list_texts(facts: Facts, title: str, file: str, key: str) -> Table:
    rows = tuple((facts.value(file, key, k),) for k in range(len(facts.raw(file, key))))
    return Table(title, ("data",), rows, (facts.source(file, key),))


def tabulate_requests(facts: Facts) -> Table:
    """List the tasks that the plan asks a site for, the data that each discloses, how often, and the size where it is known."""
    source = facts.source(PLAN)
    rule = "requests that the plan declares; a site answers no other (grandrounds.experiment.requests)"
    rows: list[tuple[str | Value, ...]] = []
    for task, reports, kind, how in _list_requests(facts):
        disclosed = kind if kind == NOTHING or not how else f"{kind} ({how})"
        cells = [facts.derive(text, rule, source) for text in (task, reports, disclosed)]
        rows.append((*cells, _state_times(facts, task), _state_size(facts, task, kind)))
    columns = ("task", "reports", "discloses", "when", "size")
    return Table("Requests of the plan to each site", columns, tuple(rows), (source,))


def _state_times(facts: Facts, task: str) -> Value:
    """State how often a site is asked for a task."""
    rounds = facts.source(SUMMARY, "rounds")
    if task in _BEFORE:
        return facts.derive(1, "asked before round 1", rounds, text=_ONCE)
    if task in _AFTER:
        return facts.derive(1, "asked after the last round", rounds, text=_END)
    count = facts.get(SUMMARY, "rounds")
    text = _ROUNDS if count is None else f"in at most {count:,} rounds"
    text += f" and {_END}" if task in _ALSO_AFTER else ""
    return facts.derive(count, "rounds of the run", rounds, text=text)


def _state_size(facts: Facts, task: str, kind: str) -> str | Value:
    """State the numbers in one answer, where the run's files tell them."""
    if kind == COUNT:
        return "1 number each"
    if kind == MODEL and facts.get(SUMMARY, "parameters"):
        parameters = facts.value(SUMMARY, "parameters")
        return facts.derive(parameters.value, "parameters of the model", parameters, text=f"{parameters.text} numbers")
    if kind == REASONS and facts.has(EXPLANATIONS, "features"):
        count = len(facts.raw(EXPLANATIONS, "features"))
        source = facts.source(EXPLANATIONS, "features")
        return facts.derive(count, "number of features that are explained", source, text=f"{count:,} numbers")
    sent = ("privacy", "numbers", "numbers_sent")
    if task == STATISTIC and facts.has(SUMMARY, *sent):
        numbers = facts.value(SUMMARY, *sent)
        return facts.derive(numbers.value, "sums of a site in all exchanges", numbers, text=f"{numbers.text} numbers in all")
    if task == EVALUATE and kind == CELLS and facts.has(SUMMARY, "cost", "evaluation_bytes"):
        size = facts.value(SUMMARY, "cost", "evaluation_bytes", show=",.0f")
        return facts.derive(size.value, "bytes of evaluation, all sites, both ways", size, text=f"{size.text} bytes, all sites")
    return ""


def _list_requests(facts: Facts) -> list[tuple[str, str, str, str]]:
    """List (task, reports, kind of disclosure, protection) of all requests, each once."""
    from grandrounds.experiment.requests import expected_asks
    from grandrounds.protocol.tasks import spec_of

    plan = facts.raw(PLAN)
    if is_path(str(facts.get(PLAN, "method", "name", default=""))):
        raise MissingFact("requests of a method of one's own are not listed: its code is not run to read a plan")
    try:
        asks = expected_asks(plan)
    except (AttributeError, KeyError, TypeError, ValueError, GrandRoundsError):
        raise MissingFact(f"{PLAN} lacks settings, so that its requests are not listed") from None
    under_budget = Plan(plan).privacy.epsilon is not None
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for ask in asks:
        for name in ask.report:
            spec = spec_of(ask.task).reports[name]
            how = "only in a secure sum" if name in ask.withheld else spec.release.kind if under_budget else ""
            found.setdefault((ask.task, spec.kind, how), {})[name] = None
    return [(task, ", ".join(names), kind, how) for (task, kind, how), names in found.items()]


def state_traffic(facts: Facts) -> Iterator[Statement]:
    """State the messages and bytes of the run, in total and per site."""
    yield say(
        "Sites sent {up} bytes to the server and received {down} bytes, in {messages} messages.",
        up=facts.value(SUMMARY, "cost", "bytes_up", show=",.0f"),
        down=facts.value(SUMMARY, "cost", "bytes_down", show=",.0f"),
        messages=facts.value(SUMMARY, "cost", "messages", show=",.0f"),
    )
    sites, up = facts.value(SUMMARY, "sites", "all"), facts.value(SUMMARY, "cost", "bytes_up")
    if sites.value:
        yield say(
            "This is {each} bytes sent by each of {sites} sites, on average.",
            each=facts.derive(up.value / sites.value, "cost.bytes_up divided by sites.all", up, sites, show=",.0f"),
            sites=sites,
        )
    yield say(
        "Models and updates of training are {payload} bytes of what was sent. Evaluation took {evaluation} bytes both ways.",
        payload=facts.value(SUMMARY, "cost", "payload_up", show=",.0f"),
        evaluation=facts.value(SUMMARY, "cost", "evaluation_bytes", show=",.0f"),
    )


def state_sums_sent(facts: Facts) -> Iterator[Statement]:
    """State how many numbers left for those held, of a fit from sums; nothing for other methods."""
    numbers = ("privacy", "numbers")
    if not facts.has(SUMMARY, *numbers):
        return
    yield say(
        "Sites sent {sent} sums over their patients in {count} exchanges; they hold {held} values.",
        sent=facts.value(SUMMARY, *numbers, "numbers_sent"),
        count=facts.value(SUMMARY, *numbers, "count"),
        held=facts.value(SUMMARY, *numbers, "numbers_held"),
    )
    if facts.has(SUMMARY, "privacy", "cells"):
        yield say(
            "Of the histogram cells with patients, {single} held one patient ({share}). The gradient there tells the outcome.",
            single=facts.value(SUMMARY, "privacy", "cells", "single"),
            share=facts.value(SUMMARY, "privacy", "cells", "share_single", show=".1%"),
        )


def state_secure(facts: Facts) -> Iterator[Statement]:
    """State whether single answers were hidden from the server by secure aggregation; nothing where all rows were pooled."""
    told = {"method": facts.get(SUMMARY, "method"), "privacy": {"secure": is_secure(facts)}}
    yield from (say(sentence, facts.source(PLAN, "privacy", "secure")) for sentence in secure_aggregation(told))


def state_recipients(facts: Facts) -> Iterator[Statement]:
    """Name the parties that receive data of a site."""
    if is_secure(facts):
        yield say(
            "The server receives sums of models and counts, and the other answers of each site as they are.",
            facts.source(PLAN, "privacy", "secure"),
        )
    else:
        yield say("The server receives every answer of each site.", facts.source(PLAN, "privacy", "secure"))
    if facts.get(SUMMARY, "parameters"):
        yield say("All {sites} sites receive the common model.", sites=facts.value(SUMMARY, "sites", "all"))
    lent = facts.get(SUMMARY, "privacy", "lent", default={})
    for name in lent:
        yield say(
            "Every site received {rows} reference rows of set '{name}'.",
            rows=facts.value(SUMMARY, "privacy", "lent", name),
            name=facts.derive(name, "name of the reference set", facts.source(SUMMARY, "privacy", "lent")),
        )
    if facts.get(SUMMARY, "privacy", "crossed_rounds"):
        yield say(
            "Every site received the models of the other sites (evaluation.local_models).",
            facts.source(SUMMARY, "privacy", "crossed_rounds"),
        )


def state_rows_stay(facts: Facts) -> Statement:
    """State that rows stayed at their sites, except where the method pools them."""
    method = facts.value(SUMMARY, "method")
    if is_path(str(method.value)):
        raise MissingFact(f"method '{method.value}' is code of the user's own, whose requests are not known")
    if method.value == "pooled":
        return say("Method '{method}' collects all training rows in one place, as a baseline.", method=method)
    return say("Method '{method}' asks sites for none of their rows.", method=method)


def state_simulated_noise(facts: Facts) -> Iterator[Statement]:
    """State that noise and keys of a simulation follow from its seed; nothing for a run at hospitals, or without either."""
    if is_simulation(facts.get(SUMMARY, "privacy", default={})) and (is_promised(facts) or is_secure(facts)):
        yield say(
            "This run is a simulation: noise and keys follow from the seed. Whoever knows the seed can remove them.",
            facts.source(SUMMARY, "privacy", "simulated"),
        )


def _read_epsilon(facts: Facts, key: str) -> Value:
    """Read an epsilon, rounded up for readers."""
    value = facts.value(SUMMARY, "privacy", key)
    return replace(value, text=rounded_up(float(value.value)))


def _read_delta(facts: Facts) -> Value:
    value = facts.value(SUMMARY, "privacy", "delta")
    return replace(value, text=plain(float(value.value)))


def state_ratio(facts: Facts) -> Statement:
    """State the number of training rows for each parameter of the model."""
    parameters, rows = facts.value(SUMMARY, "parameters"), facts.raw(SUMMARY, "rows")
    total = sum(int(site.get("train", 0)) for site in rows.values())
    if not parameters.value or not total:
        raise MissingFact("the run has no model with parameters to compare with its training rows")
    source = facts.source(SUMMARY, "rows")
    return say(
        "The model has {parameters} parameters. Sites hold {rows} training rows: {ratio} for each parameter.",
        parameters=parameters,
        rows=facts.derive(total, "sum of rows.SITE.train", source),
        ratio=facts.derive(total / parameters.value, "training rows divided by parameters", source, parameters, show=".3g"),
    )
