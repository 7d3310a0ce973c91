"""Certificates: authorities, issued certificates and revocations.

There are two independent authorities: the server's, with which sites check the gateway, and the operators', with which the
gateway checks operators. A site has no certificate, so nothing that a site holds opens a control route.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from grandrounds.capabilities.hospital.deploy.files import read, write, write_private
from grandrounds.core.errors import BadInput

AUTHORITY_YEARS = 10
_EARLY = timedelta(hours=1)
"""Certificates are valid from an hour before their creation, because clocks of hospitals differ."""


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def serial(self) -> str:
        """Serial number as `openssl x509 -serial` prints it."""
        return serial_text(self.certificate.serial_number)

    def save(self, folder: Path, name: str) -> None:
        """Write NAME.pem and NAME.key; only the owner can read the key."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(folder / f"{name}.key", pem)
        write(folder / f"{name}.pem", certificate_pem(self.certificate))

    @classmethod
    def load(cls, folder: Path, name: str) -> IssuedCertificate:
        """Load a certificate and its key as `save` wrote them.

        Raises:
            BadInput: A file is missing, or holds another type of key.
        """
        path = folder / f"{name}.key"
        try:
            key = serialization.load_pem_private_key(read(path), password=None)
        except (ValueError, TypeError):
            raise BadInput(f"{path} is not a private key in PEM format without a password", code="invalid-key") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadInput(f"{path} holds another type of key; an elliptic-curve key is required", code="invalid-key")
        return cls(load_certificate(folder / f"{name}.pem"), key)


def new_authority(consortium: str, role: str, *, now: datetime | None = None) -> IssuedCertificate:
    """Create a certificate authority that signs leaf certificates only (path length 0)."""
    start = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _subject_name(consortium, role)
    use = _key_usage(sign=False, authority=True)
    builder = (
        _builder(name, name, key.public_key(), start, start + timedelta(days=round(365.25 * AUTHORITY_YEARS)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use, critical=True)
    )
    return IssuedCertificate(builder.sign(key, hashes.SHA384()), key)


def issue(
    authority: IssuedCertificate,
    common_name: str,
    *,
    days: int,
    addresses: Sequence[str] = (),
    now: datetime | None = None,
) -> IssuedCertificate:
    """Issue a leaf certificate, which never outlives its authority.

    Args:
        authority: The authority that signs it.
        common_name: The holder's name.
        days: Validity in days.
        addresses: DNS names or IP addresses of a server; none for a client.
        now: Start of the validity; the current time by default.

    Returns:
        The certificate with its key.
    """
    start = now or datetime.now(UTC)
    end = min(start + timedelta(days=days), authority.certificate.not_valid_after_utc)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    organisation = str(issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value)
    role = ExtendedKeyUsageOID.SERVER_AUTH if addresses else ExtendedKeyUsageOID.CLIENT_AUTH
    parent = authority.key.public_key()
    builder = (
        _builder(_subject_name(organisation, common_name), issuer, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign=True, authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([role]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(parent), critical=False)
    )
    if addresses:
        names = [_alternative(a) for a in dict.fromkeys(addresses)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return IssuedCertificate(builder.sign(authority.key, hashes.SHA256()), key)


def revocation_list(
    authority: IssuedCertificate, revoked: Mapping[int, datetime], *, now: datetime | None = None
) -> bytes:
    """Sign the list of revoked serial numbers, in PEM format.

    It is valid as long as the authority: TLS refuses every client once a list has expired, and this one is a file on the
    gateway's own disk, so an earlier expiry would protect nobody.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update((now or datetime.now(UTC)) - _EARLY)
        .next_update(authority.certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(len(revoked) + 1), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    for serial, when in revoked.items():
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
        builder = builder.add_revoked_certificate(one)
    return builder.sign(authority.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def read_revocations(path: Path) -> dict[int, datetime]:
    """Read the revoked serial numbers of a list, with the time of each revocation.

    Raises:
        BadInput: It is not such a list.
    """
    try:
        revoked = x509.load_pem_x509_crl(read(path))
    except ValueError:
        raise BadInput(f"{path} is not a list of revoked certificates in PEM format", code="invalid-certificate") from None
    return {one.serial_number: one.revocation_date_utc for one in revoked}


def load_certificate(path: Path) -> x509.Certificate:
    """Load a certificate from a PEM file.

    Raises:
        BadInput: It is not a certificate.
    """
    try:
        return x509.load_pem_x509_certificate(read(path))
    except ValueError:
        raise BadInput(f"{path} is not a certificate in PEM format", code="invalid-certificate") from None


def common_name(certificate: x509.Certificate) -> str:
    """Return the holder's name of a certificate."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def serial_text(serial: int) -> str:
    """Format a serial number as an even number of hexadecimal digits."""
    text = f"{serial:X}"
    return text.zfill(len(text) + len(text) % 2)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Encode a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _EARLY)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject_name(organisation: str, common: str) -> x509.Name:
    parts = {NameOID.ORGANIZATION_NAME: organisation, NameOID.COMMON_NAME: common}
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts.items()])


def _key_usage(*, sign: bool, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=sign,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)
