"""Settings of method 'quality': [method.quality]."""

from __future__ import annotations

from pydantic import Field

from grandrounds.core.section import Section


class BinsOptions(Section):
    """Agreed bins of one column of method 'quality'."""

    edges: tuple[float, ...] = Field((), description="rising edges of the bins of a number")
    levels: tuple[str, ...] = Field((), description="values of a category, each with a count; one more counts all others")
    range: tuple[float, ...] = Field((), description="lowest and highest possible value of a number; both are edges")
    unit: str = Field("", description="agreed unit of a number")


class QualityOptions(Section):
    """Method 'quality': counts of every site's rows in agreed bins, compared between sites before training."""

    bins: dict[str, BinsOptions] = Field(
        default_factory=dict, description="agreed bins by column; `rounds quality --plan FILE` writes them from the schema"
    )
    classes: tuple[str, ...] = Field((), description="classes of the label that are counted")
    years: tuple[int, ...] = Field((), description="first and last year with a count of its own; empty: dates are not counted")
    patients: bool = Field(False, description="count patients with several rows, where the table names patients")
    least: int = Field(5, ge=2, description="smallest count of patients that a site sends in the clear")
    level: float = Field(
        0.01, gt=0, le=0.5, description="chance that a comparison of equal sites names any difference (Holm's correction)"
    )
    effect: float = Field(
        0.25,
        gt=0,
        lt=1,
        description="smallest share of a site's rows that would have to be in other bins for a difference to be named",
    )
