"""Write a wheelhouse: the package and all its dependencies as files, for a hospital without internet access."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from grandrounds.capabilities.hospital.deploy.files import SCRIPT, make_folder, read, write
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.manifest import write_manifest
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.version import __version__

_INSTALL = """\
#!/bin/sh
# ./install.sh [FOLDER]: create a virtual environment from these files, without internet access. Every SHA-256 is checked.
# PYTHON=python3.11 ./install.sh chooses another Python; it must be Python {python} on a machine of the same type.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
into=${{1-/opt/grandrounds}}
python=${{PYTHON:-python3}}
is=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$is" = {python} ] || {{ echo "these wheels are for Python {python}, $python is $is" >&2; exit 2; }}
[ -x "$into/bin/python" ] || "$python" -m venv "$into"
"$into/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$here" --require-hashes \\
  -r "$here/requirements.txt"
"$into/bin/rounds" --version
"""


def write_wheelhouse(out: Path, target: Path, *, extras: str = "flower", source: str | None = None) -> list[str]:
    """Collect wheels for this machine type and Python version, with a manifest signed by the server.

    Args:
        out: The provisioned folder.
        target: The folder to write, which must be empty.
        extras: Extras of the package to include.
        source: The requirement that pip installs; by default the source of this installation.

    Returns:
        The names of the wheels.

    Raises:
        BadInput: `target` is not empty.
        RunFailed: pip could not collect them.
    """
    folders = Folders.open(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"{target} exists and is not empty: choose another --to", code="folder-not-empty")
    make_folder(target)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--wheel-dir",
        str(target),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        requirement = f"{source or _find_source(Path(scratch))}{f'[{extras}]' if extras else ''}"
        pip = subprocess.run([*command, requirement], capture_output=True, text=True)
    if pip.returncode:
        raise RunFailed(
            f"pip could not collect the wheels: {(pip.stderr.strip().splitlines() or ['no reason given'])[-1]}",
            code="pip-failed",
        )
    names = sorted(p.name for p in target.glob("*.whl"))
    write(target / "requirements.txt", "".join(_pin(target / name) for name in names))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    write(target / "install.sh", _INSTALL.format(python=python), mode=SCRIPT)
    write(target / "server.pub", read(folders.server / "server.pub"))
    write_manifest(target, folders.identity(), consortium=folders.consortium().name, wheels=__version__)
    return names


def _find_source(scratch: Path) -> str:
    """Copy the source of an editable installation, to keep a build out of it; else return the package at this version."""
    direct_url = metadata.distribution("grandrounds").read_text("direct_url.json")
    tree = Path(unquote(urlparse(json.loads(direct_url)["url"]).path)) if direct_url else None
    if tree is None or not (tree / "pyproject.toml").is_file():
        return f"grandrounds=={__version__}"
    shutil.copytree(tree / "src", scratch / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in (tree / "pyproject.toml", *tree.glob("README*"), *tree.glob("LICENSE*")):
        shutil.copy(path, scratch)
    return str(scratch)


def _pin(wheel: Path) -> str:
    """Format one line of requirements.txt: name, version and hash."""
    name, version = wheel.name.split("-")[:2]
    return f"{name.replace('_', '-')}=={version} --hash=sha256:{hashlib.sha256(read(wheel)).hexdigest()}\n"
