"""Settings of method 'watch': [method.watch]."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grandrounds.core.section import NAMES_SOURCE, Section, SourceName


class WatchOptions(Section):
    """Method 'watch': new patients of all hospitals against those that a model was trained on, from sums."""

    run: Annotated[str, NAMES_SOURCE] = Field("", description="folder of the finished run whose model is watched, on the server")
    model: str = Field("", description="SHA-256 of the model's parameters; the server and every site refuse another model")
    edges: dict[str, tuple[float, ...]] = Field(
        default_factory=dict,
        description="agreed bins of numeric columns; values outside the first and last edge are out of range",
    )
    level: float = Field(
        0.01,
        gt=0,
        le=0.5,
        description="chance that a site whose patients did not change reports any feature as moved (Holm's correction)",
    )
    least: int = Field(5, ge=2, description="smallest count of patients that a site sends in the clear")
    moved: Literal["test", "alarms"] = Field(
        "test",
        description="rule by which a site decides that a feature moved. 'test': tests of its new patients at `level`; 'alarms': "
        "alarms of its own watch (`rounds watch RUN --site`) where it has one, else tests",
    )
    labels: bool = Field(True, description="compare predicted risks with outcomes, where new patients have a label")
    table: SourceName = Field(
        None, description="new patients of all sites, in a simulation; not set: the test rows of each site"
    )
    shifts: tuple[str, ...] = Field(
        (), description="changes planted into new patients of a simulation: 'COLUMN=FACTOR@SITE', or 'COLUMN=missing@SITE'"
    )
