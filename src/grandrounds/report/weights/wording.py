"""Numbers and names as a sentence has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
