"""Data quality by hospital."""

from grandrounds.core.capability import Capability, Command, MethodSection

CAPABILITY = Capability(
    name="quality",
    title="Data quality by hospital",
    budget=2_500,
    page="quality.md",
    commands={
        "quality": Command(f"{__name__}.commands:register", panel="Data", after="scans"),
    },
    methods={
        "quality": "grandrounds.methods.quality.server:Quality",
    },
    method_options={
        "quality": MethodSection("grandrounds.methods.quality.options:QualityOptions", after="watch"),
    },
)
