"""Explanations of single patients and images: cases, sites, heat maps, masks."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="cases",
    title="Explanations of single patients and images: cases, sites, heat maps, masks",
    budget=5_600,
    page="explain.md",
    names={
        "explain_case": f"{__name__}.case:explain_case",
        "explain_site": f"{__name__}.case:explain_site",
    },
    commands={
        "explain": Command(f"{__name__}.commands.explain:register", panel="Inspect", after="report"),
        "explain masks": Command(f"{__name__}.commands.images:masks_app"),
        "explain maps": Command(f"{__name__}.commands.images:maps_app"),
    },
)
