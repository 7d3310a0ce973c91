"""Short module names that can be imported: `grandrounds.errors` is `grandrounds.core.errors`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

ALIASES = {
    "grandrounds.arrays": "grandrounds.core.arrays",
    "grandrounds.config": "grandrounds.api.config",
    "grandrounds.errors": "grandrounds.core.errors",
    "grandrounds.flower": "grandrounds.integrations.flower",
    "grandrounds.messages": "grandrounds.protocol.messages",
    "grandrounds.methods.decision": "grandrounds.core.records",
    "grandrounds.rng": "grandrounds.core.rng",
    "grandrounds.studies": "grandrounds_studies",
    "grandrounds.tracking": "grandrounds.integrations.mlflow",
    "grandrounds.why": "grandrounds.analysis.case",
}
"""Old name -> new name; modules inside an old package are found inside the new one."""


class AliasFinder(MetaPathFinder, Loader):
    """Import a module under its old name: the same module object as under the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module whose name, or whose package's name, has an alias."""
        name = _new_name(fullname) if fullname.startswith("grandrounds.") else None
        real = None if name is None else find_spec(name)
        if real is None:
            return None
        spec = ModuleSpec(fullname, self, origin=real.origin, is_package=real.submodule_search_locations is not None)
        spec.has_location = real.has_location
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its new name."""
        name = _new_name(spec.name)
        assert name is not None
        return import_module(name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import system has replaced; its code has run."""
        module.__spec__ = PathFinder.find_spec(module.__name__, _folder_of(module))


def install() -> None:
    """Install the finder of aliases before all others; otherwise a module inside an old package would be imported twice."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())


def _folder_of(module: ModuleType) -> list[str] | None:
    """Return the folders in which a module may be: those of its package."""
    package = module.__name__.rpartition(".")[0]
    return list(sys.modules[package].__path__) if package else None


def _new_name(name: str) -> str | None:
    for old, new in ALIASES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None
