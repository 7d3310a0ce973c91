"""Formulas of a regression, such as `died ~ age + C(sex) * bmi`: parsed into the columns of [data], never evaluated.

The package formulaic parses them; it is an optional dependency. Interactions become `data.products`, `C(x)` makes a column
categorical, and `I(x**2)` is the product of a column with itself. What sites cannot compute alike, such as `log(x)`, is refused.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grandrounds.core.errors import BadInput, install_extra

NO_OFFSET = (
    "an offset (person-time, exposure) is not offered; the same values as a column would have a coefficient of their own, which "
    "is another model. Rates per person-time cannot be fitted here; time to the first event can (`rounds fit cox`)"
)
"""Words for whoever asks for an offset or an exposure."""

_CATEGORY = re.compile(r"C\(\s*(?:`([^`]+)`|([^\W\d][\w.]*))\s*\)")
_SURVIVAL = re.compile(r"Surv\(\s*(?:`([^`]+)`|([^\W\d][\w.]*))\s*,\s*(?:`([^`]+)`|([^\W\d][\w.]*))\s*\)")
_MIXED = re.compile(r"\(([^()|]*)\|+([^()|]*)\)")
_BARRED = re.compile(r"`[^`]*\|[^`]*`")  # names of columns with a bar
_MARKS = re.compile(r"\x1b\[[0-9;]*m|[⧛⧚]")  # formulaic marks the wrong place in colour


@dataclass(frozen=True)
class Formula:
    """A regression formula as settings of [data].

    Attributes:
        label: The outcome; for survival the event.
        duration: The column of follow-up time, from `Surv(days, died)`; None for other models.
        features: The columns of the right side; empty for `.`: all that are left.
        categorical: Those in `C(...)`.
        products: Interactions and powers, as lists of columns.
    """

    label: str
    duration: str | None
    features: tuple[str, ...]
    categorical: tuple[str, ...]
    products: tuple[tuple[str, ...], ...]

    def settings(self) -> dict[str, Any]:
        """Return the settings of [data]."""
        values: dict[str, Any] = {"label": self.label, "features": list(self.features)}
        if self.duration is not None:
            values["duration"] = self.duration
        if self.categorical:
            values["kinds"] = dict.fromkeys(self.categorical, "categorical")
        if self.products:
            values["products"] = [list(p) for p in self.products]
        return values


def parse_formula(text: str) -> Formula:
    """Parse a formula.

    Args:
        text: Such as "died ~ age + C(sex) * bmi" or "Surv(days, died) ~ age".

    Returns:
        The columns that it names.

    Raises:
        BadInput: It cannot be read, formulaic is not installed, or it asks for something that cannot be fitted.
    """
    left, tilde, right = text.partition("~")
    bar = _MIXED.search(_BARRED.sub("", right))
    if bar:
        raise _refuse(text, _describe_mixed(bar[1].strip(), bar[2].strip()))
    if not tilde or not left.strip() or not right.strip():
        raise _refuse(text, "write OUTCOME ~ COLUMN + COLUMN, such as died ~ age + C(sex)")
    label, duration = _outcome(text, left.strip())
    if right.strip() == ".":
        return Formula(label, duration, (), (), ())
    terms = _terms(text, right)
    if not any(not factors for factors in terms) and duration is None:
        raise _refuse(text, "a regression without an intercept is not offered; remove '- 1' or '+ 0'")
    features: dict[str, None] = {}
    categorical: dict[str, None] = {}
    products: dict[tuple[str, ...], None] = {}
    for factors in terms:
        columns = [
            column
            for factor, is_column in factors
            for column in ([factor] if is_column else _columns(text, factor, categorical))
        ]
        if len(columns) == 1:
            features[columns[0]] = None
        elif columns:
            products[tuple(columns)] = None
    _check_parts(text, features, products)
    if not features:
        raise _refuse(text, "name at least one column on the right side")
    return Formula(label, duration, tuple(features), tuple(categorical), tuple(products))


def _describe_mixed(terms: str, group: str) -> str:
    """Say where random intercepts are asked for: not in the formula."""
    if terms != "1":
        return f"random slopes such as ({terms} | {group}) are not offered; random intercepts are (--intercept random)"
    return (
        f"remove (1 | {group}): random intercepts of hospitals are an option, --site {group} --intercept random "
        f"(gr.glm: site='{group}', intercept='random')"
    )


def _outcome(text: str, left: str) -> tuple[str, str | None]:
    """Read the left side: a column, or Surv(time, event)."""
    survival = _SURVIVAL.fullmatch(left)
    if survival:
        time, event = survival[1] or survival[2], survival[3] or survival[4]
        return event, time
    plain = re.fullmatch(r"`([^`]+)`|([^\W\d][\w.]*)", left)
    if plain:
        return plain[1] or plain[2], None
    raise _refuse(text, f"the left side '{left}' must be a column, or Surv(TIME, EVENT) for survival")


def _terms(text: str, right: str) -> list[list[tuple[str, bool]]]:
    """Parse the right side into terms, each a list of factors; the intercept is the term without factors.

    A factor is its text, and True if it is the name of a column.
    """
    try:
        from formulaic import Formula as Parsed
        from formulaic.errors import FormulaicError
    except ImportError:
        raise BadInput(
            f"a formula needs the package formulaic; {install_extra('formula')}, or list the columns with --features",
            code="missing-package",
        ) from None
    try:
        parsed = Parsed(right.strip())
    except (FormulaicError, SyntaxError, ValueError, RecursionError) as problem:
        reason = _MARKS.sub("", str(problem).strip().split("\n")[0])
        raise _refuse(text, reason.removesuffix(" (<unknown>, line 1)")) from None
    terms = []
    for term in parsed:
        if not hasattr(term, "factors"):
            raise _refuse(text, "write one outcome and one right side, without '|'")
        factors = [(str(factor.expr), factor.eval_method.name) for factor in term.factors]
        number = next((f for f, kind in factors if kind == "LITERAL" and f != "1"), None)
        if number is not None:
            raise _refuse(text, f"the number {number} is no column")
        terms.append([(f, kind == "LOOKUP") for f, kind in factors if kind != "LITERAL"])
    return terms


def _columns(text: str, factor: str, categorical: dict[str, None]) -> list[str]:
    """List the columns that a factor multiplies, and remember those that it makes categorical."""
    category = _CATEGORY.fullmatch(factor)
    if category:
        name = category[1] or category[2]
        categorical[name] = None
        return [name]
    if factor.startswith("C("):
        raise _refuse(
            text, f"'{factor}': C() takes one column; the reference is the most frequent level over all sites"
        )
    if factor.startswith("I(") and factor.endswith(")"):
        return _factors(text, factor)
    called = re.match(r"([^\W\d][\w.]*)\(", factor)
    if called and called[1] == "offset":
        raise _refuse(text, NO_OFFSET)
    if called:
        raise _refuse(
            text, f"{called[1]}() cannot be computed inside a formula; add a column with its values to the table"
        )
    raise _refuse(text, f"'{factor}' cannot be computed inside a formula; add a column with its values to the table")


def _factors(text: str, factor: str) -> list[str]:
    """List the columns of I(x * z) and I(x**2), each as often as it is multiplied."""

    def walk(node: ast.expr) -> Counter[str]:
        if isinstance(node, ast.Name):
            return Counter([node.id])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return walk(node.left) + walk(node.right)
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Pow)
            and isinstance(node.right, ast.Constant)
            and isinstance(node.right.value, int)
            and 1 <= node.right.value <= 9
        ):
            return Counter({name: n * node.right.value for name, n in walk(node.left).items()})
        raise _refuse(text, f"'{factor}': I() takes products and powers of columns, such as I(age**2)")

    try:
        tree = ast.parse(factor[2:-1].strip(), mode="eval")
    except (SyntaxError, ValueError):
        raise _refuse(text, f"'{factor}': I() takes products and powers of columns, such as I(age**2)") from None
    return list(walk(tree.body).elements())


def _check_parts(text: str, features: Iterable[str], products: Iterable[tuple[str, ...]]) -> None:
    """Refuse a product whose columns are not in the formula themselves; `check_products` checks the rest."""
    for product in products:
        missing = next((name for name in product if name not in features), None)
        if missing is not None:
            named = " * ".join(dict.fromkeys(product))
            whole = named if len(set(product)) > 1 else f"{product[0]} + I({product[0]}**{len(product)})"
            raise _refuse(text, f"it multiplies '{missing}' without '{missing}' itself; write {whole}")


def _refuse(text: str, reason: str) -> BadInput:
    return BadInput(f"formula '{text.strip()}': {reason}", code="bad-formula")
