"""Ask a gateway for its certificate and its time, over TLS that is checked against the consortium's own authority."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from grandrounds.capabilities.hospital.keeper.network.connect import CannotConnect, Stream, dial
from grandrounds.capabilities.hospital.keeper.network.route import Hop
from grandrounds.core.errors import BadInput

SECONDS = 15.0
"""Time limit of handshake and answer."""


@dataclass(frozen=True)
class GatewayAnswer:
    """A gateway's answer to a probe.

    Attributes:
        offset: Seconds that the gateway's clock is ahead of this machine's; exact to about a second.
        expires: End of the validity of its certificate.
        address: The IP address that answered: the gateway's, or the proxy's.
    """

    offset: float
    expires: datetime
    address: str


def probe(hop: Hop, authority: Path) -> GatewayAnswer:
    """Connect to a gateway, check its certificate and read its clock.

    Args:
        hop: The gateway, and the proxy on the way.
        authority: The consortium's authority, server-ca.pem.

    Raises:
        BadInput: The authority cannot be read.
        CannotConnect: A step failed; its text says which and why.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError):
        raise BadInput(
            f"{authority} is not a certificate authority in PEM format: restore the file that was handed over",
            code="invalid-certificate",
        ) from None
    return asyncio.run(_probe(hop, context))


async def _probe(hop: Hop, context: ssl.SSLContext) -> GatewayAnswer:
    reader, writer = await dial(hop)
    try:
        async with asyncio.timeout(SECONDS):
            await writer.start_tls(context, server_hostname=hop.gateway.host)
            certificate = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(True))
            address = str(writer.get_extra_info("peername")[0])
            offset = await _read_offset(hop, (reader, writer))
    except ssl.SSLCertVerificationError as e:
        raise await _explain_certificate(hop, e) from None
    except TimeoutError:
        raise _no_answer(hop, f"accepts connections but does not answer within {SECONDS:.0f} s") from None
    except (OSError, EOFError):
        raise _no_answer(hop, "accepts connections but ends them within the TLS handshake") from None
    finally:
        writer.transport.abort()
    return GatewayAnswer(offset, certificate.not_valid_after_utc, address)


async def _read_offset(hop: Hop, stream: Stream) -> float:
    """Ask for a page that does not exist: every answer of a web server has its time."""
    reader, writer = stream
    began = time.time()
    writer.write(f"GET /clock HTTP/1.1\r\nHost: {hop.gateway}\r\nConnection: close\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    middle = (began + time.time()) / 2
    match = re.search(r"(?im)^date:\s*(.+?)\s*$", head)
    if match is None:
        raise EOFError
    with contextlib.suppress(ValueError, TypeError):
        return parsedate_to_datetime(match[1]).timestamp() + 0.5 - middle  # the header has whole seconds
    raise EOFError


def _no_answer(hop: Hop, problem: str) -> CannotConnect:
    return CannotConnect(
        "tls",
        f"the gateway {hop.gateway} {problem}",
        "Ask whether a firewall on the way interrupts TLS, and the operator whether the gateway is up.",
    )


async def _explain_certificate(hop: Hop, error: ssl.SSLCertVerificationError) -> CannotConnect:
    """Explain a certificate that was not accepted, by the certificate itself."""
    shown = await _read_certificate(hop)
    now = datetime.now(UTC)
    text = error.verify_message or "unknown fault"
    if shown is not None and now < shown.not_valid_before_utc:
        return CannotConnect(
            "tls",
            f"the certificate of {hop.gateway} is valid from {_date(shown.not_valid_before_utc)}, and this machine's clock says "
            f"{_date(now)}",
            "Correct this machine's clock: ask for a time server (NTP).",
        )
    if shown is not None and now > shown.not_valid_after_utc:
        return CannotConnect(
            "tls",
            f"the certificate of {hop.gateway} expired on {_date(shown.not_valid_after_utc)}, and this machine's clock says "
            f"{_date(now)}",
            "Check this machine's clock; if it is right, ask the operator to renew it (rounds provision renew).",
        )
    if "mismatch" in text.lower():
        names = "" if shown is None else f": it names {', '.join(_names(shown))}"
        return CannotConnect(
            "tls",
            f"the certificate does not name {hop.gateway.host}{names}",
            "Ask the operator to add this gateway to [server] gateways of consortium.toml and to renew the certificates.",
        )
    issuer = "" if shown is None else f" It was issued by '{_issuer(shown)}'."
    return CannotConnect(
        "tls",
        f"the certificate shown for {hop.gateway} is not of this consortium's authority.{issuer}",
        f"Ask to exempt {hop.gateway.host}, port {hop.gateway.port}, from TLS inspection: the connection must pass unopened. If "
        "nothing inspects it, ask the operator whether server-ca.pem is current.",
    )


async def _read_certificate(hop: Hop) -> x509.Certificate | None:
    """Read the certificate without accepting it, to name its issuer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await dial(hop)
        try:
            async with asyncio.timeout(SECONDS):
                await writer.start_tls(context, server_hostname=hop.gateway.host)
            return x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(True))
        finally:
            writer.transport.abort()
    except (CannotConnect, OSError, ValueError, TimeoutError):
        return None


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in extension]


def _issuer(certificate: x509.Certificate) -> str:
    for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME):
        if found := certificate.issuer.get_attributes_for_oid(oid):
            return str(found[0].value)[:100]
    return "unnamed"


def _date(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
