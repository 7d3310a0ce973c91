"""The machine of a run: package versions and hardware, so that a figure can be traced."""

from __future__ import annotations

import os
import platform
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch")


@lru_cache
def environment() -> dict[str, object]:
    """Return the versions of Python and packages, the processor and the memory."""
    from grandrounds.core.version import __version__

    packages = {"grandrounds": __version__}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": packages,
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": _memory(),
        "byte_order": sys.byteorder,
    }


def own_version() -> str:
    """Return the version of this package."""
    from grandrounds.core.version import __version__

    return __version__


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return 0.0
