"""The example app: as it is, with FedAvg in two lines, and for real with `flwr run`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from functools import cache
from pathlib import Path

import pytest

APP = Path(__file__).resolve().parents[4] / "examples" / "flower-app"
SWAP = (
    ("from grandrounds.capabilities.integrations.flower import SSEAgg\n", "from flwr.serverapp.strategy import FedAvg\n"),
    ('SSEAgg(weigh={"form": "inverse", "sharpness": 3}, min_available_nodes=4)', "FedAvg(min_available_nodes=4)"),
)

OPTIONS = ["--federation-config", "num-supernodes=4", "--run-config", "num-server-rounds=1 flipped='hungarian'"]

NEAR = """
import sys
from flwr.app import Context, RecordDict
from heart_app.client_app import app as client
from heart_app.server_app import app as server
from tests.capabilities.integrations.flower.grid import app_grid
config = {"num-server-rounds": 5, "local-steps": 20, "learning-rate": 0.5, "flipped": sys.argv[1]}
server(app_grid({1: client, 2: client, 3: client, 4: client}, run_config=config), Context(1, 0, {}, RecordDict(), config))
"""


@cache
def near(app: Path, flipped: str) -> str:
    """What the app prints when its nodes are in one process."""
    root = APP.parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(app), str(root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", NEAR, flipped], env=env, capture_output=True, text=True, check=False, cwd=root
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def accuracies(said: str) -> list[float]:
    return [float(a) for a in re.findall(r"round \d+: accuracy ([\d.]+)", said)]


def weights(said: str) -> dict[str, float]:
    return {name: float(w) for name, w in re.findall(r"(\w+): weight ([\d.]+)", said)}


@pytest.fixture
def with_fedavg(tmp_path) -> Path:
    """The app with two lines of its server changed."""
    app = Path(shutil.copytree(APP, tmp_path / "fedavg"))
    server = app / "heart_app" / "server_app.py"
    text = server.read_text()
    for ours, theirs in SWAP:
        assert text.count(ours) == 1
        text = text.replace(ours, theirs)
    changed = sum(a != b for a, b in zip(text.splitlines(), server.read_text().splitlines(), strict=True))
    assert changed == 2
    server.write_text(text)
    return app


@pytest.mark.slow
def test_a_hospital_with_turned_labels_loses_its_weight_where_fedavg_keeps_it(with_fedavg):
    ours, theirs = near(APP, "hungarian"), near(with_fedavg, "hungarian")
    assert weights(ours)["hungarian"] < 0.05 and sum(weights(ours).values()) == pytest.approx(1, abs=0.002)
    assert len(accuracies(ours)) == len(accuracies(theirs)) == 5
    assert accuracies(ours)[-1] > accuracies(theirs)[-1] + 0.1


def test_the_readme_shows_what_the_app_prints():
    readme = (APP / "README.md").read_text()
    said = near(APP, "hungarian")
    for line in said.strip().splitlines():
        assert line in readme


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="flwr's simulation needs ray: pip install 'flwr[simulation]'"
)
def test_flwr_run(tmp_path):
    """A SuperLink of our own, so that it can be stopped by its process; dependencies are not installed at run time."""
    bin = str(Path(sys.executable).parent)
    env = {
        **os.environ,
        "PATH": bin + os.pathsep + os.environ["PATH"],
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    port, control = (free() for _ in range(2))
    env["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(port)
    app = shutil.copytree(APP, tmp_path / "app")
    command = ["flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--control-api-address", f"127.0.0.1:{control}"]
    with (tmp_path / "superlink.log").open("w") as log:
        link = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            wait_for(port)
            done = subprocess.run(
                ["flwr", "run", ".", "local", "--stream", *OPTIONS],
                env=env,
                cwd=app,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        finally:
            link.terminate()
            link.wait(30)
    said = done.stdout
    assert done.returncode == 0, said[-3000:]
    assert accuracies(said) == accuracies(near(APP, "hungarian"))[:1]
    assert set(weights(said)) == {"cleveland", "hungarian", "switzerland", "va"}


def free() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(port: int) -> None:
    """Until the SuperLink answers."""
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the SuperLink did not start")
