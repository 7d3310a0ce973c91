"""Images built from Debian packages and a wheelhouse, and a consortium in containers: started by its Compose files.

Podman, mmdebstrap and an OCI runtime come from Debian. No registry of images is used.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from grandrounds.capabilities.hospital.deploy.pki import issue, new_authority
from grandrounds.core.toml import dumps
from tests.capabilities.hospital.deploy.consortia import free_port, provisioned
from tests.capabilities.hospital.deploy.real import ROUNDS, rounds, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Debian releases by the Python that they have: wheels are for the Python that runs the tests."""
DATA = """
[data]
label = "disease"
classes = ["no", "yes"]
[data.columns]
age = { kind = "number", unit = "years", range = [0, 120] }
sex = { kind = "category", values = ["female", "male"] }
"""
OWNER = 10001
TARGETS = ("server", "site", "console")
KEPT = "GRANDROUNDS_TEST_STORAGE"
"""Environment variable with a folder for Podman's storage; images that an earlier run left there are used as they are."""


@dataclass(frozen=True)
class Engine:
    """Podman with settings and storage of its own."""

    environment: dict[str, str]

    def podman(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(["podman", *map(str, words)], env=self.environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 or not check, f"podman {' '.join(map(str, words))}: {done.stderr[-2000:]}"
        return done

    def inside(self, container: str, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        return self.podman("exec", container, *words, check=False)

    def healthy(self, container: str) -> bool:
        """Run the health check of a container, as its engine does."""
        return self.podman("healthcheck", "run", container, check=False).returncode == 0

    @contextmanager
    def composed(self, folder: Path, project: str, *profiles: str, **variables: object) -> Iterator[str]:
        """The services of a folder's compose.yaml, started and ended; gives their names before _1."""
        compose = [sys.executable, "-m", "podman_compose", "-p", project]
        environment = {**self.environment, "OWNER": f"{OWNER}:{OWNER}", **{k: str(v) for k, v in variables.items()}}
        options = [word for profile in profiles for word in ("--profile", profile)]
        call = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 900}
        try:
            done = subprocess.run([*compose, *options, "up", "-d"], **call)
            assert done.returncode == 0, done.stderr[-3000:]
            yield project
        finally:
            subprocess.run([*compose, *options, "down", "-t", "20"], **call)


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    """Podman that starts containers here, with the base image; skipped where it cannot."""
    for name in ("podman", "mmdebstrap"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (apt-get install podman mmdebstrap runc netavark catatonit)")
    pytest.importorskip("podman_compose")
    if os.geteuid() != 0:
        pytest.skip("the test needs root: rootless Podman was not tried")
    if sys.version_info[:2] not in SUITES:
        pytest.skip(f"no Debian release with Python {sys.version_info[0]}.{sys.version_info[1]} is known here")
    folder = tmp_path_factory.mktemp("engine")
    storage = Path(os.environ.get(KEPT, folder / "storage"))
    faults = []
    for runtime in ("crun", "runc"):
        if shutil.which(runtime, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            continue
        candidate = _configure(folder, storage, runtime)
        if candidate.podman("image", "exists", _base(), check=False).returncode:
            _make_base(candidate)
        done = candidate.podman("run", "--rm", "--read-only", _base(), "true", check=False)
        if done.returncode == 0:
            return candidate
        faults.append(f"{runtime}: {done.stderr.strip().splitlines()[-1]}")
    pytest.skip(f"Podman cannot start a container here: {'; '.join(faults) or 'neither crun nor runc is installed'}")


def _configure(folder: Path, storage: Path, runtime: str) -> Engine:
    """Write Podman's settings: limits that need no privilege, and cgroups without systemd."""
    import resource

    files = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\n'
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{storage}"\nrunroot = "{storage}.run"\n'
    )
    settings = {"CONTAINERS_CONF": folder / "containers.conf", "CONTAINERS_STORAGE_CONF": folder / "storage.conf"}
    return Engine({**os.environ, **{name: str(path) for name, path in settings.items()}})


def _base() -> str:
    return f"localhost/grandrounds-base:{SUITES[sys.version_info[:2]]}"


def _make_base(engine: Engine) -> None:
    suite = SUITES[sys.version_info[:2]]
    command = ["sh", ROOT / "containers" / "build.sh", "--tool", "podman", "--debian", suite, "--only", "base"]
    done = subprocess.run(command, env=engine.environment, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        pytest.skip(f"mmdebstrap could not make a base image: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def images(engine, tmp_path_factory) -> Engine:
    """The three images, installed from a wheelhouse of this repository."""
    folder = tmp_path_factory.mktemp("images")
    there = [engine.podman("image", "exists", f"localhost/grandrounds-{t}:test", check=False).returncode for t in TARGETS]
    if any(there):
        out = provisioned(folder).out
        options = ["--to", folder / "wheels", "--extras", "flower,console", "--source", ROOT]
        subprocess.run([ROUNDS, "provision", "wheels", out, *options], check=True, timeout=900)
        build = ["sh", ROOT / "containers" / "build.sh", "--tool", "podman", "--base", _base(), "--tag", "test"]
        done = subprocess.run(
            [*build, "--wheels", folder / "wheels"], env=engine.environment, capture_output=True, text=True, timeout=3000
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return engine


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_no_compiler_no_pip_and_no_secret(images, target):
    look = (
        "id -u; command -v gcc cc make pip pip3 curl; "
        "find / -xdev -not -path '/proc/*' -name '*.key' -o -name pip.conf -o -name .netrc -o -name id_rsa -o -name id_ed25519; "
        "python3 -m pip --version; touch /x /opt/grandrounds/x; exit 0"
    )
    limits = ("--read-only", "--cap-drop", "ALL", "--network", "none")
    done = images.podman("run", "--rm", *limits, f"localhost/grandrounds-{target}:test", "sh", "-c", look)
    assert done.stdout.split() == [str(OWNER)], done.stdout
    assert done.stderr.count("Read-only file system") == 2 and "No module named pip" in done.stderr


@pytest.fixture(scope="module")
def consortium(tmp_path_factory) -> Path:
    """Folders of a server and two sites, which reach the server at this machine's own address; tables; the console's files."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing: finds the address of the default route
        except OSError:
            pytest.skip("this machine has no address that containers can reach")
        address = s.getsockname()[0]
    folder = tmp_path_factory.mktemp("consortium")
    rounds("data", "split", "heart", "--out", str(folder / "tables"))
    provisioned(folder, "cleveland", "va", address=address, port=free_port(), data=DATA)
    method = {"name": "fedavg", "rounds": 2}
    (folder / "out" / "server" / "first.toml").write_text(dumps({"name": "first", "method": method}))
    console = folder / "out" / "server" / "console"
    console.mkdir()
    certificate = issue(new_authority("heart", "console CA"), "console", days=2, addresses=("localhost", "127.0.0.1"))
    certificate.save(console, "tls")
    (console / "tls.pem").rename(console / "tls.crt")
    rounds("console", "users", "add", "ann", "--role", "viewer", "--token", "--users", str(console / "users.json"))
    for site in ("cleveland", "va"):
        (folder / "out" / "sites" / site / "state").mkdir()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OWNER, OWNER)
    return folder


def test_a_consortium_in_containers_trains_and_reports_its_health(images, consortium):
    out, tables, port = consortium / "out", consortium / "tables", free_port()
    with (
        images.composed(out / "server", "gr-server", "console", VERSION="test", CONSOLE_PORT=port),
        images.composed(out / "sites" / "va", "gr-va", VERSION="test", DATA=tables, TABLE="va.csv"),
        images.composed(out / "sites" / "cleveland", "gr-cleveland", VERSION="test", DATA=tables, TABLE="cleveland.csv"),
    ):
        names = ["gr-server_server_1", "gr-server_console_1"]
        names += [f"gr-{site}_{part}_1" for site in ("va", "cleveland") for part in ("node", "keeper")]
        for name in names:
            _check_limits(images, name)
        for name in names:
            until(lambda name=name: images.healthy(name), seconds=900, what=f"{name} healthy")
        node = images.inside("gr-va_node_1", "sh", "-c", "ls /data /folder /folder/keys; cat /folder/keys/site.key")
        assert "va.csv" not in node.stdout and "policy.toml" not in node.stdout and "No such file" in node.stderr

        server = ("exec", "gr-server_server_1", "rounds", "server")
        images.podman(*server, "submit", "/folder/server/first.toml", "--server", "/folder", "--name", "first")

        def finished() -> bool:
            status = json.loads(images.podman(*server, "status", "--server", "/folder", "--json").stdout)
            assert status["runs"][0]["state"] != "failed", (out / "server" / "logs" / "run-first.log").read_text()[-2000:]
            return status["runs"][0]["state"] == "done"

        until(finished, seconds=900, what="the run")
        assert "2 sites asked, 2 answered" in rounds("show", str(out / "server" / "runs" / "first"), "--round", "2")

        images.podman("stop", "--time", "30", "gr-va_node_1")
        until(lambda: not images.healthy("gr-va_keeper_1"), seconds=300, what="a keeper that misses its SuperNode")
        assert "cleveland has stopped" in _stopped(images, "gr-cleveland_keeper_1")


def _check_limits(engine: Engine, name: str) -> None:
    """An ordinary user without capabilities, system calls filtered, and a root file system that cannot be written."""
    done = engine.inside(name, "sh", "-c", "id -u; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/1/status; touch /x")
    assert done.stdout.split() == [str(OWNER), "CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"], (name, done)
    assert "Read-only file system" in done.stderr


def _stopped(engine: Engine, name: str) -> str:
    """Stop a container with SIGTERM; gives what it printed."""
    engine.podman("stop", "--time", "30", name)
    return engine.podman("logs", name).stdout
