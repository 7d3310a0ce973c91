"""Names of earlier versions: the same module objects, by import, by attribute and by an import path in a plan."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from grandrounds.core import plugins
from grandrounds.core.aliases import ALIASES


@pytest.mark.parametrize("old", sorted(ALIASES))
def test_an_old_name_is_the_new_module(old):
    if old == "grandrounds.flower":
        pytest.importorskip("flwr")
    assert import_module(old) is import_module(ALIASES[old])


def test_an_error_is_caught_under_either_name():
    program = (
        "import grandrounds as gr, grandrounds.why.case as case\n"
        "from grandrounds import errors\n"
        "from grandrounds.core.errors import BadInput\n"
        "assert gr.errors.BadInput is errors.BadInput is BadInput\n"
        "assert case.explain_case is gr.explain_case\n"
        "assert case.__spec__.name == 'grandrounds.analysis.case.case'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_plan_of_before_finds_code_that_moved():
    path = "grandrounds.studies.xfed.cost:a_few"
    plugins.allow({"split": {"partition": path}})
    found = plugins.resolve(path, key="split.partition")
    assert found.__module__ == "grandrounds_studies.xfed.cost"


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        import_module("grandrounds.nothing")
