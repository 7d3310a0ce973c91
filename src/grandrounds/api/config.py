"""Section classes of an experiment, with completion and checked values: `gr.config.Method(name="fedprox", mu=0.1)`.

Each class has the name of its section in the experiment file. A wrong key or value raises BadInput.
"""

from __future__ import annotations

from grandrounds.experiment.engine_sections import AttackSettings as Attack
from grandrounds.experiment.engine_sections import Engine
from grandrounds.experiment.engine_sections import FaultSettings as Faults
from grandrounds.experiment.method_sections import Cohorts, Method, Robust, Select, ServerStep, Staleness, Weigh
from grandrounds.experiment.sections import (
    Data,
    Evaluation,
    Explain,
    Model,
    Privacy,
    ReferenceSet,
    Shift,
    Shortcut,
    Split,
    Task,
    Train,
)
from grandrounds.experiment.tune_section import Tune
from grandrounds.methods.fedxchain.options import TrustOptions
from grandrounds.methods.guard.options import PersonalOptions as Personal
from grandrounds.methods.veil.options import VeilOptions
from grandrounds.methods.xfed.options import XFedOptions

__all__ = [
    "Attack",
    "Cohorts",
    "Data",
    "Engine",
    "Evaluation",
    "Explain",
    "Faults",
    "Method",
    "Model",
    "Personal",
    "Privacy",
    "ReferenceSet",
    "Robust",
    "Select",
    "ServerStep",
    "Shift",
    "Shortcut",
    "Split",
    "Staleness",
    "Task",
    "Train",
    "TrustOptions",
    "Tune",
    "VeilOptions",
    "Weigh",
    "XFedOptions",
]
