"""The two keys of a site: one for its SuperNode (P-384, OpenSSH format), one that signs Answers (Ed25519).

A site makes them on its own machine (`key_requests`). With `rounds provision --make-keys`, for tests and demonstrations, the
operator makes them and has had the private keys.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from grandrounds.capabilities.hospital.deploy.files import make_folder, read, write, write_private, write_secret
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity, load_public, public_pem

_SSH = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


@dataclass(frozen=True)
class PublicKeys:
    """Public keys of a site: its SuperNode's as one line of OpenSSH, and its signing key."""

    node: str
    site: bytes

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints by which the record names the keys."""
        return {"node": fingerprint(self.node), "site": self.site.hex()}

    def save(self, server: Path, slug: str) -> None:
        """Write the keys to the server's lists."""
        write(server / "nodes" / f"{slug}.pub", f"{self.node}\n")
        write(server / "sites" / f"{slug}.pub", public_pem(self.site))

    @classmethod
    def load(cls, server: Path, slug: str) -> PublicKeys:
        """Load the keys from the server's lists."""
        return cls(read_node_key(server / "nodes" / f"{slug}.pub"), load_public(server / "sites" / f"{slug}.pub"))


def make_keys(folder: Path, name: str) -> PublicKeys:
    """Make new keys of a site in its folder keys/, replacing existing ones.

    The secret of masks is not among them: a site draws it on its own machine (`privacy.secagg.keys`).

    Returns:
        The public keys.
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
    """Make a new signing key NAME.key, and NAME.pub.

    Returns:
        The public key.
    """
    identity = Identity.new()
    (folder / f"{name}.key").unlink(missing_ok=True)
    identity.save(folder / f"{name}.key")
    write(folder / f"{name}.pub", public_pem(identity.public))
    return identity.public


def read_node_key(path: Path) -> str:
    """Read a SuperNode's public key from its file.

    Raises:
        BadInput: It is not a P-384 key in OpenSSH format.
    """
    try:
        return parse_node_key(read(path).decode())
    except (BadInput, UnicodeDecodeError):
        raise BadInput(
            f"{path} is not a public key of a SuperNode: create one with `ssh-keygen -t ecdsa -b 384`", code="invalid-key"
        ) from None


def parse_node_key(line: object) -> str:
    """Check that a text is one line of OpenSSH with a P-384 key.

    Raises:
        BadInput: It is not.
    """
    try:
        text = str(line).strip()
        key = serialization.load_ssh_public_key(text.encode())
        fits = "\n" not in text and isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
    except (ValueError, UnsupportedAlgorithm):
        fits = False
    if not fits:
        raise BadInput(
            "a SuperNode's public key must be one line of OpenSSH of type ecdsa-sha2-nistp384", code="invalid-key"
        )
    return text


def fingerprint(node: str) -> str:
    """Compute the SHA-256 of a SuperNode's key without its comment."""
    return hashlib.sha256(" ".join(node.split()[:2]).encode()).hexdigest()


def site_name(folder: Path) -> str:
    """Read the site's name from its folder.

    Raises:
        BadInput: Its site.toml is damaged.
    """
    path = folder / "site.toml"
    try:
        name = tomllib.loads(read(path).decode())["name"]
    except (ValueError, KeyError):
        raise BadInput(f"{path} is damaged: the site's name is missing", code="damaged-file") from None
    return str(name)
