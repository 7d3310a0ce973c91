"""The server's folder: both authorities, the certificates of SuperLink and gateway, its signing key, and how to start."""

from __future__ import annotations

from grandrounds.deploy import compose, nginx, scripts, units
from grandrounds.deploy.consortium_file import Consortium
from grandrounds.deploy.files import SCRIPT, make_folder, write, write_secret
from grandrounds.deploy.folders import Folders
from grandrounds.deploy.keys import make_identity
from grandrounds.deploy.pki import Issued, issue, new_authority, revocations

SERVICES = ("superlink", "gateway")
"""What has a certificate of the server's authority."""


def make_server(folders: Folders, consortium: Consortium, text: bytes, *, insecure: bool) -> None:
    """All of OUT/server but the record and the lists of sites."""
    server = make_folder(folders.server)
    for name in ("nodes", "sites", "run", "logs", "state", "units"):
        make_folder(server / name)
    if not insecure:
        make_folder(folders.pki)
        new_authority(consortium.name, "server CA").save(folders.pki, "server-ca")
        operators = new_authority(consortium.name, "operator CA")
        operators.save(folders.pki, "operator-ca")
        write(folders.crl, revocations(operators, {}))
        renew_services(folders, consortium)
        write(server / "nginx.conf", nginx.gateway(consortium.server))
        write(server / "compose.yaml", compose.of_server(consortium))
        write(server / "gateway.sh", scripts.gateway(), mode=SCRIPT)
    make_identity(server, "server")
    write_secret(server / "runtime.secret")
    write(folders.consortium_file, text)
    write(server / "start.sh", scripts.server(insecure=insecure), mode=SCRIPT)
    for name, unit in units.of_server(consortium, insecure=insecure).items():
        write(server / "units" / name, unit)


def renew_services(folders: Folders, consortium: Consortium) -> dict[str, str]:
    """New certificates of SuperLink and gateway by the same authority; gives their serial numbers."""
    authority = Issued.load(folders.pki, "server-ca")
    addresses = (consortium.server.address, "localhost", "127.0.0.1", "::1")
    made = {name: issue(authority, name, days=consortium.days, addresses=addresses) for name in SERVICES}
    for name, one in made.items():
        one.save(folders.pki, name)
    return {name: one.serial for name, one in made.items()}
