"""Describe the machines of a study's runs. Readings may come from another machine, so each has its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Folder in which the driver lists its GPUs: read without torch, which table runs do not import."""


def machine(run: Run) -> dict[str, Any]:
    """Processor, cores, versions and date of a finished run as its summary has them; GPUs of the machine that reads it,
    which is the machine that ran it unless run folders were carried; and which device the run asked for."""
    from grandrounds import __version__

    held = run.summary["environment"]
    device = str(run.plan["engine"]["device"])
    return {
        "processor": held["processor"],
        "cores": held["cores"],
        "device": device,
        "gpus": [] if device == "cpu" else gpus(),
        "python": held["python"],
        "torch": held["packages"].get("torch"),
        "version": held["packages"].get("grandrounds") or __version__,
        "date": f"{datetime.fromtimestamp((run.folder / 'summary.json').stat().st_mtime, UTC):%Y-%m-%d}",
    }


def gpus(folder: Path = NVIDIA) -> list[str]:
    """The names of this machine's GPUs, as the driver tells them; none where there is no driver."""
    files = sorted(folder.glob("*/information")) if folder.is_dir() else []
    lines = [line for file in files for line in file.read_text().splitlines() if line.startswith("Model:")]
    return [line.split(":", 1)[1].strip() for line in lines]


def machines(each: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every machine once, with how many runs it had; one that is not recorded has nothing but that number."""
    count = Counter(tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in one.items()) for one in each)
    return [{"runs": n, **{k: list(v) if isinstance(v, tuple) else v for k, v in one}} for one, n in count.items()]


def machine_words(found: Iterable[Mapping[str, Any]]) -> str:
    """Machines in a clause each: "5 runs: AMD EPYC, 16 cores, NVIDIA H200 (engine.device auto), Python 3.11.9"."""
    return "; ".join(f"{one['runs']} run{'' if one['runs'] == 1 else 's'}: {_words(one)}" for one in found)


def _words(one: Mapping[str, Any]) -> str:
    if "processor" not in one:
        return "machine not recorded"
    gpu = f", {' and '.join(one['gpus'])} (engine.device {one['device']})" if one["gpus"] else ""
    torch = f", torch {one['torch']}" if one["torch"] else ""
    made = f", Grand Rounds {one['version']}, {one['date']}" if "date" in one else ""
    return f"{one['processor']}, {one['cores']} cores{gpu}, Python {one['python']}{torch}{made}"
