"""Documents of a dossier, by name.

A module of this package has a function `build(facts) -> Document`; adding a document is a line in DOCUMENTS.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from grandrounds.capabilities.dossier.building.document import Document
from grandrounds.capabilities.dossier.building.facts import Facts

DOCUMENTS: dict[str, str] = {
    "tripod-ai": "tripod",
    "annex-iv": "annex_iv",
    "pccp": "pccp",
    "dpia": "dpia",
    "model-card": "model_card",
    "data-sheet": "data_sheet",
}
"""Name of each document (its file name) and its module, in the order of the dossier."""


def build_documents(facts: Facts) -> tuple[Document, ...]:
    """Build all documents of a dossier.

    Args:
        facts: The facts of a run, with people's answers.

    Returns:
        The documents, in order.
    """
    builders: dict[str, Callable[[Facts], Document]] = {
        name: import_module(f"{__name__}.{module}").build for name, module in DOCUMENTS.items()
    }
    return tuple(build(facts) for build in builders.values())
