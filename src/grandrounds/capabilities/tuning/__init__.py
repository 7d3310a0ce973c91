"""Search for settings with trials on inner splits."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="tuning",
    title="Search for settings with trials on inner splits",
    budget=1_800,
    page="experiments.md",
    names={
        "tune": "grandrounds.capabilities.tuning.api:tune",
        "TuningResult": "grandrounds.capabilities.tuning.trial:TuningResult",
    },
    commands={
        "tune": Command("grandrounds.capabilities.tuning.commands:register", panel="Train", after="compare"),
    },
)
