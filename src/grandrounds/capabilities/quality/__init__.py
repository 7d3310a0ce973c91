"""Data quality by hospital."""

from grandrounds.core.capability import Capability, Command, MethodSection

CAPABILITY = Capability(
    name="quality",
    title="Data quality by hospital",
    budget=3_400,
    page="quality.md",
    names={"compare_sites": f"{__name__}.api:compare_sites"},
    commands={
        "quality": Command(f"{__name__}.commands:register", panel="Data", after="scans"),
    },
    methods={
        "quality": f"{__name__}.method.server:Quality",
    },
    method_options={
        "quality": MethodSection(f"{__name__}.method.options:QualityOptions", after="watch"),
    },
)
