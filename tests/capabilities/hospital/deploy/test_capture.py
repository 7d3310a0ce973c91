"""A gateway reads headers only: a run of real processes through nginx, with a recorder behind it that writes down every byte.

nginx ends TLS, so it sees what the recorder sees: the HTTP of Flower, in which our messages are. The plan is submitted through
the gateway too.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from grandrounds.core.arrays import decode, load
from grandrounds.core.toml import dumps
from grandrounds.data.table import Table
from tests.capabilities.hospital.deploy.real import Real, rounds
from tests.capabilities.hospital.deploy.test_hospitals_for_real import gateway
from tests.support import patients

pytestmark = gateway

COLUMNS = {"age": "age_in_years", "ward": "ward_of_stay", "died": "died"}
WIDTH = 16


class Recorder:
    """Takes the SuperLink's place behind nginx: ends its TLS, writes all bytes down, and carries them on by TLS."""

    def __init__(self, pki: Path, to: int) -> None:
        self._to = to
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(pki / "superlink.pem", pki / "superlink.key")
        self._client = ssl.create_default_context(cafile=pki / "server-ca.pem")
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self._parts: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bytes(self) -> bytes:
        return b"".join(self._parts)

    def close(self) -> None:
        self._door.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with suppress(OSError, ssl.SSLError):
            inside = self._server.wrap_socket(near, server_side=True)
            far = self._client.wrap_socket(
                socket.create_connection(("127.0.0.1", self._to)), server_hostname="localhost"
            )
            for one, other in ((inside, far), (far, inside)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: ssl.SSLSocket, other: ssl.SSLSocket) -> None:
        with suppress(OSError, ssl.SSLError, ValueError):
            while data := one.recv(65536):
                self._parts.append(data)
                other.sendall(data)
        with suppress(OSError):
            other.close()


def rename(table: Table) -> Table:
    """Patients with names of columns that are nowhere else."""
    named = {COLUMNS.get(name, name): column for name, column in table.columns.items()}
    return Table.from_mapping(named, source="patients.csv")


def windows(arrays: dict[str, np.ndarray]) -> set[bytes]:
    """Every 16 bytes of numbers, as stored and as float32; what is nearly constant is in any file."""
    found = set()
    for array in arrays.values():
        if np.issubdtype(array.dtype, np.floating):
            for form in {array.dtype, np.dtype(np.float32), np.dtype(np.float64)}:
                raw = np.ascontiguousarray(array, form).tobytes()
                found |= {raw[k : k + WIDTH] for k in range(0, len(raw) - WIDTH + 1, 4)}
    return {window for window in found if len(set(window)) > 6}


def contains(capture: bytes, parts: set[bytes]) -> bytes | None:
    return next((capture[k : k + WIDTH] for k in range(len(capture) - WIDTH) if capture[k : k + WIDTH] in parts), None)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """The capture of one run, and its folder."""
    folder = tmp_path_factory.mktemp("captured")
    real = Real(folder, rename(patients([60, 50, 40])), in_memory=True)
    recorder = Recorder(real.out / "server" / "pki", real.link.port)
    conf = real.out / "server" / "nginx.conf"
    text, count = re.subn(rf"127\.0\.0\.1:{real.link.port}\b", f"127.0.0.1:{recorder.port}", conf.read_text())
    assert count == 1, "nginx passes everything on to one address"
    conf.write_text(text)
    settings = {
        "name": "captured",
        "model": {"name": "mlp", "hidden": [8]},
        "method": {"name": "fedavg", "rounds": 2},
        "explain": {"sketch": "permutation"},
        "evaluation": {"subgroup": "ward_of_stay"},
    }
    (folder / "captured.toml").write_text(dumps(settings))
    with real.at_work():
        words = ("server", "submit", str(folder / "captured.toml"), "--name", "captured", "--operator")
        rounds(*words, str(real.out / "operator"))
        real.done("captured")
    recorder.close()
    shutil.copytree(real.link.runs / "captured", folder / "run")
    return recorder.bytes, folder / "run"


def test_the_capture_holds_the_whole_exchange(captured):
    capture, _ = captured
    assert len(capture) > 50_000
    for word in (b"captured", b"hello", b"pull-messages", b"push-messages", b'"session"'):
        assert word in capture, word


def test_no_part_of_a_model_or_statistic_can_be_read_at_the_gateway(captured):
    capture, run = captured
    arrays: dict[str, np.ndarray] = {}
    for path in sorted(run.rglob("*.safetensors")):
        stored, _ = load(path)
        arrays |= {f"{path.name}/{name}": np.asarray(array) for name, array in stored.items()}
        for name, array in stored.items():
            if array.dtype == np.uint8 and name.split(" ")[0] in ("open", "prepare", "summarise", "lend"):
                told, _ = decode(array.tobytes(), where=name)  # a whole answer of a site, as the server keeps it
                arrays |= {f"{path.name}/{name}/{n}": a for n, a in told.items()}
    assert any(name.startswith("setup") or "summarise" in name for name in arrays), "statistics are searched for too"
    parts = windows(arrays)
    assert len(parts) > 100
    assert contains(capture, parts) is None


def test_no_name_of_a_column_and_no_setting_can_be_read_at_the_gateway(captured):
    capture, run = captured
    plan = json.loads((run / "plan.json").read_text()) if (run / "plan.json").exists() else {}
    assert not plan or "age_in_years" in json.dumps(plan)
    for word in (b"age_in_years", b"ward_of_stay", b"fedavg", b"permutation", b"train_rows", b"coefficients"):
        assert word not in capture, word
