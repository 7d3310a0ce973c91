"""What a site refuses and why a sum halts. Neither ever names a value: values are patients'."""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.core.errors import GrandRoundsError, RunFailed

REASONS = {
    "beyond-bound": "a value is beyond the bound that was agreed for this sum",
    "malformed": "the server's message is not of the agreed form",
    "not-finite": "a value is no finite number",
    "out-of-order": "this step is asked before its time",
    "other-weights": "models are to be summed by other weights than this site went along with",
    "own-keys": "the roster does not hold this site's own keys as it announced them",
    "peer-signature": "the keys of another site are not signed by it",
    "replayed": "this step was answered already, to another question",
    "same-identity": "two names of the roster are one identity",
    "shares": "too few of the shares that came for this site can be read",
    "signatures": "too few of the sites have signed the list of survivors",
    "survivors": "the list of survivors cannot be true, or is too short",
    "threshold": "the threshold is lower than this site allows, or cannot be met",
    "too-few-sites": "a sum of so few sites would tell them apart",
    "unknown-site": "the roster names a site that this one does not know",
    "weak-key": "the roster holds a key that hides nothing",
    "weight": "the weights are no shares, or would make the sum that of too few",
    "withheld": "the site gave no values to this sum; its own log says why",
}
"""Every code of a refusal, and what it means."""

WITHHELD = "withheld"
"""All that a hospital says where it gives no values: a reason that follows from them would tell of them."""


class Refused(GrandRoundsError):
    """A site does not go along. `code` is one of `REASONS` and all that may be told to the server."""

    def __init__(self, code: str) -> None:
        super().__init__(f"refused ({code}): {REASONS[code]}")
        self.code = code


class Halted(RunFailed):
    """The sum cannot be had. `missing` says who gave nothing to it, `faults` who went wrong besides."""

    def __init__(self, reason: str, *, missing: Mapping[str, str], faults: Mapping[str, str] | None = None) -> None:
        self.reason, self.missing, self.faults = reason, dict(missing), dict(faults or {})
        said = sorted(self.missing.items()) + sorted(self.faults.items())
        who = ", ".join(f"{site} ({why})" for site, why in said[:20])
        more = f", and {len(said) - 20} more" if len(said) > 20 else ""
        super().__init__(f"secure sum halted: {reason}" + (f"; {who}{more}" if who else ""))
