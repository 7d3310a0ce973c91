"""Explanations of single patients and images: cases, sites, heat maps, masks."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="cases",
    title="Explanations of single patients and images: cases, sites, heat maps, masks",
    budget=4_500,
    page="explain.md",
    names={
        "explain_case": "grandrounds.analysis.case.case:explain_case",
        "explain_site": "grandrounds.analysis.case.case:explain_site",
    },
    commands={
        "explain": Command(f"{__name__}.commands:register", panel="Inspect", after="report"),
        "explain masks": Command("grandrounds.cli.images:masks_app"),
        "explain maps": Command("grandrounds.cli.images:maps_app"),
    },
)
