"""Grand Rounds: explainable, private and auditable federated learning for hospitals.

import grandrounds as gr

run = gr.run("breast-cancer")
run.summary.final["auroc"], run.history, run.sites
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from grandrounds.core.capability import collect, load
from grandrounds.core.version import __version__ as __version__

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # One BLAS thread unless the user says otherwise, set before NumPy loads: two cost up to 26x on shared cores.
    os.environ.setdefault(_name, "1")

if TYPE_CHECKING:
    from grandrounds import methods as methods
    from grandrounds import metrics as metrics
    from grandrounds.analysis.compare import Comparison as Comparison
    from grandrounds.api import config as config
    from grandrounds.api.comparing import compare as compare
    from grandrounds.api.estimator import FederatedClassifier as FederatedClassifier
    from grandrounds.api.opening import load_run as load_run
    from grandrounds.api.running import resume as resume
    from grandrounds.api.running import run as run
    from grandrounds.api.scoring import EvaluationResult as EvaluationResult
    from grandrounds.api.scoring import evaluate as evaluate
    from grandrounds.api.scoring import predict as predict
    from grandrounds.api.withdrawing import withdraw as withdraw
    from grandrounds.capabilities.cases.case import explain_case as explain_case
    from grandrounds.capabilities.cases.case import explain_site as explain_site
    from grandrounds.capabilities.dossier.api import dossier as dossier
    from grandrounds.capabilities.dossier.api import verify_dossier as verify_dossier
    from grandrounds.capabilities.quality.api import compare_sites as compare_sites
    from grandrounds.capabilities.sources.api import cohort_table as cohort_table
    from grandrounds.capabilities.statistics.api.carding import RiskCard as RiskCard
    from grandrounds.capabilities.statistics.api.carding import card as card
    from grandrounds.capabilities.statistics.api.describing import table1 as table1
    from grandrounds.capabilities.statistics.api.fitting import Regression as Regression
    from grandrounds.capabilities.statistics.api.fitting import cox as cox
    from grandrounds.capabilities.statistics.api.fitting import glm as glm
    from grandrounds.capabilities.statistics.api.survival import SurvivalAnalysis as SurvivalAnalysis
    from grandrounds.capabilities.statistics.api.survival import kaplan_meier as kaplan_meier
    from grandrounds.capabilities.statistics.api.survival import survival_scores as survival_scores
    from grandrounds.capabilities.statistics.table_result import TableOne as TableOne
    from grandrounds.capabilities.tuning.api import tune as tune
    from grandrounds.capabilities.tuning.trial import TuningResult as TuningResult
    from grandrounds.capabilities.watch.api.recalibrating import recalibrate as recalibrate
    from grandrounds.capabilities.watch.api.watching import watch as watch
    from grandrounds.capabilities.watch.api.watching import watch_consortium as watch_consortium
    from grandrounds.core.errors import BadInput as BadInput
    from grandrounds.core.errors import GrandRoundsWarning as GrandRoundsWarning
    from grandrounds.core.errors import RunFailed as RunFailed
    from grandrounds.core.records import Decision as Decision
    from grandrounds.core.records import RoundRecord as RoundRecord
    from grandrounds.core.records import RunSummary as RunSummary
    from grandrounds.experiment.experiment import Experiment as Experiment
    from grandrounds.methods.base import Method as Method
    from grandrounds.protocol.messages import Answers as Answers
    from grandrounds.protocol.messages import Ask as Ask
    from grandrounds.runs.run import Run as Run


_HOME = {
    "Comparison": "analysis.compare",
    "EvaluationResult": "api.scoring",
    "evaluate": "api.scoring",
    "predict": "api.scoring",
    "Experiment": "experiment.experiment",
    "FederatedClassifier": "api.estimator",
    "Method": "methods.base",
    "Answers": "protocol.messages",
    "Ask": "protocol.messages",
    "BadInput": "core.errors",
    "GrandRoundsWarning": "core.errors",
    "RunFailed": "core.errors",
    "Decision": "core.records",
    "RoundRecord": "core.records",
    "RunSummary": "core.records",
    "Run": "runs.run",
    "load_run": "api.opening",
    "compare": "api.comparing",
    "resume": "api.running",
    "run": "api.running",
    "withdraw": "api.withdrawing",
}
"""Name -> the module it is imported from, on first use: `import grandrounds` loads no NumPy, pandas or scikit-learn.

Capabilities add the names of their manifests."""

_MODULES = {"config": "api.config", "methods": "methods", "metrics": "metrics"}
"""Public name of a module -> where it is."""


def __dir__() -> list[str]:
    return _names()


def _names() -> list[str]:
    return sorted(["__version__", "reproduce", *_HOME, *_MODULES, *collect("names")])


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _names()
    if name == "reproduce":
        from grandrounds.core.reproductions import load_part

        return load_part(name)

    if name in _MODULES:
        return import_module(f"grandrounds.{_MODULES[name]}")
    path = f"grandrounds.{_HOME[name]}:{name}" if name in _HOME else collect("names").get(name)
    if path is None:
        raise AttributeError(f"module 'grandrounds' has no attribute '{name}'")
    globals()[name] = load(path)
    return globals()[name]
