"""One round's Decision from the point of view of one site, and the wording of numbers and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.core.records import Decision, Stage

_NAMED = 8


def percent(share: float) -> str:
    """Format a weight: one decimal, or two significant digits for smaller weights."""
    if 0 < share < 1e-5:
        return "under 0.001%"
    if 0 < share < 0.01:
        return f"{float(f'{100 * share:.2g}'):g}%"
    return f"{100 * share:.1f}%" if share else "0%"


def whole_percent(share: float) -> str:
    """Format a share in whole percent; a share above 0 is never written as 0%."""
    return "under 1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def percent_parts(shares: Mapping[str, float]) -> dict[str, int]:
    """Split into whole percents that add up to 100: the largest remainders are rounded up."""
    total = sum(shares.values())
    exact = {name: 100 * value / total for name, value in shares.items()}
    out = {name: int(value) for name, value in exact.items()}
    short = 100 - sum(out.values())
    for name in sorted(exact, key=lambda n: out[n] - exact[n])[:short]:
        out[name] += 1
    return out


def join_names(names: Sequence[str]) -> str:
    """Join names as 'a, b and c'; of many names the first and the number of the others."""
    shown = list(names[:_NAMED]) if len(names) > _NAMED + 1 else list(names)
    shown += [f"{len(names) - len(shown)} others"] if len(shown) < len(names) else []
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def as_sentence(words: str) -> str:
    """Capitalise the words and end them with a full stop."""
    text = words[:1].upper() + words[1:]
    return text if text.endswith(".") else f"{text}."


@dataclass(frozen=True)
class SiteView:
    """One round's Decision from the point of view of one site.

    Parts that a method does not record are empty.

    Attributes:
        decision: The Decision.
        site: The site.
        method: The plan's [method]; empty where it is not known.
    """

    decision: Decision
    site: str
    method: Mapping[str, object]

    @property
    def weights(self) -> dict[str, float]:
        """Return the weight of each site."""
        return {s: w or 0.0 for s, w in self.decision.weights.items()}

    @property
    def weight(self) -> float:
        """Return the weight of this site."""
        return self.weights[self.site]

    def values(self, signal: str) -> dict[str, float]:
        """Return the signal's value at each site that has one."""
        return {s: float(v) for s, v in self.decision.signals.get(signal, {}).items() if v is not None}

    def value(self, signal: str) -> float | None:
        """Return the signal's value at this site; None where it has none."""
        return self.values(signal).get(self.site)

    def has_signal(self, signal: str) -> bool:
        """Tell whether the signal was computed for this site in this round."""
        return self.site in self.decision.signals.get(signal, {})

    @property
    def shares(self) -> dict[str, float]:
        """Return the contribution of each signal to this site's weight."""
        shares = self.decision.shares or {}
        return {name: by_site[self.site] for name, by_site in shares.items() if by_site.get(self.site)}

    @property
    def stages(self) -> list[Stage]:
        """Return the contribution of each part of the method."""
        return list(self.decision.stages or ())

    def stage_reason(self, part: str) -> str:
        """Return the reason that a part of the method gives for this round; empty where it has none."""
        return next((str(s["why"]) for s in self.stages if s["part"] == part), "")

    def setting(self, part: str, name: str) -> Any:
        """Return a setting of a part of the method, such as robust.rule; None where it is not known."""
        section = self.method.get(part)
        return section.get(name) if isinstance(section, Mapping) else None

    @property
    def cohorts(self) -> Mapping[str, Any]:
        """Return the round's cohorts."""
        return self.decision.cohorts or {}

    @property
    def cohort(self) -> int | None:
        """Return the number of this site's cohort; None without cohorts."""
        cohort: int | None = self.cohorts.get("of", {}).get(self.site)
        return cohort

    @property
    def cohort_peers(self) -> list[str]:
        """Return the other sites of its cohort."""
        return [s for s, c in self.cohorts.get("of", {}).items() if c == self.cohort and s != self.site]

    @property
    def within_cohort(self) -> bool:
        """Tell whether its explanations were compared with those of its cohort only; a site alone is compared with all."""
        return bool(self.cohort_peers) and self.setting("cohorts", "consensus") == "cohort"

    @property
    def alone_in_cohort(self) -> bool:
        """Tell whether it was compared with all sites while others were compared with their cohorts only."""
        return self.cohort is not None and not self.cohort_peers and self.setting("cohorts", "consensus") == "cohort"

    @property
    def weight_peers(self) -> list[str]:
        """Return the sites that its weight is a share among, itself too; empty where weights are not shares."""
        cluster = self.value("cluster")
        if cluster is not None:
            return [s for s, c in self.values("cluster").items() if c == cluster and s in self.weights]
        total = sum(self.weights.values())
        return list(self.weights) if abs(total - 1) < 1e-6 or not total else []
