"""What keeps sites together while they train alone: a part that any averaging method can be given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Answers, Value

if TYPE_CHECKING:
    from grandrounds.methods.base import Server
    from grandrounds.site.plugin import SitePlugin


class Stability:
    """Nothing; and the shape of those that are something."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "nothing: sites train as their rows tell them"
    report: ClassVar[tuple[str, ...]] = ()  # what sites are asked to report besides
    needs: ClassVar[frozenset[str]] = (
        frozenset()
    )  # "sgd": plain gradient steps; "features": a hidden layer; "reference"

    site: ClassVar[tuple[type[SitePlugin], ...]] = ()  # its half at the sites

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def tells(self, server: Server, lr: float) -> dict[str, Value]:
        """What sites are told besides the model and the work, which they do at this learning rate."""
        return {}

    def sums(self, server: Server) -> dict[str, dict[str, float]]:
        """The weights, by report and site, of what it learns from a sum alone, where single answers may not be seen."""
        return {}

    def learns(self, server: Server, answers: Answers) -> dict[str, Array]:
        """What the server remembers for the next round."""
        return {}
