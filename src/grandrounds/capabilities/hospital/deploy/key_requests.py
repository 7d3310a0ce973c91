"""Key request: a site makes its own keys, and asks the operator to register their public halves.

A new site asks with the code of its invitation (`join`), a site that takes part with its key in use (`rekey`). Private keys
never leave the site. Both new keys sign the request, which proves that the site has them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from grandrounds.audit.canonical import canonical, loads, parse
from grandrounds.audit.head import unhex
from grandrounds.capabilities.hospital.deploy.files import read, write
from grandrounds.capabilities.hospital.deploy.invitations import FILE as INVITATION
from grandrounds.capabilities.hospital.deploy.invitations import Invitation
from grandrounds.capabilities.hospital.deploy.keys import (
    PublicKeys,
    make_keys,
    parse_node_key,
    read_node_key,
    site_name,
)
from grandrounds.capabilities.hospital.deploy.manifest import MANIFEST, REQUEST, check_manifest
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity, is_weak, signed_by
from grandrounds.protocol.peers import fingerprint

KEYS, NEXT, VOID = "keys", "keys.next", "keys.void"
_PART = "keys.part"
_SIGNED = b"grandrounds/key-request/1\x00"
_PARTS = {"consortium", "site", "node", "key", "node_signature", "signature"}
_CODE, _OLD = "code", "old"


@dataclass(frozen=True)
class KeyRequest:
    """Public keys of a site, signed by both of them.

    A request to join has `code`, the proof that the site has the code of its invitation. A request for other keys has
    `old`, the signature of the key in use.
    """

    consortium: str
    site: str
    keys: PublicKeys
    node_signature: bytes
    signature: bytes
    code: bytes = b""
    old: bytes = b""

    @classmethod
    def read(cls, path: Path) -> KeyRequest:
        """Read a request, and check that both new keys signed it.

        Raises:
            BadInput: It is not a request, a key in it is invalid, or it was changed after it was signed.
        """
        try:
            request = cls._parse(loads(read(path)))
        except BadInput as e:
            raise BadInput(f"{path}: {e}", code=e.code) from None
        if not request._is_signed():
            raise BadInput(
                f"{path} was changed on its way: its signatures do not fit; ask {request.site!r} to send it again",
                code="request-changed",
            )
        return request

    @classmethod
    def _parse(cls, content: object) -> KeyRequest:
        kind = {_CODE, _OLD} & set(content) if isinstance(content, dict) else set()
        if not isinstance(content, dict) or len(kind) != 1 or set(content) - kind != _PARTS:
            raise BadInput(
                "is not a request for keys: `rounds site join` and `rounds site rekey` write one", code="not-a-request"
            )
        key = unhex(content["key"], 32, "the key")
        if is_weak(key):
            raise BadInput("its key is of small order, with which anyone can sign: ask for a new one", code="weak-key")
        return cls(
            str(content["consortium"]),
            str(content["site"]),
            PublicKeys(parse_node_key(content["node"]), key),
            _signature_bytes(content["node_signature"]),
            unhex(content["signature"], 64, "a signature"),
            unhex(content[_CODE], 32, "the proof of the code") if _CODE in content else b"",
            unhex(content[_OLD], 64, "a signature") if _OLD in content else b"",
        )

    @property
    def text(self) -> bytes:
        """Bytes that are signed: the consortium, the site and both keys."""
        return _text(self.consortium, self.site, self.keys)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the signing key, to read out; that key also signs the SuperNode's."""
        return fingerprint(self.keys.site)

    @property
    def is_join(self) -> bool:
        """True for a request of a site with an invitation."""
        return bool(self.code)

    def save(self, path: Path) -> None:
        """Write the request."""
        content = {
            "consortium": self.consortium,
            "site": self.site,
            "node": self.keys.node,
            "key": self.keys.site.hex(),
            "node_signature": self.node_signature.hex(),
            "signature": self.signature.hex(),
        }
        proof = {_CODE: self.code.hex()} if self.is_join else {_OLD: self.old.hex()}
        write(path, canonical({**content, **proof}) + b"\n")

    def is_signed_by(self, in_use: bytes) -> bool:
        """Check that the site requested other keys with this key, which it has in use."""
        return bool(self.old) and signed_by(in_use, self.text, self.old)

    def _is_signed(self) -> bool:
        node = serialization.load_ssh_public_key(self.keys.node.encode())
        assert isinstance(node, ec.EllipticCurvePublicKey)
        try:
            node.verify(self.node_signature, self.text, ec.ECDSA(hashes.SHA384()))
        except InvalidSignature:
            return False
        return signed_by(self.keys.site, self.text, self.signature)


def join(folder: Path, *, server: bytes | None = None, now: datetime | None = None) -> KeyRequest:
    """At a site: make its keys and a request to join, `request.json`. Repeated, it keeps the keys.

    Args:
        folder: The folder with the invitation, as the operator handed it over.
        server: The server's public key from a source that the site trusts; None: the folder's own copy.
        now: The time; the current one by default.

    Returns:
        The request.

    Raises:
        BadInput: The folder has no invitation, was changed, belongs to the operator, or its invitation is over.
    """
    invitation = _check_invitation(folder, server, now)
    _make_once(folder, KEYS, invitation.site)
    keys, signatures = _sign(invitation.consortium, invitation.site, folder / KEYS)
    proof = invitation.prove(_text(invitation.consortium, invitation.site, keys))
    request = KeyRequest(invitation.consortium, invitation.site, keys, *signatures, code=proof)
    request.save(folder / REQUEST)
    return request


def _check_invitation(folder: Path, server: bytes | None, now: datetime | None) -> Invitation:
    faults = check_manifest(folder, server).faults
    if faults:
        raise BadInput(
            f"{folder} is not as the server signed it ({faults[0]}): no keys were made; ask the operator for the folder again",
            code="folder-changed",
        )
    if not (folder / INVITATION).exists():
        ways = (
            f"it has keys already; `rounds site rekey {folder}` replaces them"
            if (folder / KEYS).exists()
            else "ask the operator for one (`rounds provision invite`)"
        )
        raise BadInput(f"{folder} has no {INVITATION}: {ways}", code="no-invitation")
    if (folder.resolve().parent.parent / "server" / "server.key").exists():
        raise BadInput(
            f"{folder} lies in the operator's folder, and private keys must not: copy it to the hospital's machine first",
            code="operator-folder",
        )
    invitation, signed = Invitation.load(folder / INVITATION), parse(read(folder / MANIFEST))
    if (signed.get("consortium"), signed.get("site")) != (invitation.consortium, invitation.site) or (
        invitation.site != site_name(folder)
    ):
        raise BadInput(
            f"{folder} mixes files of several sites: its invitation is for {invitation.site!r}, and site.toml names "
            f"{site_name(folder)!r}; take the folder from the operator again",
            code="wrong-site",
        )
    if invitation.is_over(now):
        raise BadInput(
            f"the invitation of {invitation.site} was valid until {invitation.ends:%Y-%m-%d}: ask the operator for a new one "
            "(`rounds provision invite`)",
            code="invitation-over",
        )
    return invitation


def rekey(folder: Path) -> KeyRequest:
    """At a site: make new keys beside those in use, and a request for them, `request.json`. Repeated, it keeps them.

    Returns:
        The request.

    Raises:
        BadInput: The site has no keys yet.
    """
    name = site_name(folder)
    if not (folder / KEYS).exists():
        raise BadInput(f"{folder} has no keys yet: `rounds site join {folder}` makes them", code="no-keys")
    in_use = Identity.load(folder / KEYS / "site.key")
    consortium = str(parse(read(folder / MANIFEST)).get("consortium", ""))
    _make_once(folder, NEXT, name)
    keys, signatures = _sign(consortium, name, folder / NEXT)
    request = KeyRequest(consortium, name, keys, *signatures, old=in_use.sign(_text(consortium, name, keys)))
    request.save(folder / REQUEST)
    return request


def take_new_keys(folder: Path) -> None:
    """At a site: use the new keys from the next start on, after the operator has registered them.

    Raises:
        BadInput: There are no new keys, or void ones still exist.
    """
    if not (folder / NEXT / "site.key").exists():
        raise BadInput(f"{folder} has no new keys: `rounds site rekey {folder}` makes them", code="no-new-keys")
    if (folder / VOID).exists():
        raise BadInput(f"{folder / VOID} contains void keys: delete it first", code="void-keys-left")
    if (folder / KEYS).exists():
        (folder / KEYS).rename(folder / VOID)
    (folder / NEXT).rename(folder / KEYS)
    (folder / REQUEST).unlink(missing_ok=True)


def _make_once(folder: Path, name: str, site: str) -> None:
    """Make keys unless they exist: the operator may have registered them. An interrupted command leaves no half of them."""
    if not (folder / name).exists():
        shutil.rmtree(folder / _PART, ignore_errors=True)
        make_keys(folder / _PART, site)
        (folder / _PART).rename(folder / name)


def _sign(consortium: str, site: str, folder: Path) -> tuple[PublicKeys, tuple[bytes, bytes]]:
    """Sign a request with the private keys of a folder.

    Returns:
        The public keys, and the signatures of SuperNode's key and signing key.
    """
    identity = Identity.load(folder / "site.key")
    try:
        node = serialization.load_ssh_private_key(read(folder / "node"), password=None)
    except ValueError:
        node = None
    if not isinstance(node, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{folder / 'node'} is not a private key of a SuperNode", code="invalid-key")
    keys = PublicKeys(read_node_key(folder / "node.pub"), identity.public)
    text = _text(consortium, site, keys)
    return keys, (node.sign(text, ec.ECDSA(hashes.SHA384())), identity.sign(text))


def _text(consortium: str, site: str, keys: PublicKeys) -> bytes:
    return _SIGNED + canonical({"consortium": consortium, "site": site, "node": keys.node, "key": keys.site.hex()})


def _signature_bytes(value: object) -> bytes:
    """Read an ECDSA signature, whose length varies."""
    try:
        data = bytes.fromhex(str(value))
    except ValueError:
        data = b""
    if not 8 <= len(data) <= 128:
        raise BadInput("is not a request for keys: a signature in it is not hexadecimal", code="not-a-request")
    return data
