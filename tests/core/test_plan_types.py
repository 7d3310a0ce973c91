"""The typed view of a plan names every setting that an experiment has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.plan_types import FILE, render

from grandrounds.core.plan_types import Plan
from grandrounds.experiment.experiment import Experiment
from tests.support import refused


def test_the_file_is_what_the_sections_give():
    assert FILE.read_text() == render(), "run: python tools/plan_types.py --write"


def test_a_plan_is_read_by_attribute_and_has_no_other_settings():
    plan = Plan(Experiment.parse({"data": {"name": "breast-cancer"}, "method": {"rounds": 7}}).plan())
    assert plan.method.rounds == 7
    assert plan.method.weigh.rule == "data_size"
    with refused("unknown-setting", match="no 'roundz'"):
        plan.method.roundz  # noqa: B018


def test_reading_a_plan_needs_no_pydantic():
    without = "import sys; sys.modules['pydantic'] = None"
    code = f"{without}\nfrom grandrounds.core.plan_types import Plan\nprint(Plan({{'seed': 3}}).seed)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert out.stdout.strip() == "3", out.stderr
