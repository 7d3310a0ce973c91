"""Model dossiers, and a signed register of models in use."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="dossier",
    title="Model dossiers, and a signed register of models in use",
    budget=8_900,
    page="dossier.md",
    names={
        "dossier": f"{__name__}.api:dossier",
        "verify_dossier": f"{__name__}.api:verify_dossier",
    },
    model_register={"banner": f"{__name__}.register.status:banner", "state": f"{__name__}.register.status:state_of"},
    commands={
        "models": Command(f"{__name__}.commands.models:app", panel="Trust"),
        "dossier": Command(f"{__name__}.commands.dossier:register", panel="Trust", after="withdraw"),
    },
)
