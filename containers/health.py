#!/usr/bin/env -S python3 -I -S
"""`health [--alive] [--tls] PORT`: exit code 0 if /health on loopback answers 200, else 1 with the page's text.

Probes of containers run it every few seconds. It imports little, and so costs about 30 ms of one core.

--alive accepts every answer: for liveness probes. A program that reports a problem, such as a site that is offline, needs
no restart; one that does not answer does.
--tls speaks TLS without checking the certificate, which is made out to another name than that of loopback.
"""

import socket
import sys

SECONDS = 4.0


def fetch(port: int, *, tls: bool) -> tuple[int, str]:
    """Read /health at a port of loopback.

    Returns:
        The status code and the body.
    """
    request = f"GET /health HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as plain:
        connection = _wrap(plain) if tls else plain
        connection.sendall(request.encode())
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
    head, _, body = b"".join(parts).decode(errors="replace").partition("\r\n\r\n")
    return int(head.split()[1]), body.strip()


def _wrap(plain: socket.socket) -> socket.socket:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def main(words: list[str]) -> int:
    """Check the page that the words name."""
    ports = [word for word in words if not word.startswith("-")]
    flags = set(words) - set(ports)
    if len(ports) != 1 or not ports[0].isdecimal() or not flags <= {"--alive", "--tls"}:
        print("usage: health [--alive] [--tls] PORT", file=sys.stderr)
        return 2
    try:
        status, text = fetch(int(ports[0]), tls="--tls" in flags)
    except (OSError, ValueError, IndexError) as e:
        print(f"no answer on 127.0.0.1:{ports[0]}: {e}")
        return 1
    print(text)
    return 0 if status == 200 or "--alive" in flags else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
