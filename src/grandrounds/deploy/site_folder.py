"""What a hospital is given: its settings, a policy to edit, the agreed data, its keys, and how to start."""

from __future__ import annotations

import json
from typing import Any

from grandrounds.core import toml
from grandrounds.data.agreement.schema import agreed
from grandrounds.deploy import compose, scripts, units
from grandrounds.deploy.consortium_file import Consortium, Member
from grandrounds.deploy.files import SCRIPT, make_folder, read, write
from grandrounds.deploy.folders import Folders
from grandrounds.deploy.keys import PublicKeys, make_keys
from grandrounds.deploy.manifest import write_manifest
from grandrounds.keeper.policy.rules import default_policy
from grandrounds.protocol.identity import load_public
from grandrounds.protocol.peers import FILE as PEERS
from grandrounds.protocol.peers import Peers

NODE_PORT, HEALTH_PORT = 9500, 9501
"""Loopback ports of the first site; each site after it takes the next two, so that many can run on one machine."""

SECONDS = 600
"""The keeper's own deadline for one Ask."""

_HEAD = """\
# Where this site finds its consortium, and the ports it uses on its own machine. Paths are relative to this folder.
# The ports and limits are yours to change."""


def make_site(folders: Folders, consortium: Consortium, site: Member) -> PublicKeys:
    """The folder of one site, with new keys; gives their public halves, which are on the server's lists then.

    It is to be handed over (`hand_over_all`) once all keys that come with these are made.
    """
    folder = make_folder(folders.site(site.name))
    keys = make_keys(folder / "keys", site.name)
    keys.save(folders.server, site.slug)
    settings = _settings(consortium, site, insecure=folders.insecure)
    port = settings["node"]["port"]
    write(folder / "site.toml", toml.dumps(settings, head=_HEAD))
    write(folder / "policy.toml", default_policy())
    if consortium.data:
        schema = agreed(consortium.data).to_dict()
        write(folder / "schema.json", json.dumps(schema, indent=1) + "\n")
    write(folder / "start.sh", scripts.site(), mode=SCRIPT)
    for name, text in units.of_site(consortium, site, port, insecure=folders.insecure).items():
        write(make_folder(folder / "units") / name, text)
    write(folder / "compose.yaml", compose.of_site(consortium, site, port, insecure=folders.insecure))
    write(folder / "README.txt", scripts.site_readme(consortium, site))
    return keys


def hand_over_all(folders: Folders, consortium: str) -> None:
    """Every folder of a site again, with the keys of all sites that take part now; an operator may have deleted some."""
    peers = Peers({name: load_public(folders.site_key(name)) for name in folders.members()}).text()
    for name in folders.members():
        if (folders.site(name) / "site.toml").exists():
            _hand_over(folders, consortium, name, peers)


def _hand_over(folders: Folders, consortium: str, name: str, peers: str) -> None:
    """Bring the server's own files in a site's folder up to date, and sign what the folder holds."""
    folder = folders.site(name)
    write(folder / "server.pub", read(folders.server / "server.pub"))
    if not folders.insecure:
        write(folder / "server-ca.pem", read(folders.pki / "server-ca.pem"))
    write(folder / PEERS, peers)
    write_manifest(folder, folders.identity(), consortium=consortium, site=name)


def _settings(consortium: Consortium, site: Member, *, insecure: bool) -> dict[str, Any]:
    at = consortium.sites.index(site)
    server: dict[str, Any] = {"address": consortium.server.address, "port": consortium.server.port}
    if insecure:  # there is no gateway: the node dials the SuperLink itself
        server |= {"port": consortium.server.superlink_port, "insecure": True}
    return {
        "name": site.name,
        "consortium": consortium.name,
        "server": server,
        "node": {"port": NODE_PORT + 2 * at},
        "health": {"port": HEALTH_PORT + 2 * at},
        "limits": {"seconds": SECONDS},
    }
