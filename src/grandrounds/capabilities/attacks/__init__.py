"""Attacks on models and runs: membership, attributes, reconstruction."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="attacks",
    title="Attacks on models and runs: membership, attributes, reconstruction",
    budget=2_400,
    page="attacks.md",
    commands={
        "attack": Command(f"{__name__}.commands:register", panel="Trust", after="privacy"),
    },
)
