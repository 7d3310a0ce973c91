"""Grand Rounds: federated learning in which every hospital explains itself.

import grandrounds as gr
run = gr.run(gr.Experiment(data={"name": "breast-cancer"}))
run.summary["final"]["auroc"], run.rounds, run.model
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # One BLAS thread unless the user says otherwise, set before NumPy loads: two cost up to 26x on shared cores.
    os.environ.setdefault(_name, "1")

from grandrounds.core import aliases  # noqa: E402

aliases.install()

if TYPE_CHECKING:
    from grandrounds.analysis.case.case import explain_case, explain_site
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import Run, load_run, resume, run

__version__ = "0.1.0"
__all__ = [
    "Experiment",
    "Run",
    "__version__",
    "explain_case",
    "explain_site",
    "load_run",
    "reproduce",
    "resume",
    "run",
]

_HOME = {
    "Experiment": "experiment.experiment",
    **dict.fromkeys(("Run", "load_run", "resume", "run"), "runs.run"),
    **dict.fromkeys(("explain_case", "explain_site"), "analysis.case.case"),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "reproduce":
        from grandrounds.core.reproductions import load_part

        return load_part(name)

    if f"grandrounds.{name}" in aliases.ALIASES:
        return import_module(f"grandrounds.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'grandrounds' has no attribute '{name}'")
    value = getattr(import_module(f"grandrounds.{_HOME[name]}"), name)
    globals()[name] = value
    return value
