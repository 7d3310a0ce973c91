"""Data quality by hospital."""

from grandrounds.core.capability import Capability, Command, MethodSection, SiteTask

_TASK = f"{__name__}.method.task"

CAPABILITY = Capability(
    name="quality",
    title="Data quality by hospital",
    budget=3_600,
    page="quality.md",
    names={"compare_sites": f"{__name__}.api:compare_sites"},
    commands={
        "quality": Command(f"{__name__}.commands:register", panel="Data", after="scans"),
    },
    methods={
        "quality": f"{__name__}.method.server:Quality",
    },
    tasks={
        "quality": SiteTask(spec=f"{_TASK}:SPEC", cost=f"{_TASK}:cost", admits=f"{_TASK}:admits"),
    },
    method_options={
        "quality": MethodSection(f"{__name__}.method.options:QualityOptions", after="watch"),
    },
)
