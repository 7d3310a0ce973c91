"""The two keys of a site: one for its SuperNode (P-384, OpenSSH format), one that signs Answers (Ed25519).

Keys that `rounds provision` makes were in the operator's hands. With a key request a site makes its own: the private keys
stay there, and a signed request goes to the operator.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from grandrounds.audit.canonical import canonical, loads
from grandrounds.audit.head import unhex
from grandrounds.core.errors import BadInput
from grandrounds.deploy.files import make_folder, read, write, write_private, write_secret
from grandrounds.protocol.identity import Identity, load_public, public_pem, signed_by

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


NEXT, VOID = "keys.next", "keys.void"
_SIGNED = b"grandrounds/rekey/1\x00"
_PARTS = {"site", "node", "key", "old", "new"}


@dataclass(frozen=True)
class KeyRequest:
    """A site's new public keys, signed by its old signing key and by the new one."""

    site: str
    keys: PublicKeys
    old: bytes
    new: bytes

    @classmethod
    def read(cls, path: Path) -> KeyRequest:
        """Read a request that `rekey` wrote.

        Raises:
            BadInput: It is not a request, or a key in it is invalid.
        """
        try:
            content = loads(read(path))
            if not isinstance(content, dict) or set(content) != _PARTS or not isinstance(content["site"], str):
                raise BadInput("is not a request for new keys: `rounds site rekey` writes one", code="not-a-request")
            keys = PublicKeys(parse_node_key(content["node"]), unhex(content["key"], 32, "the key"))
            return cls(
                content["site"],
                keys,
                unhex(content["old"], 64, "a signature"),
                unhex(content["new"], 64, "a signature"),
            )
        except BadInput as e:
            raise BadInput(f"{path}: {e}", code=e.code) from None

    def verify(self, site: str, old: PublicKeys) -> PublicKeys:
        """Verify that this site requested the new keys with its current key.

        Returns:
            The new keys.

        Raises:
            BadInput: The request belongs to another site, or a signature is invalid.
        """
        text = _signed_text(self.site, self.keys)
        if self.site != site:
            raise BadInput(f"the request is from {self.site!r}, not from {site!r}", code="wrong-site")
        if not signed_by(old.site, text, self.old) or not signed_by(self.keys.site, text, self.new):
            raise BadInput(
                f"the request is not signed by the keys of {site!r}: ask the site for a new one", code="wrong-signature"
            )
        return self.keys


def rekey(folder: Path) -> Path:
    """At a site: make new keys beside those in use.

    Returns:
        The request for the operator.
    """
    name = site_name(folder)
    old = Identity.load(folder / "keys" / "site.key")
    keys = make_keys(folder / NEXT, name)
    new = Identity.load(folder / NEXT / "site.key")
    text = _signed_text(name, keys)
    signed = {"old": old.sign(text).hex(), "new": new.sign(text).hex()}
    path = folder / "request.json"
    write(path, canonical({"site": name, "node": keys.node, "key": keys.site.hex(), **signed}) + b"\n")
    return path


def take_new_keys(folder: Path) -> None:
    """At a site: use the new keys from the next start on, after the operator has registered them.

    Raises:
        BadInput: There are no new keys, or void ones still exist.
    """
    if not (folder / NEXT / "site.key").exists():
        raise BadInput(f"{folder} has no new keys: `rounds site rekey {folder}` makes them", code="no-new-keys")
    if (folder / VOID).exists():
        raise BadInput(f"{folder / VOID} contains void keys: delete it first", code="void-keys-left")
    (folder / "keys").rename(folder / VOID)
    (folder / NEXT).rename(folder / "keys")
    (folder / "request.json").unlink(missing_ok=True)


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


def _signed_text(site: str, keys: PublicKeys) -> bytes:
    return _SIGNED + canonical({"site": site, "node": keys.node, "key": keys.site.hex()})
