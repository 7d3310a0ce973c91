"""One round's decision, read for one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decided:
    """A round's decision and the site that asks; `method` is the plan's [method], empty where it is not known.

    Run folders from before a part of the record came up lack it: what is not there is empty.
    """

    decision: Mapping[str, Any]
    site: str
    method: Mapping[str, Any]

    @property
    def weights(self) -> dict[str, float]:
        return {s: w or 0.0 for s, w in self.decision["weights"].items()}

    @property
    def weight(self) -> float:
        return self.weights[self.site]

    def known(self, signal: str) -> dict[str, float]:
        """The signal's value at each site that has one."""
        return {s: float(v) for s, v in self.decision["signals"].get(signal, {}).items() if v is not None}

    def own(self, signal: str) -> float | None:
        return self.known(signal).get(self.site)

    def asks(self, signal: str) -> bool:
        """Whether the signal was looked at in this round and this site is among those it was looked at for."""
        return self.site in self.decision["signals"].get(signal, {})

    @property
    def shares(self) -> dict[str, float]:
        """What each signal contributes to this site's weight."""
        held = self.decision.get("shares") or {}
        return {name: of[self.site] for name, of in held.items() if of.get(self.site)}

    @property
    def stages(self) -> list[Mapping[str, Any]]:
        return list(self.decision.get("stages") or ())

    def why(self, part: str) -> str:
        """What a part of the method says of this round; nothing where it has no say."""
        return next((str(s["why"]) for s in self.stages if s["part"] == part), "")

    def setting(self, part: str, name: str) -> Any:
        """A setting of a part of the method, such as robust.rule; None where it is not known."""
        held = self.method.get(part)
        return held.get(name) if isinstance(held, Mapping) else None

    @property
    def cohorts(self) -> Mapping[str, Any]:
        return self.decision.get("cohorts") or {}

    @property
    def cohort(self) -> int | None:
        found: int | None = self.cohorts.get("of", {}).get(self.site)
        return found

    @property
    def companions(self) -> list[str]:
        """The other sites of its cohort."""
        return [s for s, c in self.cohorts.get("of", {}).items() if c == self.cohort and s != self.site]

    @property
    def within(self) -> bool:
        """Whether its reasons were compared with those of its cohort only; a site alone is compared with all."""
        return bool(self.companions) and self.setting("cohorts", "consensus") == "cohort"

    @property
    def alone(self) -> bool:
        """Whether it was compared with all while others were compared with their cohorts only."""
        return self.cohort is not None and not self.companions and self.setting("cohorts", "consensus") == "cohort"

    @property
    def sharing(self) -> list[str]:
        """The sites that its weight is a share among, itself too; none where weights are not shares."""
        cluster = self.own("cluster")
        if cluster is not None:
            return [s for s, c in self.known("cluster").items() if c == cluster and s in self.weights]
        whole = sum(self.weights.values())
        return list(self.weights) if abs(whole - 1) < 1e-6 or not whole else []
