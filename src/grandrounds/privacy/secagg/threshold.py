"""How many are enough: to read a secret again, to sign a list of survivors, to be a sum at all."""

from __future__ import annotations

from grandrounds.core.errors import BadInput

FEWEST_SITES = 3
"""A sum of two tells each of the two the other's value."""


def least(sites: int) -> int:
    """Two thirds, rounded up, and three at least: the lowest threshold that a site accepts among so many.

    Two lists that so many have signed share more than a third of the signers. So while fewer than a third of them
    collude with the server, an honest one is among those, and it signs one list only: no site's mask key and self-mask
    can both be asked for.
    """
    return max(FEWEST_SITES, -(-2 * sites // 3))


def fewest_honest(sites: int, *, threshold: int = 0, colluding: int = 0) -> int:
    """The least number of honest survivors that a sum among so many sites can end with; noise in shares is sized for it."""
    honest = max(least(sites), threshold) - colluding
    if honest < 1:
        raise BadInput(f"with {colluding} of {sites} sites colluding a sum may hold no honest site: assume fewer")
    return honest
