"""MLflow, Flower apps and blockchains."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="integrations",
    title="MLflow, Flower apps and blockchains",
    budget=2_800,
    page="reports.md",
    commands={
        "track": Command(f"{__name__}.commands.track:register", panel="Use", after="export"),
        "audit anchor": Command(f"{__name__}.commands.chain:register_anchor"),
        "audit deploy": Command(f"{__name__}.commands.chain:register_deploy"),
        "audit writer": Command(f"{__name__}.commands.chain:register_writer"),
    },
    options={
        "run": f"{__name__}.commands.track:TrackOptions",
        "resume": f"{__name__}.commands.track:TrackOptions",
        "audit verify": f"{__name__}.commands.chain:ChainOptions",
    },
)
