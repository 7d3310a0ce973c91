"""Statements on the system: versions, hardware, compute, forms of delivery, interfaces and security measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grandrounds.audit.entry import CLOSE, OPEN
from grandrounds.capabilities.dossier.building.evidence import ENVIRONMENT, MADE, PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import (
    MissingFact,
    Source,
    Statement,
    Table,
    Value,
    cite_page,
    say,
)
from grandrounds.capabilities.dossier.building.statements import predictors
from grandrounds.capabilities.dossier.building.statements.record import is_simulated
from grandrounds.capabilities.dossier.building.statements.run_kind import is_deployed

THREATS = cite_page("threat-model.md")


def state_version(facts: Facts) -> Statement:
    """State the name of the run and the version of the software that made it."""
    return say(
        "The model is that of run '{name}', seed {seed}, made by Grand Rounds {version}.",
        name=facts.value(SUMMARY, "name"),
        seed=facts.value(SUMMARY, "seed", show="d"),
        version=facts.value(ENVIRONMENT, "packages", "grandrounds"),
    )


def state_software(facts: Facts) -> Iterator[Statement]:
    """State the versions of Python, packages and the operating system."""
    packages = facts.value(ENVIRONMENT, "packages")
    yield say(
        "The run used Python {python} on {system}.",
        python=facts.value(ENVIRONMENT, "python"),
        system=facts.value(ENVIRONMENT, "system"),
    )
    yield say("Packages: {packages}.", packages=packages)
    yield say(
        "This dossier was written by Grand Rounds {version} on {date}.",
        version=facts.value(MADE, "version"),
        date=facts.value(MADE, "date"),
    )


def state_training_hardware(facts: Facts) -> Statement:
    """State the machine that the run was made on; of a deployment the server's."""
    machine = "The server ran" if is_deployed(facts) else "The simulation ran"
    return say(
        machine + " on {processor} with {cores} cores and {memory} GiB of memory.",
        processor=facts.value(ENVIRONMENT, "processor"),
        cores=facts.value(ENVIRONMENT, "cores"),
        memory=facts.value(ENVIRONMENT, "memory_gib", show="g"),
    )


def state_size(facts: Facts) -> Statement:
    """State the number of parameters and of inputs of the model."""
    shape = facts.value(SUMMARY, "inputs")
    text = " x ".join(str(n) for n in shape.value)
    return say(
        "The model has {parameters} parameters; one input has the shape {shape}.",
        parameters=facts.value(SUMMARY, "parameters"),
        shape=replace(shape, text=text),
    )


def state_compute(facts: Facts) -> Statement:
    """State the time and memory of training."""
    peak = facts.value(SUMMARY, "cost", "peak_memory")
    return say(
        "The {rounds} rounds took {seconds} s, with {cpu} s of processor time and at most {peak} MiB of memory.",
        rounds=facts.value(SUMMARY, "rounds"),
        seconds=facts.value(SUMMARY, "cost", "seconds", show=".3g"),
        cpu=facts.value(SUMMARY, "cost", "cpu_seconds", show=".3g"),
        peak=facts.derive(peak.value / 2**20, "cost.peak_memory divided by 2^20", peak, show=",.0f"),
    )


def state_forms(facts: Facts) -> Iterator[Statement]:
    """State the files in which the model is delivered, and the commands that convert it."""
    closing = facts.entries(CLOSE)
    if closing:
        files = facts.entry_value(closing[-1], "files")
        models = [name for name in sorted(files.value) if name.endswith(".safetensors")]
        names = facts.derive(models, "model files in the closing entry", files)
        yield say("The model is delivered as {names}.", names=names)
    yield say(
        "`rounds export` converts the model for other programs: JSON, and ONNX where its kind allows it.",
        cite_page("run-folder.md"),
    )


def state_interfaces(facts: Facts) -> Iterator[Statement]:
    """State what the model reads and what it returns to other systems."""
    yield from predictors.state_columns(facts)
    yield from state_output(facts)


def state_output(facts: Facts) -> Iterator[Statement]:
    """State the value that the model returns for one patient."""
    task = facts.value(SUMMARY, "task") if facts.has(SUMMARY, "task") else None
    if task is not None and task.value in ("regression", "count"):
        yield say("The model returns one number for each patient (task: {task}).", task=task)
    elif task is not None and task.value == "survival":
        yield say("The model returns a risk score over time for each patient (task: {task}).", task=task)
    elif facts.has(SUMMARY, "event", "class"):
        event = facts.value(SUMMARY, "event", "class")
        if facts.has(SUMMARY, "event", "label"):
            label = facts.value(SUMMARY, "event", "label")
            yield say("The model returns the probability of {label} = {event}.", label=label, event=event)
        else:
            yield say("The model returns the probability of class '{event}'.", event=event)
    else:
        yield say("The model returns a probability for each of the classes {classes}.", classes=facts.value(SUMMARY, "classes"))
    if facts.has(SUMMARY, "threshold") and (task is None or task.value == "classification"):
        yield say(
            "Decisions use the threshold {threshold}, set by the rule '{rule}'.",
            threshold=facts.value(SUMMARY, "threshold"),
            rule=facts.value(PLAN, "evaluation", "threshold"),
        )


def state_user_interface(facts: Facts) -> Iterator[Statement]:
    """State the commands and pages by which people use the model."""
    yield say("`rounds predict` applies the model to a table.", cite_page("cli.md"))
    yield say(
        "`rounds explain` writes a page on one patient or one hospital.", cite_page("explain.md")
    )
    yield say("`rounds console` shows runs, rounds and patients' explanations in a browser.", cite_page("console.md"))


def state_components(facts: Facts) -> Iterator[Statement]:
    """State how sites and server work together."""
    yield say(
        "Each of {sites} sites computes on its own rows. The server combines the answers by method '{method}'.",
        sites=facts.value(SUMMARY, "sites", "all"),
        method=facts.value(SUMMARY, "method"),
    )
    if facts.entries(OPEN) and is_deployed(facts):
        yield say(
            "Sites answer signed requests that fit the plan and their own policy.", *facts.entries(OPEN)[0].sources
        )
    else:
        yield say("This run is a simulation: one process held the rows of all sites.", facts.source(PLAN, "data", "table"))


def state_attribution_tools(facts: Facts) -> Iterator[Statement]:
    """State the explanations that help users to interpret an output."""
    readable = {"shapes": "a sum of one curve for each column", "card": "a card of points", "estimates": "a regression"}
    for part, text in readable.items():
        if facts.has(SUMMARY, part):
            yield say(f"The model is {text}, which people can read term by term.", facts.source(SUMMARY, part))
            break
    else:
        if not facts.has(SUMMARY, "explanation", "explainer"):
            raise MissingFact("the run has no feature attributions (explain.sketch)")
    if not facts.has(SUMMARY, "explanation", "explainer"):
        return
    own = facts.has(SUMMARY, "explanation", "deployed")
    where = "for the final model on patients of each site" if own else "on reference rows"
    yield say(
        f"Feature attributions were computed by '{{explainer}}' {where}.",
        explainer=facts.value(SUMMARY, "explanation", "explainer"),
    )
    if facts.get(SUMMARY, "explanation", "top"):
        yield say(
            "The largest share has '{feature}' with {share}.",
            feature=facts.value(SUMMARY, "explanation", "top", 0, "feature"),
            share=facts.value(SUMMARY, "explanation", "top", 0, "share", show=".1%"),
        )


def state_pretrained(facts: Facts) -> Statement:
    """State whether training started from weights of a third party."""
    if facts.has(PLAN, "model", "weights"):
        return say("Training started from the weights '{weights}'.", weights=facts.value(PLAN, "model", "weights"))
    return say("No pre-trained weights were used.", facts.source(PLAN, "model", "weights"))


def tabulate_security(facts: Facts) -> Table:
    """List threats, the measure that the plan sets against each, and the risk that remains."""
    privacy, robust = ("privacy",), ("method", "robust")
    secure = bool(facts.get(PLAN, *privacy, "secure", default=False))
    epsilon = facts.get(PLAN, *privacy, "epsilon")
    rule, guard = facts.get(PLAN, *robust, "rule", default="none"), facts.get(PLAN, *robust, "guard", default=0.0)
    has_ledger = bool(facts.entries(OPEN))
    rows = [
        (
            "the server reads the answer of one site",
            _measure(facts, "secure aggregation" if secure else "none", *privacy, "secure"),
            "sums of few sites tell about each" if secure else "each answer is visible to the server",
        ),
        (
            "patients are inferred from what leaves",
            _measure(facts, "none" if epsilon is None else "noise within a budget of epsilon", *privacy, "epsilon"),
            "nothing bounds unknown attacks" if epsilon is None else "data that the guarantee does not cover",
        ),
        (
            "a site sends a poisoned model",
            _measure(facts, f"robust aggregation '{rule}', guard {guard:g}", *robust, "rule"),
            "plausible wrong answers are not detected with certainty",
        ),
        (
            "a record is altered afterwards",
            facts.derive("signed ledger" if has_ledger else "none", "entries of the ledger", _ledger_source(facts)),
            "whoever has the server's key can write a new ledger, unless a head was kept",
        ),
        (
            "an outsider joins or signs for a site",
            facts.derive(
                "none: keys follow from the seed" if is_simulated(facts) else "own keys of server and sites, signed messages",
                "keys in the opening entry",
                _ledger_source(facts),
            ),
            "lost keys",
        ),
    ]
    return Table("Threats and measures", ("threat", "measure in this run", "remaining risk"), tuple(rows), (THREATS,))


def _measure(facts: Facts, text: str, *path: str) -> Value:
    return facts.derive(text, "setting of the plan", facts.source(PLAN, *path))


def _ledger_source(facts: Facts) -> Source:
    opening = facts.entries(OPEN)
    return opening[0].sources[0] if opening else facts.source(SUMMARY)
