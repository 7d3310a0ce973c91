"""Capabilities: parts of the package that the kernel does not know, each with one manifest.

A manifest lists what its capability adds, as import paths: reading it loads nothing else. The kernel finds manifests of the
package in the folder `capabilities/`, and those of other distributions by the entry point `grandrounds.capabilities`. A
capability that is not installed adds nothing, and is no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from grandrounds.core.errors import BadInput

FOLDER = "grandrounds.capabilities"
"""The package in which the manifests of this distribution lie, and the group of entry points of others."""


@dataclass(frozen=True)
class Command:
    """A command that a capability adds to `rounds`.

    Attributes:
        add: Import path of a Typer app, or of a function that takes the app `rounds` and registers the command.
        panel: Panel of `rounds --help`; "" for a sub-command.
        after: The command after which it is listed; "" for the first of its panel.
    """

    add: str
    panel: str = ""
    after: str = ""


@dataclass(frozen=True)
class PersonalPart:
    """A part of the model that each hospital trains and keeps (`personal.part`).

    Attributes:
        title: A line for people.
        fit: Import path of a function `fit(site, terms, k, common, part)`: the model of site k fitted to rows of `part`; of None
            the model that it trained in the rounds.
        refusals: Import path of a function `refusals(model, plan)`: reasons why a plan cannot train this part.
        site: Import path of the site half that trains it in every round; "" for a part that is fitted after the rounds.
    """

    title: str
    fit: str
    refusals: str
    site: str = ""


@dataclass(frozen=True)
class Stage:
    """A step after hospitals chose their models: the server sends Asks of one task, and each site answers them.

    Attributes:
        ask: Import path of a function `ask(plan, encoding, served, sites, personal)`: yields Asks, returns entries of `personal`.
        answer: Import path of a function `answer(site, folder, ask, members)`: reports of the sites of one host.
        reports: Import path of a function `reports(plan)`: the reports of each Ask that a plan makes of it.
    """

    ask: str
    answer: str
    reports: str


@dataclass(frozen=True)
class SiteTask:
    """A task that sites answer for a capability, and what a hospital decides by. A site without the capability refuses the task.

    Attributes:
        spec: Import path of its row in the table of tasks (`protocol.task_spec.TaskSpec`).
        cost: Import path of a function `cost(ask, rows)`: the privacy cost of its answer, from the Ask and the site's row counts;
            "" where the reports of `spec` name the rows that they disclose.
        admits: Import path of a function `admits(ask, plan)`: has the Ask the settings of the plan that the site opened?
    """

    spec: str
    admits: str
    cost: str = ""


@dataclass(frozen=True)
class MethodSection:
    """A section below [method], with the settings of a capability's methods.

    Attributes:
        section: Import path of its class.
        after: The section after which it is listed; "" for the last place.
    """

    section: str
    after: str = ""


@dataclass(frozen=True)
class TableModel:
    """A model of tables that reads whole columns and has no gradient.

    Attributes:
        title: Its line in `rounds list models`.
        model: Import path of its class, with `from_spec` and `columns_of`.
        kernels: The kernels that its models may have.
        train: Import path of a function `train(job)` that fits it at each site to the site's own rows.
        refusals: Import path of a function `refusals(model, plan)`: reasons why it does not fit a plan.
        onnx: Import path of a function `onnx(model)` that builds its ONNX graph.
        options: Import path of a function `options(plan)`: the settings of its fit by the method of its name; "" for a model that
            only 'pooled' and 'local' fit.
        private_method: The method that fits it under privacy.epsilon; "" for none.
    """

    title: str
    model: str
    kernels: tuple[str, ...]
    train: str
    refusals: str
    onnx: str
    options: str = ""
    private_method: str = ""


@dataclass(frozen=True)
class Export:
    """A format of `rounds export` beside JSON and ONNX.

    Attributes:
        file: The file in the run folder.
        write: Import path of a function `write(model)` that returns the text of the file.
        models: The models that it can write.
    """

    file: str
    write: str
    models: tuple[str, ...]


@dataclass(frozen=True)
class LedgerFolder:
    """A folder that is no run folder and has a ledger of its own, which `rounds audit verify` checks.

    Attributes:
        holds: Import path of a function `holds(folder)`: is it such a folder, be its ledger removed?
        audit: Import path of a function `audit(folder, key=, heads=, sites=, files=)` that returns an AuditResult.
    """

    holds: str
    audit: str


@dataclass(frozen=True)
class Capability:
    """The manifest of a capability: all that the kernel knows of it.

    Attributes:
        name: The name of its folder.
        title: A line for people.
        budget: Most lines that its source may have.
        page: Its page below docs/.
        names: Names that `import grandrounds` offers, with their import paths.
        commands: Commands of `rounds` by name; "explain maps" is the sub-command `maps` of `explain`.
        options: Options that are added to commands of the kernel, by command ("audit verify"): import paths of dataclasses whose
            fields are the options. One is made before the command starts, and refuses wrong values; its method
            `finish(result, quiet=)` takes the command's result and returns it, as it is or changed.
        methods: Federated methods by name, with the import paths of their classes.
        ledgers: Folders with a ledger of their own, by what they are called: "a watch".
        model_register: The register of models: {"banner": function of a run folder that returns why its model should not be used,
            or ""; "state": function of a run folder that returns its state}.
        at_sites: Commands of the kernel for a run whose rows are at hospitals: {"withdraw": function that submits it to them}.
        method_options: Sections below [method] by name.
        models: Models of whole columns by name.
        exports: Formats of `rounds export` by name.
        printers: Import paths of functions `printer(run)` that print a finished run in place of its summary and return True, or
            return False, by kind of run.
        parts: Personal parts by name.
        stages: Steps after hospitals chose their models, by task.
        tasks: Tasks that sites answer, by name.
        readers: Import paths of readers by the end of a file's name, by "://" for addresses, and by a section of a plan with what
            is read, such as "data.cohort settings".
    """

    name: str
    title: str
    budget: int
    page: str
    names: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    ledgers: Mapping[str, LedgerFolder] = field(default_factory=dict)
    model_register: Mapping[str, str] = field(default_factory=dict)
    at_sites: Mapping[str, str] = field(default_factory=dict)
    method_options: Mapping[str, MethodSection] = field(default_factory=dict)
    models: Mapping[str, TableModel] = field(default_factory=dict)
    exports: Mapping[str, Export] = field(default_factory=dict)
    printers: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, PersonalPart] = field(default_factory=dict)
    stages: Mapping[str, Stage] = field(default_factory=dict)
    tasks: Mapping[str, SiteTask] = field(default_factory=dict)
    readers: Mapping[str, str] = field(default_factory=dict)


@cache
def capabilities() -> tuple[Capability, ...]:
    """Return the manifests of all installed capabilities, by name; those of this package first."""
    own = find_spec(FOLDER)
    folders = () if own is None else own.submodule_search_locations or ()
    modules = (import_module(f"{FOLDER}.{module.name}") for module in iter_modules(folders))
    others = sorted(entry_points(group=FOLDER), key=lambda point: point.name)
    return (*(module.CAPABILITY for module in modules), *(point.load() for point in others))


def collect(member: str) -> dict[str, Any]:
    """Join one member of all manifests, such as `collect("methods")`.

    Raises:
        ValueError: Two capabilities have the same name in it.
    """
    out: dict[str, Any] = {}
    for capability in capabilities():
        values: Mapping[str, Any] = getattr(capability, member)
        if both := sorted(set(values) & set(out)):
            raise ValueError(f"capability '{capability.name}' has {member} '{both[0]}', which another capability has too")
        out |= values
    return out


def names_of(**named: str) -> list[str]:
    """Return the capabilities that have one of these names: `names_of(methods="glm", models="logistic")`."""
    return [c.name for c in capabilities() if any(name in getattr(c, member) for member, name in named.items())]


def not_installed(what: str) -> BadInput:
    """Return the error for what no installed capability has; `what` is the first half of its sentence."""
    installed = ", ".join(c.name for c in capabilities()) or "none"
    return BadInput(f"{what}; installed capabilities: {installed}", code="capability-not-installed")


def find(member: str, name: str, *, what: str) -> Any:
    """Load what a capability has under a name.

    Args:
        member: The member of manifests.
        name: The name in it.
        what: What needs it, for the error.

    Raises:
        BadInput: No installed capability has it.
    """
    path = collect(member).get(name)
    if path is None:
        raise not_installed(f"{what}, and no installed capability is for that")
    return load(path)


def load(path: str) -> Any:
    """Import what an import path names: `load("grandrounds.methods.fedavg:FedAvg")`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
