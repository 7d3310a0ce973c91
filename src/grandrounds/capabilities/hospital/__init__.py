"""Hospitals behind messages: keepers, servers, gateways, keys."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="hospital",
    title="Hospitals behind messages: keepers, servers, gateways, keys",
    budget=13_500,
    page="hospitals.md",
    commands={
        "provision": Command("grandrounds.capabilities.hospital.commands.provision:app", panel="Deploy"),
        "server": Command("grandrounds.capabilities.hospital.commands.server:register", panel="Deploy", after="provision"),
        "site": Command("grandrounds.capabilities.hospital.commands.site:app", panel="Deploy", after="server"),
    },
    at_sites={"withdraw": "grandrounds.capabilities.hospital.commands.server:withdraw_at_sites"},
)
