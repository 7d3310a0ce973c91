"""The context of one run: its plan, folder, sites, engine and records, shared by all of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grandrounds.core.plan_types import Plan
from grandrounds.data.kinds import AnyEncoding
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.driver import Engine
from grandrounds.engine.resources import Gauge
from grandrounds.runs.explanations import RoundExplanations
from grandrounds.runs.federation import Consortium
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.heat_maps import HeatMaps
from grandrounds.runs.ledger import Recording
from grandrounds.runs.local_models import LocalScores
from grandrounds.runs.privacy_budget import Spending
from grandrounds.runs.rationale import RationaleEvaluator
from grandrounds.runs.references import References
from grandrounds.runs.setup import RunSetup

Progress = Callable[[Mapping[str, Any]], None]
"""Called with each event of a run."""


@dataclass
class RunContext:
    """Everything that the steps of one run share. The runner fills in the second half while it sets the run up.

    Attributes:
        plan: The resolved experiment.
        folder: The run folder.
        checkpoint: The journal of finished rounds.
        progress: Called with each event.
        gauge: Time and memory of this machine.
        consortium: The sites and their rows.
        setup: What the sites agreed on: the encoding, their row counts, the model's specification; and the engine.
        sites: The sites that train.
        recorder: The ledger.
        references: The reference sets of the server.
        spending: The privacy budget; None where the run gives no privacy guarantee.
        explanations: The explanations of each round; None where none are asked for.
        rationale: Scores of heat maps against masks; None where none are asked for.
        local_scores: Scores of local models; None where none are asked for.
        heat_maps: Stored heat maps; None where none are asked for.
        warnings: Sentences for the summary, each once, in the order they came up.
    """

    plan: Plan
    folder: RunFolder
    checkpoint: Checkpoint
    progress: Progress
    gauge: Gauge
    consortium: Consortium
    setup: RunSetup
    sites: tuple[str, ...] = ()
    recorder: Recording = field(init=False)
    references: References = field(init=False)
    spending: Spending | None = None
    explanations: RoundExplanations | None = None
    rationale: RationaleEvaluator | None = None
    local_scores: LocalScores | None = None
    heat_maps: HeatMaps | None = None
    warnings: tuple[str, ...] = ()

    @property
    def engine(self) -> Engine:
        """The engine that drives the methods' generators."""
        return self.setup.engine

    @property
    def encoding(self) -> AnyEncoding:
        """How rows become model inputs."""
        return self.setup.encoding

    @property
    def training_sites(self) -> tuple[str, ...]:
        """The sites whose rows may be trained on, without those left out for impossible row counts."""
        return tuple(site for site in self.consortium.training if site in self.setup.rows)

    def warn(self, *sentences: str) -> None:
        """Add sentences to the warnings, each once."""
        self.warnings = tuple(dict.fromkeys((*self.warnings, *sentences)))
