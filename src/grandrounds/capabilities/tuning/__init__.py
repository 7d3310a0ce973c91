"""Search for settings with trials on inner splits."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="tuning",
    title="Search for settings with trials on inner splits",
    budget=1_900,
    page="experiments.md",
    names={
        "tune": f"{__name__}.api:tune",
        "TuningResult": f"{__name__}.trial:TuningResult",
    },
    commands={
        "tune": Command(f"{__name__}.commands:register", panel="Train", after="compare"),
    },
)
