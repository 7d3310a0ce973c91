"""Grand Rounds: explainable, private and auditable federated learning for hospitals.

import grandrounds as gr

run = gr.run("breast-cancer")
run.summary.final["auroc"], run.history, run.sites
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from grandrounds.core.version import __version__ as __version__

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # One BLAS thread unless the user says otherwise, set before NumPy loads: two cost up to 26x on shared cores.
    os.environ.setdefault(_name, "1")

if TYPE_CHECKING:
    from grandrounds import methods, metrics
    from grandrounds.analysis.case.case import explain_case, explain_site
    from grandrounds.analysis.compare import Comparison
    from grandrounds.api import config
    from grandrounds.api.carding import RiskCard, card
    from grandrounds.api.cohorts import cohort_table
    from grandrounds.api.comparing import compare, tune
    from grandrounds.api.comparing_sites import compare_sites
    from grandrounds.api.describing import table1
    from grandrounds.api.dossiers import dossier, verify_dossier
    from grandrounds.api.estimator import FederatedClassifier
    from grandrounds.api.fitting import Regression, cox, glm
    from grandrounds.api.opening import load_run
    from grandrounds.api.recalibrating import recalibrate
    from grandrounds.api.running import resume, run
    from grandrounds.api.scoring import EvaluationResult, evaluate, predict
    from grandrounds.api.survival import SurvivalAnalysis, kaplan_meier, survival_scores
    from grandrounds.api.watching import watch, watch_consortium
    from grandrounds.api.withdrawing import withdraw
    from grandrounds.core.errors import BadInput, GrandRoundsWarning, RunFailed
    from grandrounds.core.records import Decision, RoundRecord, RunSummary
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.methods.base import Method
    from grandrounds.protocol.messages import Answers, Ask
    from grandrounds.runs.run import Run
    from grandrounds.statistics.table_result import TableOne
    from grandrounds.tuning.trial import TuningResult

__all__ = [
    "Answers",
    "Ask",
    "BadInput",
    "Comparison",
    "Decision",
    "EvaluationResult",
    "Experiment",
    "FederatedClassifier",
    "GrandRoundsWarning",
    "Method",
    "Regression",
    "RiskCard",
    "RoundRecord",
    "Run",
    "RunFailed",
    "RunSummary",
    "SurvivalAnalysis",
    "TableOne",
    "TuningResult",
    "__version__",
    "card",
    "cohort_table",
    "compare",
    "compare_sites",
    "config",
    "cox",
    "dossier",
    "evaluate",
    "explain_case",
    "explain_site",
    "glm",
    "kaplan_meier",
    "load_run",
    "methods",
    "metrics",
    "predict",
    "recalibrate",
    "reproduce",
    "resume",
    "run",
    "survival_scores",
    "table1",
    "tune",
    "verify_dossier",
    "watch",
    "watch_consortium",
    "withdraw",
]

_HOME = {
    "Comparison": "analysis.compare",
    "EvaluationResult": "api.scoring",
    "Experiment": "experiment.experiment",
    "FederatedClassifier": "api.estimator",
    "Method": "methods.base",
    "TableOne": "statistics.table_result",
    "TuningResult": "tuning.trial",
    **dict.fromkeys(("Answers", "Ask"), "protocol.messages"),
    **dict.fromkeys(("BadInput", "GrandRoundsWarning", "RunFailed"), "core.errors"),
    **dict.fromkeys(("Decision", "RoundRecord", "RunSummary"), "core.records"),
    "Run": "runs.run",
    "load_run": "api.opening",
    **dict.fromkeys(("RiskCard", "card"), "api.carding"),
    "cohort_table": "api.cohorts",
    **dict.fromkeys(("compare", "tune"), "api.comparing"),
    **dict.fromkeys(("Regression", "cox", "glm"), "api.fitting"),
    **dict.fromkeys(("evaluate", "predict"), "api.scoring"),
    "compare_sites": "api.comparing_sites",
    "table1": "api.describing",
    **dict.fromkeys(("dossier", "verify_dossier"), "api.dossiers"),
    **dict.fromkeys(("SurvivalAnalysis", "kaplan_meier", "survival_scores"), "api.survival"),
    **dict.fromkeys(("explain_case", "explain_site"), "analysis.case.case"),
    **dict.fromkeys(("resume", "run"), "api.running"),
    "recalibrate": "api.recalibrating",
    **dict.fromkeys(("watch", "watch_consortium"), "api.watching"),
    "withdraw": "api.withdrawing",
}
"""Name -> the module it is imported from, on first use: `import grandrounds` loads no NumPy, pandas or scikit-learn."""

_MODULES = {"config": "api.config", "methods": "methods", "metrics": "metrics"}
"""Public name of a module -> where it is."""


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "reproduce":
        from grandrounds.core.reproductions import load_part

        return load_part(name)

    if name in _MODULES:
        return import_module(f"grandrounds.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'grandrounds' has no attribute '{name}'")
    value = getattr(import_module(f"grandrounds.{_HOME[name]}"), name)
    globals()[name] = value
    return value
