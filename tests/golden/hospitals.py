"""Runs whose hospitals answer messages: the bytes of every Ask and Answer, as they are before encryption."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.golden.given import SIZES
from tests.golden.record import read_folder, without_keys
from tests.golden.running import Step
from tests.support import patients

DATA = {"table": "data frame", "label": "died", "site": "hospital"}
PLANS: dict[str, dict[str, Any]] = {
    "keepers": {"method": {"name": "scaffold", "rounds": 2}, "evaluation": {"subgroups": ["ward"]}},
    "keepers with secure sums": {"method": {"name": "fedavg", "rounds": 2}, "privacy": {"secure": True}},
    "keepers with regression": {"method": {"name": "glm", "rounds": 30, "exact": {"ridge": 1.0}}},
    "keepers with trust": {"method": {"name": "fedxchain", "rounds": 2}},
    "keepers with guard": {
        "method": {"rounds": 2},
        "personal": {"guard": True, "part": "recalibration"},
        "split": {"val": 0.2},
    },
}


def exchange(folder: Path, settings: Mapping[str, Any]) -> Any:
    """Run a plan over keepers in this process; digests of all messages in order."""
    from tests.engine.decrypted import read
    from tests.engine.hospitals import Hospitals
    from tests.engine.memory_transport import MemoryTransport

    class Recording(MemoryTransport):
        def collect(self, tickets: Any, *, wait: float) -> Any:
            replies = super().collect(tickets, wait=wait)
            self.replies += [reply.data for reply in replies if reply.data is not None]
            return replies

        def __init__(self, keepers: Any) -> None:
            super().__init__(keepers)
            self.replies: list[bytes] = []

    held = Hospitals.of(patients(SIZES), name="golden", data=DATA, **settings)
    transport = Recording(held.keepers(folder / "state"))
    held.deployed(folder, transport)
    left = {
        "asks": [_digest(read(data)) for _, data in transport.messages],
        "answers": [_digest(read(data)) for data in transport.replies],
        "state": sorted(str(p.relative_to(folder)) for p in (folder / "state").rglob("*")),
        "run": without_keys(read_folder(folder / "run"), frozenset({"virtual_seconds", "clock", "previous"})),
    }
    for part in ("run", "state"):
        shutil.rmtree(folder / part)  # it is kept above, without the seconds of messages
    return left


def policies(_: Path) -> Any:
    """Print policies of hospitals, and the requests of plans of many kinds."""
    from grandrounds.capabilities.hospital.keeper.policy.describe import describe_policy
    from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
    from grandrounds.core.plan import Settings
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.experiment.requests import expected_asks
    from tests.capabilities.hospital.keeper.plans import PLANS as SMALL

    asked = {}
    for name, settings in SMALL.items():
        plan = Settings(
            Experiment.parse(
                {"name": "asked", **settings, "data": {"table": "patients.csv", **settings["data"]}}
            ).plan()
        )
        asked[name] = [[a.task, sorted(a.report), sorted(a.withheld)] for a in expected_asks(plan)]
    return {"policy": describe_policy(Policy()), "asked": asked}


DRAWN = (b'"task": "hello"', b'"task": "witness"', b'"ready"', b'"signature"')
"""Words of messages whose bytes differ from run to run: keys of a session, and heads of a ledger with times in it."""


def _digest(envelope: Any) -> list[Any]:
    body = envelope.body
    is_drawn = any(word in body.replace(b"\\", b"") for word in DRAWN)
    return [envelope.sender, envelope.to, len(body), "drawn" if is_drawn else hashlib.sha256(body).hexdigest()[:16]]


def _step(settings: Mapping[str, Any]) -> Step:
    def step(folder: Path) -> Any:
        return exchange(folder, settings)

    return step


STEPS: dict[str, Step] = {**{name: _step(settings) for name, settings in PLANS.items()}, "policies": policies}
"""One step by the name of the case."""
