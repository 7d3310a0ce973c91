"""What-if questions about a patient: the columns that can be changed, and checks of the values sent.

A what-if describes the model, not the patient: values that change together in real patients change here one at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel

from grandrounds.capabilities.cases.table import CaseExplanation
from grandrounds.capabilities.cases.values import is_yes_no, short
from grandrounds.capabilities.console.cases.patients import Patients, Value
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.encoding import Encoding
from grandrounds.explain.percentiles import Spread

LONGEST = 8000
"""Characters of a what-if's values."""
_STEPS = 200  # steps of a slider, approximately
_TRIED = 50  # values of a column that a search for another decision tries, approximately
_WORDS = 80  # characters of a name or value that an error repeats


class Control(BaseModel):
    """A column that can be changed: a number between `low` and `high`, yes or no (1 or 0), or one of `levels`. `value` is the
    patient's, `label` and `unit` are clinical."""

    column: str
    label: str
    unit: str = ""
    kind: Literal["number", "yes-no", "choice"]
    value: float | str | None
    low: float | None = None
    high: float | None = None
    step: float | None = None
    levels: list[str] = []
    range: str = ""


def controls(patients: Patients, case: CaseExplanation) -> list[Control]:
    """List the columns of a patient that can be changed, the strongest contribution first; constant ones are left out."""
    model = patients.model(patients.user)
    encoding, schema = model.encoding, model.schema
    assert isinstance(encoding, Encoding) and schema is not None
    orders = {c.name: list(c.order) for c in schema.columns if c.order}
    levels = {r.name: [w for w in (*r.levels, r.baseline) if w] for r in encoding.categorical} | orders
    listed = []
    for reason in case.attributions:
        label = case.labels.find(reason.column)
        if reason.column in levels:
            words = levels[reason.column]
            extra = [str(reason.value)] if reason.value is not None and str(reason.value) not in words else []
            control = Control(
                column=reason.column, label=label.name, kind="choice", value=reason.value, levels=[*words, *extra]
            )
            listed += [control] if len(control.levels) + (reason.value is None) > 1 else []
        else:
            spread = None if case.population.summary is None else case.population.summary.numeric.get(reason.column)
            low_high = spread.quantiles if isinstance(spread, Spread) else ()
            value = reason.value if isinstance(reason.value, float) else None
            if is_yes_no((*patients.column(reason.column).tolist(), *low_high, *([] if value is None else [value]))):
                yes_no = Control(column=reason.column, label=label.name, kind="yes-no", value=value, low=0.0, high=1.0)
                listed.append(yes_no)
                continue
            sliders = _slider(reason.column, value, low_high, patients)
            listed += [s.model_copy(update={"label": label.name, "unit": label.unit}) for s in sliders]
    return listed


def list_candidates(changeable: Sequence[Control]) -> dict[str, list[float] | list[str]]:
    """List the values that a search for another decision tries, by column.

    Args:
        changeable: The columns that can be changed.

    Returns:
        Round numbers over the range of a slider, 0 and 1, or categories.
    """
    candidates: dict[str, list[float] | list[str]] = {}
    for control in changeable:
        if control.kind == "choice":
            candidates[control.column] = list(control.levels)
        elif control.kind == "yes-no":
            candidates[control.column] = [0.0, 1.0]
        else:
            assert control.low is not None and control.high is not None and control.step is not None
            step = max(control.step, _nice((control.high - control.low) / _TRIED))
            first, last = math.ceil(control.low / step), math.floor(control.high / step)
            candidates[control.column] = [_round(k * step) for k in range(first, last + 1)]
    return candidates


def parse_values(text: str, changeable: Sequence[Control]) -> dict[str, Value]:
    """Parse the values of a what-if.

    Args:
        text: A JSON object: a number, a category, or null for no value by column.
        changeable: The columns that can be changed.

    Returns:
        The values that differ from the patient's.

    Raises:
        BadInput: It is anything else.
    """
    try:
        parsed = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadInput(
            "the values cannot be read: give a JSON object of columns and values", code="invalid-request"
        ) from None
    if not isinstance(parsed, dict):
        raise BadInput("the values cannot be read: give a JSON object of columns and values", code="invalid-request")
    by_name = {c.column: c for c in changeable}
    out: dict[str, Value] = {}
    for name, value in parsed.items():
        if name not in by_name:
            raise BadInput(
                f"no column '{name[:_WORDS]}' can be changed; {nearest(name[:_WORDS], by_name)}", code="unknown-column"
            )
        out[name] = _check_value(by_name[name], value)
    return {name: value for name, value in out.items() if value != by_name[name].value}


def _check_value(control: Control, value: object) -> Value:
    if value is None:
        return None
    name = control.column
    if control.kind == "choice":
        if not isinstance(value, str) or value not in control.levels:
            raise BadInput(
                f"{name} cannot be {_shorten(value)}; {nearest(_shorten(value), control.levels)}", code="unknown-level"
            )
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{name} must be a number, not {_shorten(value)}", code="not-numeric")
    assert control.low is not None and control.high is not None
    if control.kind == "yes-no" and value not in (0, 1):
        raise BadInput(f"{name} must be 1 (yes) or 0 (no), not {_shorten(value)}", code="out-of-range")
    if not control.low <= value <= control.high:  # NaN and infinity fail this comparison too
        raise BadInput(
            f"{name} must lie between {short(control.low)} and {short(control.high)}, not {_shorten(value)}",
            code="out-of-range",
        )
    return float(value)


def _shorten(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_WORDS]


def _no_constant(word: str) -> float:
    raise ValueError(word)


def _slider(column: str, value: float | None, quantiles: Sequence[float], patients: Patients) -> list[Control]:
    """Make a slider over the central 99% of all sites' patients, or of this site's where their range is not released."""
    words = "99% of patients"
    range_values = np.asarray(quantiles, float)
    if not len(range_values):
        range_values, words = patients.column(column), f"99% of {patients.site}'s patients"
    if len(range_values):
        low, high = (float(q) for q in np.quantile(range_values, [0.005, 0.995]))
    elif value is not None:
        low = high = value
    else:
        return []
    if value is not None:
        low, high = min(low, value), max(high, value)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return []
    site_values = patients.column(column)
    if (
        len(site_values)
        and bool(np.all(site_values == np.round(site_values)))
        and (value is None or value == round(value))
    ):
        low, high, step = float(round(low)), float(round(high)), max(1.0, _nice((high - low) / _STEPS))
    else:
        step = _nice((high - low) / _STEPS)
        low, high = _round(math.floor(low / step) * step), _round(math.ceil(high / step) * step)
    if not low < high:
        return []
    text = f"{words}: {short(low)} to {short(high)}"
    step = _round(step)
    return [Control(column=column, label=column, kind="number", value=value, low=low, high=high, step=step, range=text)]


def _nice(size: float) -> float:
    """Round a size down to 1, 2 or 5 times a power of ten."""
    ten = 10.0 ** math.floor(math.log10(size))
    return max(t for t in (ten, 2 * ten, 5 * ten) if t <= size * (1 + 1e-9)) if size >= ten else ten


def _round(value: float) -> float:
    return float(f"{value:.10g}")
