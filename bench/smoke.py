"""Smallest sizes for `make bench-smoke`, which sets BENCH_SMOKE=1, and exit status 77 where a script cannot run on a machine.

In smoke mode a script runs all of its code on a few rows, sites and rounds. It checks results, but no speed and no accuracy.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn, TypeVar

T = TypeVar("T")

SMOKE = os.environ.get("BENCH_SMOKE") == "1"
NOT_HERE = 77
"""Exit status of a script whose package, data folder or device is not on this machine, with one sentence on stderr."""


def pick(full: T, smallest: T) -> T:
    """Return the size of a measurement, or the smallest one in smoke mode."""
    return smallest if SMOKE else full


def skip(reason: str) -> NoReturn:
    """End the script with status 77."""
    print(reason, file=sys.stderr, flush=True)
    sys.exit(NOT_HERE)


def need(*packages: str) -> None:
    """End the script unless these packages are installed."""
    for package in packages:
        if find_spec(package) is None:
            skip(f"{package} is not installed")


def need_data(*folders: str) -> None:
    """End the script unless the data sets of these folders are on this machine."""
    from grandrounds.data.store import VARIABLE, search_folders

    for folder in folders:
        if not any((place / folder).exists() for place in search_folders()):
            skip(f"{folder} is not on this machine: set {VARIABLE} to the folder of data sets")
