"""The record of a round that sentences about weights read, and the wording of numbers and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAMED = 8


def percent(share: float) -> str:
    """A weight: one decimal, and two digits of what is smaller than that shows."""
    if 0 < share < 1e-5:
        return "under 0.001 %"
    if 0 < share < 0.01:
        return f"{float(f'{100 * share:.2g}'):g} %"
    return f"{100 * share:.1f} %" if share else "0 %"


def whole(share: float) -> str:
    """A part of something, in whole percent; what is there is never said to be nothing."""
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def parts(shares: Mapping[str, float]) -> dict[str, int]:
    """What each is of all, in whole percent that add up to 100: what rounding leaves goes to the largest remainders."""
    total = sum(shares.values())
    exact = {name: 100 * value / total for name, value in shares.items()}
    out = {name: int(value) for name, value in exact.items()}
    short = 100 - sum(out.values())
    for name in sorted(exact, key=lambda n: out[n] - exact[n])[:short]:
        out[name] += 1
    return out


def listed(names: Sequence[str]) -> str:
    """'a, b and c'; of many names the first and how many there are besides."""
    shown = list(names[:_NAMED]) if len(names) > _NAMED + 1 else list(names)
    shown += [f"{len(names) - len(shown)} others"] if len(shown) < len(names) else []
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def sentence(words: str) -> str:
    """The words with a capital and a full stop."""
    text = words[:1].upper() + words[1:]
    return text if text.endswith(".") else f"{text}."


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
