"""Models with parts of each hospital's own: intercepts, layers, fine-tuning."""

from grandrounds.core.capability import Capability

CAPABILITY = Capability(
    name="personal",
    title="Models with parts of each hospital's own: intercepts, layers, fine-tuning",
    budget=3_000,
    page="personal.md",
)
