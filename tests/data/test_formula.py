"""Formulas of a regression: the columns they name, and one sentence for what cannot be fitted."""

from __future__ import annotations

import re
import sys

import pytest

from grandrounds.core.errors import install_extra
from grandrounds.data.formula import parse_formula
from tests.support import refused


@pytest.mark.parametrize(
    ("text", "label", "features", "categorical", "products"),
    [
        ("died ~ age + C(sex)*bmi", "died", ("age", "sex", "bmi"), ("sex",), (("sex", "bmi"),)),
        ("died~age", "died", ("age",), (), ()),
        ("died ~ 1 + age + age", "died", ("age",), (), ()),
        ("y ~ (a + b + c)**2 - a:c", "y", ("a", "b", "c"), (), (("a", "b"), ("b", "c"))),
        ("y ~ age + I(age**2)", "y", ("age",), (), (("age", "age"),)),
        ("y ~ a + b + I(a * b)", "y", ("a", "b"), (), (("a", "b"),)),
        ("y ~ a*b*C(c)", "y", ("a", "b", "c"), ("c",), (("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c"))),
        ("died ~ age + `left (a|b)`", "died", ("age", "left (a|b)"), (), ()),
        ("`CRP [mg/l]` ~ `log(age)` + C(`a b`)", "CRP [mg/l]", ("log(age)", "a b"), ("a b",), ()),
        ("died ~ .", "died", (), (), ()),
    ],
)
def test_columns_of_a_formula(text, label, features, categorical, products):
    formula = parse_formula(text)
    assert (formula.label, formula.duration) == (label, None)
    assert (formula.features, formula.categorical) == (features, categorical)
    assert formula.products == products


def test_survival_names_time_and_event():
    formula = parse_formula("Surv(days, died) ~ age*C(sex) - 1")
    assert formula.settings() == {
        "label": "died", "duration": "days", "features": ["age", "sex"], "kinds": {"sex": "categorical"},
        "products": [["age", "sex"]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("age + bmi", "OUTCOME ~ COLUMN"),
        ("~ age", "OUTCOME ~ COLUMN"),
        ("died ~", "OUTCOME ~ COLUMN"),
        ("died ~ age +", "misplaced"),
        ("died ~ 1", "at least one column"),
        ("died ~ age - 1", "without an intercept"),
        ("died ~ 0 + age", "without an intercept"),
        ("died ~ log(age)", "log"),
        ("died ~ age + (1|hospital)", "--site hospital --intercept random"),
        ("died ~ age + (1 + age | hospital)", "random slopes"),
        ("died ~ age + offset(log(days))", "coefficient of their own"),
        ("died ~ np.log(age)", "np.log"),
        ("log(los) ~ age", "left side"),
        ("died + sick ~ age", "left side"),
        ("died ~ {age + 1}", "age . 1"),
        ("died ~ age:bmi", r"write age \* bmi"),
        ("died ~ I(age**2)", r"write age \+ I\(age\*\*2\)"),
        ("died ~ age + I(exp(age))", "products and powers"),
        ("died ~ age | bmi", "one right side"),
        ("died ~ C(sex, Treatment('f'))", "most frequent"),
        ("died ~ 3", "Numeric literals"),
        ("died ~ __import__('os').system('true')", "invalid syntax"),
    ],
)
def test_formulas_that_cannot_be_fitted_are_refused(text, named):
    with refused("bad-formula", match=named) as caught:
        parse_formula(text)
    assert "\n" not in str(caught.value)


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with refused("missing-package", match=re.escape(install_extra("formula"))):
        parse_formula("died ~ age")
