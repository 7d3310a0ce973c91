"""The plan of a run as sites receive it: with the columns or images that the consortium agreed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.sources import AT_SITES, STROKES
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.agreement.schema_file import parse_schema
from grandrounds.data.encoding import order_classes
from grandrounds.data.event import state_event
from grandrounds.data.scan_options import ScanOptions

PlainPlan = dict[str, Any]
"""A plan as it is in JSON."""


def plan_at_sites(plan: PlainPlan, agreed: Mapping[str, Any]) -> PlainPlan:
    """Adapt a plan to the consortium's columns or images; data settings of a submitted experiment are ignored.

    Raises:
        BadInput: The consortium agreed on no data, or on data that do not fit the plan.
    """
    if not agreed:
        raise BadInput(
            "consortium.toml has no [data]: the sites must agree on columns or images before a run",
            code="no-agreed-data",
        )
    agreement = parse_schema(agreed)
    requested, settings = plan["data"], agreement.settings()
    nowhere: dict[str, object] = {
        "name": None,
        "table": AT_SITES,
        "query": None,
        "site": None,
        "drop": [],
        "sha256": None,
    }
    nowhere |= {"pictures": None, "size": None, "masks": None, "task": "auto", "duration": None}
    nowhere |= {"decimal": "auto", "text_encoding": "auto", "separator": "auto", "sheet": None}  # read from each site's file
    nowhere["cohort"] = agreed.get("cohort")
    if "scan" in requested:
        nowhere["scan"] = ScanOptions().to_dict(whole=True)
    data = {**requested, **nowhere, **settings, "levels": {**requested["levels"], **settings.get("levels", {})}}
    data["units"] = {**requested.get("units", {}), **settings.get("units", {})}
    if requested["encoding"] == "public" and isinstance(agreement, DataSchema):  # sites are asked for none of these
        data["ranges"] = {**agreement.ranges(), **requested["ranges"]}
        data["levels"] = {**agreement.levels(), **data["levels"]}
    if data["pictures"] and requested["masks"] == STROKES:  # computed at each site
        data["masks"] = STROKES
    if len(agreement.classes) == 2:  # an ambiguous event is refused here
        classes = order_classes(dict.fromkeys(agreement.classes, 0), data["positive"])["classes"]
        state_event(classes, None, data)
    return {**plan, "data": data, "split": {**plan["split"], "by": choose_split(plan["split"]["by"], data)}}


def choose_split(requested: str, data: Mapping[str, object]) -> str:
    """Choose the unit that is kept in one split: a patient, if the consortium agreed on a patient column.

    Raises:
        BadInput: The requested unit has no agreed column.
    """
    unit = ("row" if data["patient"] is None else "patient") if requested == "auto" else requested
    if unit in ("patient", "time") and data[unit] is None:
        raise BadInput(
            f"split.by is '{unit}', but the consortium agreed on no {unit} column: leave split.by out", code="no-agreed-column"
        )
    return unit
