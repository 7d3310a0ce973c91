"""Server and sites killed at random instants of a run with differential privacy: the same bits, and the same charges.

`make test-faults`. FAULTS_SEED and FAULTS_REAL_KILLS choose the instants and the number of kills.
"""

from __future__ import annotations

import time

import pytest

pytest.importorskip("flwr")

from tests.capabilities.hospital.deploy.faulty import PRIVATE, REAL_KILLS, Faulty, fixed_noise, instants, report
from tests.capabilities.hospital.deploy.test_faults_consortium import stated
from tests.capabilities.hospital.deploy.test_hospitals_for_real import gateway, table

pytestmark = [pytest.mark.faults, gateway]

PLAN = {"method": {"name": "fedavg", "rounds": 16}, **PRIVATE}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    with fixed_noise():
        yield Faulty(tmp_path_factory.mktemp("faulty"), table(), limit=600)


@pytest.fixture(scope="module")
def calm(faulty):
    return faulty.calm("run", PLAN)


def test_a_server_killed_at_random_instants(faulty, calm):
    """kill -9 of SuperLink, gateway, scheduler and run: within rounds, and every third time while they start."""
    began, waits, outcomes = time.monotonic(), instants("server", longest=3.0), []
    while faulty.kills["server"] < REAL_KILLS:
        with faulty.at_work():
            faulty.submit("run", PLAN)
            while faulty.kills["server"] < REAL_KILLS and not faulty.is_over("run"):
                if faulty.kills["server"] % 3 != 2:
                    faulty.await_round("run")
                time.sleep(next(waits))
                faulty.kill_server()
                faulty.start_server(wait=False)
            outcome = faulty.outcome(faulty.done("run", seconds=900))
            outcome.check_stated(calm)
            outcomes.append(stated(outcome))
        faulty.put_aside()
    report("server killed in a whole consortium", faulty.kills["server"], "; ".join(outcomes), began)
