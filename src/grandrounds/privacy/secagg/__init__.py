"""Secure aggregation: the server learns the sum of the sites' values and no single site's.

Five exchanges (`STEPS`), after Bonawitz et al. 2017 with the signatures of its malicious setting and the sparse graph of
Bell et al. 2020. Pure values and state machines: `SecureSite` answers, `SecureSum` asks and adds up, and whatever carries
their messages need not be trusted. `rehearse` plays all of it in one process.
"""

from grandrounds.privacy.secagg.context import Context
from grandrounds.privacy.secagg.noise import Skellam
from grandrounds.privacy.secagg.refusals import WITHHELD, Halted, Refused
from grandrounds.privacy.secagg.rehearsal import Rehearsal, rehearse
from grandrounds.privacy.secagg.ring import Scale
from grandrounds.privacy.secagg.secret import Secret
from grandrounds.privacy.secagg.server import Question, SecureSum
from grandrounds.privacy.secagg.site import SecureSite
from grandrounds.privacy.secagg.steps import STEPS
from grandrounds.privacy.secagg.threshold import fewest_honest, least

__all__ = [
    "WITHHELD",
    "STEPS",
    "Context",
    "Halted",
    "Question",
    "Refused",
    "Rehearsal",
    "Scale",
    "Secret",
    "SecureSite",
    "SecureSum",
    "Skellam",
    "fewest_honest",
    "least",
    "rehearse",
]
