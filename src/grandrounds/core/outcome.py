"""Types of outcome that a model predicts (`data.task`): a class, a number, a count, or the time to an event."""

from __future__ import annotations

CLASSIFICATION, REGRESSION, COUNT, SURVIVAL = "classification", "regression", "count", "survival"

TASKS = (CLASSIFICATION, REGRESSION, COUNT, SURVIVAL)

AUTO = "auto"
"""Value of data.task when the label determines the task."""
