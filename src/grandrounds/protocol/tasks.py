"""A sum as tasks that sites are asked for: their names, and what each is answered with."""

from __future__ import annotations

ERROR = "error"
"""The code of a refusal; nothing where a site went along."""

MODELS, TALLIES, REASONS = "models", "tallies", "reasons"
"""What a sum is of: the first word of its tag."""

INTRODUCE, MEET = "secagg.introduce", "secagg.meet"

ANSWERS = {
    "keys": ("keys",),
    "shares": ("sealed",),
    "masked": ("masked", "unreadable"),
    "sign": ("signature",),
    "unmask": ("owners", "shares"),
}
DIVERGE, WEIGHTS, CONTRIBUTE = "trust.diverge", "trust.weights", "trust.contribute"
"""What FedXChain asks of sites between the sums, and after them."""

PERCENTILES = "veil.percentiles"
"""What VEIL asks for once its model is finished."""

LATE = ("secagg.sign", "secagg.unmask", CONTRIBUTE, PERCENTILES)
"""Steps after which a site's values are in the sum, whether it stays or not."""

ASKED_AFTER = (WEIGHTS, CONTRIBUTE, PERCENTILES)
"""What may go unanswered by all: the method says itself what follows."""

TASKS = {f"secagg.{step}": (*names, ERROR) for step, names in ANSWERS.items()}
