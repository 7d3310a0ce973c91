"""What a run keeps of the sites' summaries: its patients column by column, to say later where one of them stands."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from grandrounds.core.plan import Settings
from grandrounds.data.encoding import Encoding
from grandrounds.data.image_encoding import KIND
from grandrounds.data.kinds import AnyEncoding
from grandrounds.data.summary import Moments, Summary
from grandrounds.explain.percentiles import Population
from grandrounds.methods.exchanges import summaries_in
from grandrounds.methods.relay import relayed
from grandrounds.protocol.messages import Ask

Driven = Generator[Any, Any, Any]

_REPORT = "summary"


class Overhearing:
    """Listens while sites say what their encoding is made from; nothing more is asked of them for it."""

    def __init__(self) -> None:
        self._said: Sequence[Mapping[str, Any]] = ()
        self._moments: Sequence[Mapping[str, Any]] = ()

    def watched(self, work: Driven) -> Driven:
        """The same exchange, overheard."""

        def through(effect: Any) -> Driven:
            answers = yield effect
            if isinstance(effect, Ask) and _REPORT in effect.report:
                if "low" in effect.shared:
                    self._moments = summaries_in(answers)
                else:
                    self._said = summaries_in(answers)
            return answers

        return relayed(work, through)

    def population(self, plan: Settings, encoding: AnyEncoding) -> Population | None:
        """What the summaries add up to. Pictures have no columns; under a budget exact sums are not released."""
        columns = {len(m["count"]) for m in self._moments}
        told = [s for s in self._said if s.get("kind") != KIND and len(s["count"]) in columns]
        if plan.privacy.epsilon is not None or not told or not isinstance(encoding, Encoding):
            return None
        mean = Moments.merge([Moments.from_payload(m) for m in self._moments]).mean
        return Population.of(map(Summary.from_payload, told), encoding, mean=mean)
