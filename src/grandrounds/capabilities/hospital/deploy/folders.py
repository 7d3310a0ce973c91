"""The folders that `rounds provision` writes: their paths, and the contents of the server's, each operator's and each site's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from grandrounds.capabilities.hospital.deploy import nginx
from grandrounds.capabilities.hospital.deploy.consortium import Consortium, Member, load
from grandrounds.capabilities.hospital.deploy.containers import server_compose, site_compose
from grandrounds.capabilities.hospital.deploy.files import SCRIPT, make_folder, read, write, write_private, write_secret
from grandrounds.capabilities.hospital.deploy.invitations import FILE as INVITATION
from grandrounds.capabilities.hospital.deploy.keys import PublicKeys, make_identity, make_keys
from grandrounds.capabilities.hospital.deploy.manifest import write_manifest
from grandrounds.capabilities.hospital.deploy.pki import (
    IssuedCertificate,
    certificate_pem,
    common_name,
    issue,
    load_certificate,
    new_authority,
    revocation_list,
)
from grandrounds.capabilities.hospital.deploy.plan_encryption import PUBLIC, make_plan_key
from grandrounds.capabilities.hospital.deploy.start_files import (
    gateway_script,
    server_script,
    server_units,
    site_readme,
    site_script,
    site_units,
)
from grandrounds.capabilities.hospital.keeper.network.route import LOOPBACK
from grandrounds.capabilities.hospital.keeper.policy.templates import STRICT, policy_template
from grandrounds.capabilities.sources.cohort.plan_cohort import COHORT_FILE
from grandrounds.core import toml
from grandrounds.core.errors import BadInput
from grandrounds.core.names import folder_name
from grandrounds.data.agreement.schema_file import parse_schema
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import FILE as PEERS
from grandrounds.protocol.peers import Peers

FIRST_OPERATOR = "operator"


@dataclass(frozen=True)
class Folders:
    """The paths under OUT."""

    out: Path

    @classmethod
    def open(cls, out: Path) -> Folders:
        """Open folders that were provisioned.

        Raises:
            BadInput: `rounds provision` did not write them.
        """
        folders = cls(out)
        if not folders.record.exists():
            raise BadInput(
                f"{out} was not written by `rounds provision`: it has no server/consortium.db", code="not-provisioned"
            )
        return folders

    @property
    def server(self) -> Path:
        return self.out / "server"

    @property
    def pki(self) -> Path:
        return self.server / "pki"

    @property
    def record(self) -> Path:
        return self.server / "consortium.db"

    @property
    def crl(self) -> Path:
        return self.pki / "operator.crl"

    @property
    def consortium_file(self) -> Path:
        return self.server / "consortium.toml"

    @property
    def insecure(self) -> bool:
        """True if the consortium was provisioned without TLS, for one machine."""
        return not self.pki.exists()

    def consortium(self) -> Consortium:
        """Load the server's consortium.toml."""
        return load(self.consortium_file)

    def identity(self) -> Identity:
        """Load the server's signing key."""
        return Identity.load(self.server / "server.key")

    def site(self, name: str) -> Path:
        """Return the folder of a site."""
        return self.out / "sites" / folder_name(name)

    def operator(self, name: str) -> Path:
        """Return an operator's folder: OUT/operator for the first, OUT/operators/NAME for others."""
        return self.out / FIRST_OPERATOR if name == FIRST_OPERATOR else self.out / "operators" / folder_name(name)

    def node_key(self, name: str) -> Path:
        """Return the file of a SuperNode's public key; it exists while the site takes part."""
        return self.server / "nodes" / f"{folder_name(name)}.pub"

    def site_key(self, name: str) -> Path:
        """Return the file of the public key that the site signs with."""
        return self.server / "sites" / f"{folder_name(name)}.pub"

    def invitation(self, name: str) -> Path:
        """Return the file of a site's open invitation, with its code; it exists until the site has joined."""
        return self.server / "invitations" / f"{folder_name(name)}.json"

    def request(self, name: str) -> Path:
        """Return the file of a site's request to join; it exists while the operator has not approved it."""
        return self.server / "requests" / f"{folder_name(name)}.json"

    def close_invitation(self, name: str) -> None:
        """Delete the invitation of a site and its request: the code is used or void."""
        self.invitation(name).unlink(missing_ok=True)
        self.request(name).unlink(missing_ok=True)

    def is_invited(self, name: str) -> bool:
        """Check whether a site has an open invitation."""
        return self.invitation(name).exists()

    def recipients(self) -> tuple[str, ...]:
        """List the sites that take part or are invited, and whose folder is here: an operator may delete folders."""
        sites = [s.name for s in self.consortium().sites if (self.site(s.name) / "site.toml").exists()]
        return tuple(name for name in sites if self.node_key(name).exists() or self.is_invited(name))

    def members(self) -> tuple[str, ...]:
        """List the sites that take part now: those of consortium.toml whose SuperNode is on the list."""
        return tuple(s.name for s in self.consortium().sites if self.node_key(s.name).exists())


SERVICES = ("superlink", "gateway")
"""Services with a certificate of the server's authority."""


def make_server(folders: Folders, consortium: Consortium, text: bytes, *, insecure: bool) -> None:
    """Create OUT/server, without the record and the lists of sites."""
    server = make_folder(folders.server)
    for name in ("nodes", "sites", "run", "runs", "logs", "state", "units"):
        make_folder(server / name)
    if not insecure:
        make_folder(folders.pki)
        new_authority(consortium.name, "server CA").save(folders.pki, "server-ca")
        operators = new_authority(consortium.name, "operator CA")
        operators.save(folders.pki, "operator-ca")
        write(folders.crl, revocation_list(operators, {}))
        renew_services(folders, consortium)
        write(server / "nginx.conf", nginx.gateway_config(consortium.server))
        write(server / "compose.yaml", server_compose(consortium))
        write(server / "gateway.sh", gateway_script(), mode=SCRIPT)
    make_identity(server, "server")
    make_plan_key(server)
    write_secret(server / "runtime.secret")
    write_consortium(server, consortium, text, name=folders.consortium_file.name)
    write(server / "start.sh", server_script(insecure=insecure), mode=SCRIPT)
    for name, unit in server_units(consortium, insecure=insecure).items():
        write(server / "units" / name, unit)


def write_consortium(folder: Path, consortium: Consortium, text: bytes, *, name: str) -> None:
    """Write a copy of the consortium's file, and its cohort beside it: the copy does not depend on a file elsewhere."""
    write(folder / name, text)
    _write_cohort(folder, consortium)


def write_agreement(folder: Path, consortium: Consortium) -> None:
    """Write the agreed data of a consortium into a site's folder: schema.json, and cohort.json where there is a cohort."""
    if consortium.data:
        named = {"cohort": COHORT_FILE} if "cohort" in consortium.data else {}
        schema = {**parse_schema(consortium.data).to_dict(), **named}
        write(folder / "schema.json", json.dumps(schema, indent=1) + "\n")
    _write_cohort(folder, consortium)


def _write_cohort(folder: Path, consortium: Consortium) -> None:
    if "cohort" in consortium.data:
        write(folder / COHORT_FILE, json.dumps(consortium.data["cohort"], indent=1) + "\n")
    else:
        (folder / COHORT_FILE).unlink(missing_ok=True)


def renew_services(folders: Folders, consortium: Consortium) -> dict[str, str]:
    """Issue new certificates of SuperLink and gateway by the same authority.

    Returns:
        Their serial numbers by name.
    """
    authority = IssuedCertificate.load(folders.pki, "server-ca")
    addresses = (consortium.server.address, *LOOPBACK)
    certificates = {name: issue(authority, name, days=consortium.days, addresses=addresses) for name in SERVICES}
    for name, one in certificates.items():
        one.save(folders.pki, name)
    return {**{name: one.serial for name, one in certificates.items()}, **write_gateways(folders, consortium, authority)}


def write_gateways(folders: Folders, consortium: Consortium, authority: IssuedCertificate) -> dict[str, str]:
    """Write server/gateways/NAME for each further gateway, with a certificate of its own, and server/relay where there is one.

    Returns:
        The serial numbers of the gateways' certificates.
    """
    server, serials = consortium.server, {}
    for gateway in server.gateways:
        folder = make_folder(folders.server / "gateways" / gateway.folder)
        for inside in ("pki", "run", "logs"):
            make_folder(folder / inside)
        names = (gateway.host, *LOOPBACK)  # a site's forwarder is reached on loopback
        certificate = issue(authority, str(gateway), days=consortium.days, addresses=names)
        certificate.save(folder / "pki", "gateway")
        if server.relay is not None:
            issue(authority, str(gateway), days=consortium.days).save(folder / "pki", "relay")
        write(folder / "pki" / "server-ca.pem", certificate_pem(authority.certificate))
        write(folder / "nginx.conf", nginx.further_gateway_config(server, gateway))
        write(folder / "gateway.sh", gateway_script(), mode=SCRIPT)
        serials[f"gateway {gateway}"] = certificate.serial
    if server.relay is not None:
        relay = make_folder(folders.server / "relay")
        for inside in ("run", "logs"):
            make_folder(relay / inside)
        write(relay / "nginx.conf", nginx.relay_config(server))
        write(relay / "gateway.sh", gateway_script(), mode=SCRIPT)
    return serials


PROXY_PORT = 9444
"""Loopback port of the proxy on the operator's machine."""

AGREED = "agreed.toml"
"""Copy of the consortium's file: its members and the agreed data."""


def make_operator(folders: Folders, consortium: Consortium, name: str) -> str:
    """Create the folder of one operator, with a new certificate.

    Returns:
        The serial number.
    """
    folder = make_folder(folders.operator(name))
    for inside in ("run", "logs", "flower"):
        make_folder(folder / inside)
    write(folder / "nginx.conf", nginx.operator_config(consortium.server, port=PROXY_PORT))
    write(folder / "gateway.sh", gateway_script(), mode=SCRIPT)
    write(folder / "flower" / "config.toml", _flower_config())
    serial = renew_operator(folders, consortium, name)
    hand_over_operator(folders, name)
    return serial


def renew_operator(folders: Folders, consortium: Consortium, name: str) -> str:
    """Issue a new certificate by the same authority; the old one is valid until it expires or is revoked.

    Returns:
        The serial number.
    """
    certificate = issue(IssuedCertificate.load(folders.pki, "operator-ca"), name, days=consortium.days)
    certificate.save(folders.operator(name), "operator")
    return certificate.serial


def hand_over_operator(folders: Folders, name: str) -> None:
    """Update the server's files in an operator's folder, and sign the folder."""
    folder = folders.operator(name)
    write(folder / "server.pub", read(folders.server / "server.pub"))
    write(folder / "server-ca.pem", read(folders.pki / "server-ca.pem"))
    write(folder / PUBLIC, read(folders.server / PUBLIC))
    consortium = folders.consortium()
    write_consortium(folder, consortium, read(folders.consortium_file), name=AGREED)
    write_manifest(folder, folders.identity(), consortium=consortium.name, operator=name)


def hand_over_operators(folders: Folders) -> None:
    """Update every operator's folder, after a change of the consortium's file or the server's key."""
    for folder in operator_folders(folders).values():
        hand_over_operator(folders, common_name(load_certificate(folder / "operator.pem")))


def load_agreed(folder: Path) -> Consortium:
    """Load the consortium from an operator's folder."""
    return load(folder / AGREED)


def operator_folders(folders: Folders) -> dict[str, Path]:
    """List the folders of operators that exist, by name."""
    candidates = [folders.out / "operator", *sorted((folders.out / "operators").glob("*"))]
    return {f.name: f for f in candidates if (f / "operator.pem").exists()}


def _flower_config() -> str:
    """Write $FLWR_HOME/config.toml for the local proxy, which uses TLS to the gateway."""
    through = {"address": f"127.0.0.1:{PROXY_PORT}", "insecure": True}
    head = "# For the `flwr` command: export FLWR_HOME=THIS FOLDER"
    return toml.dumps({"superlink": {"default": "consortium", "consortium": through}}, head=head)


NODE_PORT, HEALTH_PORT = 9500, 9501
"""Loopback ports of the first site; each further site uses the next two, so that many can run on one machine."""

SECONDS = 600
"""Time limit of the keeper for one Ask, in seconds."""

_SITE_HEAD = """\
# Address of the consortium, and the ports that this site uses on its own machine. Paths are relative to this folder.
# You may change the ports and limits."""


def make_site(folders: Folders, consortium: Consortium, site: Member, *, policy: str = STRICT) -> None:
    """Create the folder of one site, without keys. `policy` is the template of its policy.toml.

    It is handed over (`hand_over_sites`) once all sites of the same operation have a folder.
    """
    folder = make_folder(folders.site(site.name))
    settings = _site_settings(consortium, site, insecure=folders.insecure)
    port = NODE_PORT + 2 * consortium.sites.index(site)
    write(folder / "site.toml", toml.dumps(settings, head=_SITE_HEAD))
    write(folder / "policy.toml", policy_template(policy))
    write_agreement(folder, consortium)
    write(folder / "start.sh", site_script(), mode=SCRIPT)
    for name, text in site_units(consortium, site).items():
        write(make_folder(folder / "units") / name, text)
    if not folders.insecure:
        write(folder / "compose.yaml", site_compose(site, port, port + 1))
    write(folder / "README.txt", site_readme(consortium, site))


def make_site_keys(folders: Folders, site: Member) -> PublicKeys:
    """Make a site's private keys here, in its folder, and add their public keys to the server's lists.

    Returns:
        The public keys.
    """
    keys = make_keys(folders.site(site.name) / "keys", site.name)
    keys.save(folders.server, site.slug)
    return keys


def hand_over_sites(folders: Folders, consortium: str) -> None:
    """Update every site's folder with the keys of all current sites."""
    peers = Peers({name: load_public(folders.site_key(name)) for name in folders.members()}).text()
    for name in folders.recipients():
        _hand_over_site(folders, consortium, name, peers)


def _hand_over_site(folders: Folders, consortium: str, name: str, peers: str) -> None:
    """Update the server's files in a site's folder, and sign the folder."""
    folder = folders.site(name)
    write(folder / "server.pub", read(folders.server / "server.pub"))
    if not folders.insecure:
        write(folder / "server-ca.pem", read(folders.pki / "server-ca.pem"))
    write(folder / PEERS, peers)
    if folders.is_invited(name):
        write_private(folder / INVITATION, read(folders.invitation(name)))
    else:
        (folder / INVITATION).unlink(missing_ok=True)
    write_manifest(folder, folders.identity(), consortium=consortium, site=name)


def _site_settings(consortium: Consortium, site: Member, *, insecure: bool) -> dict[str, object]:
    position = consortium.sites.index(site)
    server: dict[str, object] = {"address": consortium.server.address, "port": consortium.server.port}
    if consortium.server.gateways:
        server["gateways"] = [str(gateway) for gateway in consortium.server.gateways]
    if insecure:  # there is no gateway: the node connects to the SuperLink itself
        server |= {"port": consortium.server.superlink_port, "insecure": True}
    return {
        "name": site.name,
        "consortium": consortium.name,
        "server": server,
        "node": {"port": NODE_PORT + 2 * position},
        "health": {"port": HEALTH_PORT + 2 * position},
        "limits": {"seconds": SECONDS},
    }
