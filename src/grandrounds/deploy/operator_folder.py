"""What an operator is given: a client certificate, the proxy that sends it, and Flower's own settings to go through it."""

from __future__ import annotations

from pathlib import Path

from grandrounds.core import toml
from grandrounds.core.errors import BadInput
from grandrounds.deploy import nginx, scripts
from grandrounds.deploy.consortium_file import Consortium, load
from grandrounds.deploy.files import SCRIPT, make_folder, read, write
from grandrounds.deploy.folders import Folders
from grandrounds.deploy.manifest import write_manifest
from grandrounds.deploy.pki import Issued, common_name, issue, load_certificate

PROXY_PORT = 9444
"""Of the operator's own machine, on loopback."""

AGREED = "agreed.toml"
"""The consortium's file as the server has it: who takes part, and which data was agreed on."""


def make_operator(folders: Folders, consortium: Consortium, name: str) -> str:
    """The folder of one operator, with a new certificate; gives its serial number."""
    folder = make_folder(folders.operator(name))
    for inside in ("run", "logs", "flower"):
        make_folder(folder / inside)
    write(folder / "nginx.conf", nginx.operators_side(consortium.server, port=PROXY_PORT))
    write(folder / "gateway.sh", scripts.gateway(), mode=SCRIPT)
    write(folder / "flower" / "config.toml", _flower())
    serial = renew_operator(folders, consortium, name)
    hand_over(folders, name)
    return serial


def renew_operator(folders: Folders, consortium: Consortium, name: str) -> str:
    """A new certificate by the same authority; the old one holds until it ends or is revoked. Gives the serial number."""
    made = issue(Issued.load(folders.pki, "operator-ca"), name, days=consortium.days)
    made.save(folders.operator(name), "operator")
    return made.serial


def hand_over(folders: Folders, name: str) -> None:
    """Bring the server's own files in an operator's folder up to date, and sign what the folder holds."""
    folder = folders.operator(name)
    write(folder / "server.pub", read(folders.server / "server.pub"))
    write(folder / "server-ca.pem", read(folders.pki / "server-ca.pem"))
    write(folder / AGREED, read(folders.consortium_file))
    write_manifest(folder, folders.identity(), consortium=folders.consortium().name, operator=name)


def hand_over_all(folders: Folders) -> None:
    """The same for every operator, when the consortium's file or the server's key has changed."""
    for folder in operators(folders).values():
        hand_over(folders, common_name(load_certificate(folder / "operator.pem")))


def agreed(folder: Path) -> Consortium:
    """The consortium as an operator's folder has it."""
    if not (folder / AGREED).exists():
        raise BadInput(
            f"{folder} has no {AGREED}, from which the sites' data are known: `rounds provision renew OUT` at the server "
            "writes it, then have the folder handed over again"
        )
    return load(folder / AGREED)


def operators(folders: Folders) -> dict[str, Path]:
    """Folders of operators that are there, by what they are called."""
    found = [folders.out / "operator", *sorted((folders.out / "operators").glob("*"))]
    return {f.name: f for f in found if (f / "operator.pem").exists()}


def _flower() -> str:
    """$FLWR_HOME/config.toml: through the proxy on this machine, which speaks TLS to the gateway."""
    through = {"address": f"127.0.0.1:{PROXY_PORT}", "insecure": True}
    head = "# For the `flwr` command: export FLWR_HOME=THIS FOLDER"
    return toml.dumps({"superlink": {"default": "consortium", "consortium": through}}, head=head)
