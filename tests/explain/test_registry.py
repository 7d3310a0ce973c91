"""The table of explainers: every entry can be imported and made, and settings take their words from it."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import numpy as np
import pytest

from grandrounds.experiment.sections import Explain
from grandrounds.explain.explainers.heat import HEATS
from grandrounds.explain.explainers.registry import EXPLAINER_SPECS, MAPS, SKETCHES, Use, explainers_for
from grandrounds.explain.features import Features
from grandrounds.explain.rule import SketchRule
from tests.support import refused


def test_a_name_has_one_entry_for_each_use_and_one_line_of_words():
    assert len({(spec.name, spec.use) for spec in EXPLAINER_SPECS}) == len(EXPLAINER_SPECS)
    assert all(spec.words and "\n" not in spec.words for spec in EXPLAINER_SPECS)


@pytest.mark.parametrize(
    "spec", [s for s in EXPLAINER_SPECS if s.code], ids=lambda s: f"{s.name}, {s.use.name.lower()}"
)
def test_every_entry_leads_to_its_code(spec):
    assert callable(spec.load())


@pytest.mark.parametrize("use", [Use.TABLE_SKETCH, Use.IMAGE_SKETCH])
def test_every_sketch_is_made_from_a_rule(use):
    table = use is Use.TABLE_SKETCH
    features = Features.from_inputs("ab") if table else Features.from_tiles(4, 4, (2, 2))
    for name, spec in explainers_for(use).items():
        made = SketchRule(name, seed=0).explainer(features, np.zeros((2, 2)) if spec.needs_background else None)
        assert made.features is features
    with refused("explainer-does-not-fit"):
        SketchRule("occlusion" if table else "shap", seed=0).explainer(features, np.zeros((2, 2)))


def test_every_heat_map_has_its_rule_and_maps_of_a_run_are_among_them():
    assert set(MAPS) < set(HEATS) == set(explainers_for(Use.HEAT_MAP))
    assert set(HEATS) <= set(explainers_for(Use.IMAGE_SKETCH))


def test_settings_take_the_words_of_the_table():
    assert get_args(Explain.model_fields["sketch"].annotation) == ("auto", "none", *SKETCHES)
    assert get_args(get_args(Explain.model_fields["maps"].annotation)[0]) == tuple(MAPS)


def test_the_table_is_read_without_its_explainers():
    code = "import sys, grandrounds.explain.rule; sys.exit(any(m.endswith(('.shapley', '.heat', 'torch')) for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
