"""The two keys of a site: one for its SuperNode (P-384, as OpenSSH writes it), one that signs Answers (Ed25519)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from grandrounds.core.errors import BadInput
from grandrounds.deploy.files import make_folder, read, write, write_private, write_secret
from grandrounds.protocol.identity import Identity, load_public, public_pem

_SSH = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


@dataclass(frozen=True)
class PublicKeys:
    """What others know of a site: its SuperNode's key as one line of OpenSSH, and the key that it signs with."""

    node: str
    site: bytes

    @property
    def fingerprints(self) -> dict[str, str]:
        """What the record names the keys by."""
        return {"node": fingerprint(self.node), "site": self.site.hex()}

    def save(self, server: Path, slug: str) -> None:
        """Into the server's lists."""
        write(server / "nodes" / f"{slug}.pub", f"{self.node}\n")
        write(server / "sites" / f"{slug}.pub", public_pem(self.site))

    @classmethod
    def load(cls, server: Path, slug: str) -> PublicKeys:
        """From the server's lists."""
        return cls(read_node_key(server / "nodes" / f"{slug}.pub"), load_public(server / "sites" / f"{slug}.pub"))


def make_keys(folder: Path, name: str) -> PublicKeys:
    """New keys of a site in its folder keys/, over those that are there; gives the public halves.

    The secret that masks come from is not among them: a site draws it from its own machine (`privacy.secagg.keys`).
    """
    make_folder(folder)
    node = ec.generate_private_key(ec.SECP384R1())
    secret = node.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = PublicKeys(f"{node.public_key().public_bytes(*_SSH).decode()} {name}", make_identity(folder, "site"))
    write_private(folder / "node", secret)
    write(folder / "node.pub", f"{public.node}\n")
    write_secret(folder / "runtime.secret")
    return public


def make_identity(folder: Path, name: str) -> bytes:
    """A new signing key NAME.key with NAME.pub beside it; gives the public half."""
    identity = Identity.new()
    (folder / f"{name}.key").unlink(missing_ok=True)
    identity.save(folder / f"{name}.key")
    write(folder / f"{name}.pub", public_pem(identity.public))
    return identity.public


def read_node_key(path: Path) -> str:
    """A SuperNode's public key from its file."""
    try:
        return parse_node_key(read(path).decode())
    except (BadInput, UnicodeDecodeError):
        raise BadInput(
            f"{path} is no public key of a SuperNode: `ssh-keygen -t ecdsa -b 384` makes such keys"
        ) from None


def parse_node_key(line: object) -> str:
    """One line of OpenSSH with a P-384 key; any other kind of key is refused."""
    try:
        text = str(line).strip()
        key = serialization.load_ssh_public_key(text.encode())
        fits = "\n" not in text and isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
    except (ValueError, UnsupportedAlgorithm):
        fits = False
    if not fits:
        raise BadInput("a SuperNode's public key must be one line of OpenSSH, of kind ecdsa-sha2-nistp384")
    return text


def fingerprint(node: str) -> str:
    """SHA-256 of a SuperNode's key without its comment."""
    return hashlib.sha256(" ".join(node.split()[:2]).encode()).hexdigest()
