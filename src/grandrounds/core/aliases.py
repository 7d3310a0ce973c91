"""Module names of earlier versions that stay importable: `grandrounds.errors` is `grandrounds.core.errors`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ALIASES = {
    "grandrounds.arrays": "grandrounds.core.arrays",
    "grandrounds.errors": "grandrounds.core.errors",
    "grandrounds.flower": "grandrounds.integrations.flower",
    "grandrounds.messages": "grandrounds.protocol.messages",
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
        if not fullname.startswith("grandrounds.") or _new_name(fullname) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its new name."""
        name = _new_name(spec.name)
        assert name is not None
        module = import_module(name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import system has replaced."""
        module.__spec__ = self._own_spec


def install() -> None:
    """Have Python look for aliases, after it has looked for files."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


def _new_name(name: str) -> str | None:
    for old, new in ALIASES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None
