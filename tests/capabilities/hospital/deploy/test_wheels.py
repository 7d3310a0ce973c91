"""The wheelhouse, with a tiny package in place of ours (250 MB of wheels): collected, signed, installed without an index."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.capabilities.hospital.deploy.consortia import provisioned
from tests.command import rounds


def _tiny(folder: Path) -> Path:
    """A wheel with a command `rounds` that needs nothing else."""
    wheel, info = folder / "tiny_rounds-1.0-py3-none-any.whl", "tiny_rounds-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("tiny_rounds.py", "def main():\n    print('tiny rounds')\n")
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-rounds\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/entry_points.txt", "[console_scripts]\nrounds = tiny_rounds:main\n")
        z.writestr(
            f"{info}/RECORD",
            f"tiny_rounds.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/entry_points.txt,,\n{info}/RECORD,,\n",
        )
    return wheel


def test_every_file_of_the_package_is_in_its_wheel():
    root = Path(__file__).resolve().parents[4]
    package = root / "src" / "grandrounds"
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["grandrounds"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    held = {p for p in package.rglob("*") if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts}
    assert held == {p for p in shipped if p.is_file() and p.suffix != ".py"}


@pytest.mark.slow
def test_wheels_are_signed_and_install_without_an_index(tmp_path):
    folders, to = provisioned(tmp_path), tmp_path / "wheels"
    done = rounds("provision", "wheels", folders.out, "--to", to, "--source", _tiny(tmp_path), "--extras", "")
    assert done.returncode == 0 and "1 wheels" in done.stdout, done.stderr
    assert (to / "requirements.txt").read_text().startswith("tiny-rounds==1.0 --hash=sha256:")
    assert rounds("provision", "verify", to, "--key", folders.server / "server.pub").returncode == 0
    wheel = to / "tiny_rounds-1.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    wheel.write_bytes(whole + b"\0")
    assert rounds("provision", "verify", to).returncode == 3
    assert "DO NOT MATCH THE HASHES" in _install(to, tmp_path / "venv").stderr
    wheel.write_bytes(whole)
    done = _install(to, tmp_path / "venv")
    assert (done.returncode, done.stdout) == (0, "tiny rounds\n"), done.stderr


def _install(wheels: Path, into: Path) -> subprocess.CompletedProcess:
    env = {"PATH": os.environ["PATH"], "HOME": str(into.parent), "PYTHON": sys.executable}
    return subprocess.run([wheels / "install.sh", into], capture_output=True, text=True, env=env)


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    folders = provisioned(tmp_path)
    done = rounds("provision", "wheels", folders.out, "--to", folders.server)
    assert done.returncode == 2 and "exists and is not empty" in done.stderr


def test_what_pip_cannot_find_is_said_in_one_sentence(tmp_path):
    folders = provisioned(tmp_path)
    done = rounds("provision", "wheels", folders.out, "--to", tmp_path / "w", "--source", tmp_path / "nothing.whl")
    assert done.returncode == 1 and done.stderr.startswith("error: pip could not collect the wheels: ")
