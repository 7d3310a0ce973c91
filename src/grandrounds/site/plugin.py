"""Site plug-ins: the half of a method that runs at the sites. A host calls each of its plug-ins in turn.

A plug-in may answer tasks of its own, add to the job of local training, keep state from round to round, and report on
the models that sites answer with. A host builds those that its plan needs (`grandrounds.methods.site_halves`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from grandrounds.protocol.messages import Columns as Columns

if TYPE_CHECKING:
    from grandrounds.core.arrays import Array
    from grandrounds.models import Model
    from grandrounds.privacy.secagg import Secret
    from grandrounds.protocol.messages import Ask
    from grandrounds.site.anchor import SharedReference
    from grandrounds.site.stack import Part, Stack
    from grandrounds.site.state import SiteStates
    from grandrounds.site.train_job import TrainConfig, TrainJob, TrainResult
    from grandrounds.site.withheld import WithheldReports

Task = Callable[["Ask", "Array"], Columns]
"""Answer an Ask for the sites of these numbers."""


@dataclass(frozen=True)
class TrainRequest:
    """Local training that one Ask requests of some sites of a host.

    Attributes:
        ask: The Ask, whose `shared` values may carry settings of a plug-in.
        members: Site numbers (m,).
        config: Settings of the training: steps, learning rate, regularisation.
        start: The models that training starts from, (P,) for all or (m, P).
        counts: Training rows of each site, (m,).
    """

    ask: Ask
    members: Array
    config: TrainConfig
    start: Any
    counts: Array


class Site(Protocol):
    """The part of a host that plug-ins may use."""

    states: SiteStates
    withheld_reports: WithheldReports

    @property
    def stack(self) -> Stack:
        """The sites' rows."""

    @property
    def references(self) -> Mapping[str, SharedReference]:
        """Reference rows that were sent to the sites, by name."""

    @property
    def encoding(self) -> Any:
        """The agreed encoding of rows."""

    @property
    def largest_weight(self) -> float:
        """The largest weight, its own or another's, that a site accepts."""

    @property
    def withheld_splits(self) -> tuple[str, ...]:
        """Parts of the rows (train, val, test) whose scores are not disclosed."""

    def names_of(self, members: Array) -> list[str]:
        """Return the names of these sites."""

    def prepared_model(self) -> Model:
        """Return the model; raise BadInput if the sites have not prepared their rows yet."""

    def in_use(self, ask: Ask, members: Array) -> Any:
        """Return the models that an Ask sends to these sites, with the entries that each keeps local."""

    def received(self, ask: Ask, members: Array) -> Any:
        """Return the models that an Ask sends to these sites, as they were sent."""

    personal_models: dict[int, Array]
    """Models that sites deploy in place of the common one, by site number."""

    without_model: set[int]
    """Numbers of sites that deploy their most common class, which is no model."""

    @property
    def personal_settings(self) -> Mapping[str, Any]:
        """Settings of the personal part that is trained in the rounds; empty for none."""

    def train_apart(
        self,
        members: Array,
        start: Any,
        config: TrainConfig,
        *,
        part: Part | None = None,
        correction: Array | None = None,
        frozen: Array | None = None,
        class_weight: Array | None = None,
    ) -> TrainResult:
        """Train models of these sites beside the run's own training: nothing is staged, and no plug-in takes part."""

    def secret(self, site: str) -> Secret:
        """Return a site's secret, the source of its masks and noise."""


class SitePlugin:
    """Base class of site plug-ins; this one does nothing. Override the hooks that a method needs."""

    name: ClassVar[str] = ""  # folder of its arrays in a checkpoint, if it has any

    def __init__(self, site: Site) -> None:
        self.site = site
        self.folder: Path | None = None  # folder of the sites' own files, for plug-ins that write some; None: no files

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Tasks that this plug-in answers."""
        return {}

    def choose_rows(self, request: TrainRequest, part: Part) -> Part:
        """Select the training rows to use.

        Args:
            request: The training that is asked for.
            part: All training rows of the sites.

        Returns:
            Some or all of these rows.
        """
        return part

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        """Return the job with the method's additions: a correction, previous models, reference rows.

        Args:
            request: The training that is asked for.
            job: The job, with the additions of the plug-ins before this one.
        """
        return job

    def on_trained(self, request: TrainRequest, result: TrainResult) -> Columns:
        """Return reports on the training, and stage state for the next round (`site.states`).

        Args:
            request: The training that was asked for.
            result: The trained models.
        """
        return {}

    def after_training(self, request: TrainRequest, columns: Columns) -> Columns:
        """Return reports on the models that sites answer with, after simulated attacks.

        Args:
            request: The training that was asked for.
            columns: The answers so far, by report.
        """
        return {}

    def agreed_weights(self, site: str, round: int) -> Mapping[str, float] | None:
        """Return the weights that a site accepted for a round; None if it received none.

        Args:
            site: The site's name.
            round: The round, from 1.
        """
        return None

    def arrays(self) -> Mapping[str, Array]:
        """Return the state to checkpoint that is not in `site.states`."""
        return {}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore the state from a checkpoint.

        Args:
            arrays: The arrays that `arrays()` returned.
        """
