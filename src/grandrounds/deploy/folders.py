"""Where `rounds provision` keeps what: the server's folder, each operator's, each site's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.deploy.consortium_file import Consortium, load
from grandrounds.deploy.names import slug
from grandrounds.protocol.identity import Identity

FIRST_OPERATOR = "operator"


@dataclass(frozen=True)
class Folders:
    """The paths under OUT."""

    out: Path

    @classmethod
    def existing(cls, out: Path) -> Folders:
        """Folders that were provisioned; anything else is refused."""
        found = cls(out)
        if not found.record.exists():
            raise BadInput(f"{out} was not written by `rounds provision`: it has no server/consortium.db")
        return found

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
        """Whether the consortium was provisioned without TLS, for one machine alone."""
        return not self.pki.exists()

    def consortium(self) -> Consortium:
        return load(self.consortium_file)

    def identity(self) -> Identity:
        """The server's signing key."""
        return Identity.load(self.server / "server.key")

    def site(self, name: str) -> Path:
        return self.out / "sites" / slug(name)

    def operator(self, name: str) -> Path:
        """The first operator's folder is OUT/operator, those of others are under OUT/operators."""
        return self.out / FIRST_OPERATOR if name == FIRST_OPERATOR else self.out / "operators" / slug(name)

    def node_key(self, name: str) -> Path:
        """The SuperNode's public key; it is there while the site takes part."""
        return self.server / "nodes" / f"{slug(name)}.pub"

    def site_key(self, name: str) -> Path:
        """The public key that the site signs with."""
        return self.server / "sites" / f"{slug(name)}.pub"

    def members(self) -> tuple[str, ...]:
        """Sites that take part now: those of consortium.toml whose SuperNode is on the list."""
        return tuple(s.name for s in self.consortium().sites if self.node_key(s.name).exists())
