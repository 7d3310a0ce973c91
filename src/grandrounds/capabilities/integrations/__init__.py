"""MLflow, Flower apps and blockchains."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="integrations",
    title="MLflow, Flower apps and blockchains",
    budget=2_500,
    page="reports.md",
    commands={
        "track": Command("grandrounds.cli.track:register", panel="Use", after="export"),
    },
)
