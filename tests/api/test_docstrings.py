"""Public functions say what they take, give and raise: all that `grandrounds` exports, and the classes that users extend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import grandrounds as gr
from grandrounds.methods.fedavg import FedAvg
from grandrounds.site.objective import LocalObjective
from grandrounds.site.plugin import SitePlugin


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give the public functions, and the public methods of classes, by name."""
    exported = {name: getattr(gr, name) for name in gr.__all__}
    for name, value in {**exported, "FedAvg": FedAvg, "LocalObjective": LocalObjective, "SitePlugin": SitePlugin}.items():
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            members = ((member, getattr(found, "__func__", found)) for member, found in vars(value).items())
            yield from ((f"{name}.{m}", f) for m, f in members if not m.startswith("_") and inspect.isfunction(f))


FUNCTIONS = dict(public_functions())


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_public_function_documents_its_parameters_and_its_result(name):
    function = FUNCTIONS[name]
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    parameters = [p for p in signature.parameters if p not in ("self", "cls")]
    assert text, "no docstring"
    assert not parameters or "Args:" in text, f"no Args for {', '.join(parameters)}"
    for parameter in parameters:
        assert f"{parameter}:" in text or f"{parameter}, " in text, f"nothing on {parameter}"
    if signature.return_annotation not in (None, "None", inspect.Signature.empty):
        assert "Return" in text or "Yields" in text, "nothing on the result"


def test_the_list_is_not_empty():
    assert {"run", "compare", "Run.why", "FederatedClassifier.fit", "LocalObjective.fit"} <= set(FUNCTIONS)
