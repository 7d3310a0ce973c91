"""A wheelhouse: the package and all it needs as files, for a hospital without the internet."""

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

from grandrounds import __version__
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.deploy.files import SCRIPT, make_folder, read, write
from grandrounds.deploy.folders import Folders
from grandrounds.deploy.manifest import write_manifest

_INSTALL = """\
#!/bin/sh
# ./install.sh [FOLDER]: a virtual environment with what lies here, without the internet. Every file is held to its SHA-256.
# PYTHON=python3.11 ./install.sh chooses another Python; it must be Python {python} on a machine of the same kind.
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


def write_wheelhouse(out: Path, to: Path, *, extras: str = "flower", source: str | None = None) -> list[str]:
    """Wheels for machines of this one's kind and Python, signed by the server; gives their names.

    `source`: what pip is to take the package from; not set: where this installation came from.
    """
    folders = Folders.existing(out)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise BadInput(f"{to} exists and is not empty: choose another --to", code="folder-not-empty")
    make_folder(to)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--wheel-dir", str(to)]
    with tempfile.TemporaryDirectory() as scratch:
        what = f"{source or _find_source(Path(scratch))}{f'[{extras}]' if extras else ''}"
        done = subprocess.run([*command, what], capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(
            f"pip could not collect the wheels: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}",
            code="pip-failed",
        )
    names = sorted(p.name for p in to.glob("*.whl"))
    write(to / "requirements.txt", "".join(_pin(to / name) for name in names))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    write(to / "install.sh", _INSTALL.format(python=python), mode=SCRIPT)
    write(to / "server.pub", read(folders.server / "server.pub"))
    write_manifest(to, folders.identity(), consortium=folders.consortium().name, wheels=__version__)
    return names


def _find_source(scratch: Path) -> str:
    """A copy of the source of an editable installation, which a build must not litter; else the package at this version."""
    said = metadata.distribution("grandrounds").read_text("direct_url.json")
    tree = Path(unquote(urlparse(json.loads(said)["url"]).path)) if said else None
    if tree is None or not (tree / "pyproject.toml").is_file():
        return f"grandrounds=={__version__}"
    shutil.copytree(tree / "src", scratch / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in (tree / "pyproject.toml", *tree.glob("README*"), *tree.glob("LICENSE*")):
        shutil.copy(path, scratch)
    return str(scratch)


def _pin(wheel: Path) -> str:
    """One line of requirements.txt: the name, the version, and the hash of the file."""
    name, version = wheel.name.split("-")[:2]
    return f"{name.replace('_', '-')}=={version} --hash=sha256:{hashlib.sha256(read(wheel)).hexdigest()}\n"
