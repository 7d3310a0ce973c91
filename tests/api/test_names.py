"""Names of the package: all there, typed, and none loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import grandrounds as gr
from grandrounds.core.section import Section

CHECK = """
import sys
import grandrounds
heavy = [m for m in ("numpy", "pandas", "sklearn", "torch", "pydantic", "rich", "plotly") if m in sys.modules]
assert not heavy, heavy
dir(grandrounds)
assert not [m for m in ("numpy", "pandas", "sklearn", "pydantic") if m in sys.modules]
"""


def test_import_loads_nothing_heavy():
    subprocess.run([sys.executable, "-c", CHECK], check=True)


@pytest.mark.parametrize("name", gr.__all__)
def test_every_name_is_there(name):
    assert getattr(gr, name) is not None and name in dir(gr)


def test_sections_are_the_classes_of_an_experiment():
    from grandrounds.api.config import Method

    assert Method is gr.config.Method
    for name in gr.config.__all__:
        assert issubclass(getattr(gr.config, name), Section)
    for name, field in gr.Experiment.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            assert getattr(gr.config, name.capitalize()) is field.annotation


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = gr.nothing
