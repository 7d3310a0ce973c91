"""A web console for runs, hospitals, patients and models."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="console",
    title="A web console for runs, hospitals, patients and models",
    budget=14_500,
    page="console.md",
    commands={
        "console": Command(f"{__name__}.commands:register", panel="Inspect", after="explain"),
    },
)
