"""A finished run in an experiment tracker: what is told of it (`contents`), where to (`target`), and MLflow (`in_mlflow`).

A run is conducted first and logged then, from its folder. So a tracker that is away costs no run, and whatever was run
before, or by hospitals, is logged the same way.
"""

from __future__ import annotations

from grandrounds.integrations.mlflow.target import FORMS, Figures, Logged, NotLogged, Target, track

__all__ = ["FORMS", "Figures", "Logged", "NotLogged", "Target", "track"]
