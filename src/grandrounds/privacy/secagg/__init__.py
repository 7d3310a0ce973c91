"""Secure aggregation: the server learns the sum of the sites' values and no single site's values.

Five steps (`STEPS`) after Bonawitz et al. (2017), with the signatures of its malicious setting and the sparse graph of Bell
et al. (2020). `SecureSite` and `SecureSum` are state machines over plain values, so the transport of their messages need
not be trusted.
"""

from grandrounds.privacy.secagg.keys import Secret
from grandrounds.privacy.secagg.ring import Scale, Skellam
from grandrounds.privacy.secagg.server import Question, SecureSum
from grandrounds.privacy.secagg.site import SecureSite
from grandrounds.privacy.secagg.terms import STEPS, WITHHELD, Context, Halted, Refused, fewest_honest, least

__all__ = [
    "WITHHELD",
    "STEPS",
    "Context",
    "Halted",
    "Question",
    "Refused",
    "Scale",
    "Secret",
    "SecureSite",
    "SecureSum",
    "Skellam",
    "fewest_honest",
    "least",
]
