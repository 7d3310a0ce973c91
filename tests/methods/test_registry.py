"""The tables of methods: what a name stands for is imported when it is looked up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from grandrounds.core.registry import Registry
from grandrounds.methods import METHODS, REGULARIZERS, is_exact, is_variant_of
from grandrounds.methods.weigh import RULE_CLASSES, RULES


@pytest.mark.parametrize("table", [METHODS, REGULARIZERS], ids=["methods", "regularizers"])
def test_every_class_has_the_name_under_which_it_is_listed(table):
    assert {name: kind.name for name, kind in table.items()} == {name: name for name in table}


def test_a_table_is_read_without_an_import():
    code = "import sys; from grandrounds.methods import METHODS as m; assert 'veil' in m and [*m]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "grandrounds.methods.base" not in loaded


def test_a_variant_is_the_method_or_a_subclass_of_it():
    assert (
        is_variant_of("fedavg", "fedavg") and is_variant_of("fedadam", "fedopt") and is_variant_of("scaffold", "fedavg")
    )
    assert not is_variant_of("fedavg", "fedadam") and not is_variant_of("glm", "fedavg")
    assert is_exact("glm") and not is_exact("fedavg") and not is_exact("nothing")


def test_classes_of_the_table_are_told_from_others():
    class Other(METHODS["fedavg"]):
        pass

    assert METHODS.lists(METHODS["fedavg"]) and not METHODS.lists(Other)


def test_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        Registry[object]({"a": "builtins:int"})["b"]


def test_rules_of_weighting_with_a_class_are_among_the_rules():
    assert set(RULE_CLASSES) <= set(RULES)
