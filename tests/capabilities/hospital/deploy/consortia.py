"""Consortia for tests: a file that says who takes part, and folders made of it."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.provision import provision

DATA = """
[data]
label = "disease"
positive = "yes"
[data.columns.age]
kind = "number"
unit = "years"
range = [0, 120]
[data.columns.cp]
kind = "category"
values = ["1", "2", "3", "4"]
"""


_GIVEN: set[int] = set()


def free_port() -> int:
    """Find a port that is free and below those that the system gives to outgoing connections, so that it stays free.

    No port is given twice: a consortium of four with the same port twice is refused, once in some thousand tests.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        if port in _GIVEN:
            continue
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            _GIVEN.add(port)
            return port


def consortium_text(
    *sites: str, name: str = "heart", address: str = "127.0.0.1", port: int = 9443, link: int = 9092, data: str = DATA
) -> str:
    members = "".join(f'[[sites]]\nname = "{s}"\n' for s in sites or ("cleveland", "hungary"))
    server = f'[server]\naddress = "{address}"\nport = {port}\nsuperlink_port = {link}\n'
    return f'name = "{name}"\n{server}{members}{data}'


def provisioned(folder: Path, *sites: str, insecure: bool = False, make_keys: bool = True, **more: object) -> Folders:
    """A consortium under `folder`, whose sites take part at once: their keys are made here."""
    source = folder / "consortium.toml"
    source.write_text(consortium_text(*sites, **more))  # type: ignore[arg-type]
    provision(source, folder / "out", insecure=insecure, make_keys=make_keys, policy="research")
    return Folders(folder / "out")
