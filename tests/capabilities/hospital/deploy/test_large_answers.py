"""Large answers over a slow line that is cut, through a real SuperLink and SuperNode. Minutes each.

`make test-slow`, or `python -m pytest -m slow -s tests/capabilities/hospital/deploy/test_large_answers.py`,
which prints the bytes on the wire.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

pytest.importorskip("flwr")

from grandrounds.capabilities.hospital.keeper.runtime.large_answers import LargeAnswers
from grandrounds.capabilities.hospital.keeper.runtime.site import OBJECT_SIZE
from grandrounds.engine.parts import PartsTransport
from grandrounds.engine.transport import RECEIVING
from tests.capabilities.hospital.deploy.cut import Wire
from tests.capabilities.hospital.deploy.flower_support import Consortium, until

pytestmark = pytest.mark.slow
MIB = 2**20


@pytest.fixture
def small_objects(monkeypatch):
    """The setting of `rounds site start`, for a worker in a process where Flower may be imported already."""
    array = pytest.importorskip("flwr.app.message.array")
    monkeypatch.setattr(array, OBJECT_SIZE[0], int(OBJECT_SIZE[1]))


class Line:
    """A consortium of one site behind a slow wire, and one large answer that is fetched over it."""

    def __init__(self, folder, *, size: int, rate: float) -> None:
        self.answer = os.urandom(size)
        self.asked = 0
        outgoing = LargeAnswers(folder / "outgoing", self._answer)
        self.consortium = Consortium(folder, "north", handler=outgoing.handle)
        self.wire = Wire(self.consortium.dialled, rate=rate)
        self.site = self.consortium.sites[0]
        command = list(self.site.node.program.command)
        command[command.index("--superlink") + 1] = f"localhost:{self.wire.port}"
        object.__setattr__(self.site.node.program, "command", command)
        self.stop = threading.Event()

    def _answer(self, message: bytes) -> bytes:
        self.asked += 1
        return self.answer

    def __enter__(self) -> Line:
        self.consortium.start()
        until(lambda: self.consortium.online() == {"north"})
        self.run = self.consortium.run()
        threading.Thread(target=self._tend, daemon=True).start()
        return self

    def _tend(self) -> None:
        """Restart the SuperNode when it ends, as `rounds site start` does."""
        while not self.stop.wait(1.0):
            self.site.node.tend()

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.run.finish()
        self.consortium.close()
        self.wire.close()

    def fetch(self, faults: dict[float, object], *, seconds: float) -> float:
        """Fetch the answer; `faults` are called once a share of its bytes has passed. Gives bytes on the wire by its size."""
        transport, due = PartsTransport(self.run.transport), dict(sorted(faults.items()))
        (who,) = self.run.addresses(1)
        (ticket,) = transport.send([(who, b"ask")])
        before, began = self.wire.up, time.monotonic()
        while time.monotonic() - began < seconds:
            passed = (self.wire.up - before) / len(self.answer)
            for share in [share for share in due if passed >= share]:
                print(f"{time.monotonic() - began:.0f} s, {passed:.2f} of the bytes: {due[share].__name__}")
                threading.Thread(target=due.pop(share), daemon=True).start()
            for reply in transport.collect([ticket], wait=0.5):
                if reply.error == RECEIVING:
                    continue
                assert reply.data == self.answer, reply.error
                assert not due, "every fault has happened"
                ratio = (self.wire.up - before) / len(self.answer)
                took, size = time.monotonic() - began, len(self.answer) / MIB
                print(f"{size:.0f} MiB in {took:.0f} s, {ratio:.3f} times its size on the wire")
                return ratio
        raise AssertionError(f"no answer within {seconds:.0f} s")

    def reset(self) -> None:
        self.wire.drop()

    def cut_for(self, seconds: float):
        def cut() -> None:
            self.wire.cut()
            time.sleep(seconds)
            self.wire.mend()

        cut.__name__ = f"cut for {seconds:.0f} s"
        return cut

    def kill_node(self) -> None:
        os.killpg(self.site.node.process.pid, signal.SIGKILL)


def test_a_slow_line_that_is_cut_five_times_sends_little_again(tmp_path, small_objects):
    with Line(tmp_path, size=100 * MIB, rate=2e6) as line:
        faults = {0.1: line.reset, 0.25: line.reset, 0.4: line.cut_for(15), 0.6: line.reset, 0.8: line.cut_for(5)}
        assert line.fetch(faults, seconds=1500) < 1.2
        assert line.asked == 1


def test_an_upload_that_is_cut_for_longer_than_flower_waits_continues(tmp_path, small_objects):
    """The SuperLink gives an upload up after 180 s without an object."""
    with Line(tmp_path, size=60 * MIB, rate=2e6) as line:
        assert line.fetch({0.5: line.cut_for(200)}, seconds=1500) < 1.2
        assert line.asked == 1


def test_an_upload_continues_after_the_supernode_was_killed(tmp_path, small_objects):
    with Line(tmp_path, size=60 * MIB, rate=2e6) as line:
        assert line.fetch({0.4: line.kill_node}, seconds=1500) < 1.2
        assert line.asked == 1
