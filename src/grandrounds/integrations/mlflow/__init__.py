"""A finished run in an experiment tracker: its content (`contents`), the place (`target`), and MLflow (`client`).

A run finishes first and is logged then, from its folder. So a tracker that is away costs no run, and earlier runs, or those
at hospitals, are logged the same way.
"""

from __future__ import annotations

from grandrounds.integrations.mlflow.target import FORMS, Figures, LoggedRun, NotLogged, Target, track

__all__ = ["FORMS", "Figures", "LoggedRun", "NotLogged", "Target", "track"]
