"""Hospitals behind messages: keepers, servers, gateways, keys."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="hospital",
    title="Hospitals behind messages: keepers, servers, gateways, keys",
    budget=15_900,
    page="hospitals.md",
    commands={
        "provision": Command(f"{__name__}.commands.provision:app", panel="Deploy"),
        "server": Command(f"{__name__}.commands.server:register", panel="Deploy", after="provision"),
        "site": Command(f"{__name__}.commands.site:app", panel="Deploy", after="server"),
    },
    at_sites={"withdraw": f"{__name__}.commands.server:withdraw_at_sites"},
)
