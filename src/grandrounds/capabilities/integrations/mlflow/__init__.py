"""Log a finished run to MLflow: its content (`contents`), the target (`target`), and the client (`client`).

A run is finished first and then logged from its folder. So an unreachable tracker never breaks a run, and earlier runs, or
those at hospitals, are logged in the same way.
"""

from __future__ import annotations

from grandrounds.capabilities.integrations.mlflow.target import FORMS, Figures, LoggedRun, NotLogged, Target
from grandrounds.capabilities.integrations.mlflow.tracking import track

__all__ = ["FORMS", "Figures", "LoggedRun", "NotLogged", "Target", "track"]
