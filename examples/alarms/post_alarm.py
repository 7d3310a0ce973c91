"""Post an alarm of `rounds watch` to a webhook as JSON. The address is read from a file, because it is often a secret.

Example: rounds watch RUN --table new.csv --on-alarm "python examples/alarms/post_alarm.py /etc/grandrounds/webhook"
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

SECONDS = 10
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class NoRedirect(HTTPRedirectHandler):
    """Refuse redirects: an alarm goes to the address that was given, or nowhere."""

    def redirect_request(self, *_: object) -> None:
        return None


def post(url: str, body: bytes) -> str:
    """Post JSON; returns the cause of a failure, without the address."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return "the address must begin with https://, or be on this machine"
    request = Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
    try:
        with build_opener(NoRedirect).open(request, timeout=SECONDS):
            return ""
    except URLError as e:
        return f"the webhook answered {e.code}" if hasattr(e, "code") else f"the webhook cannot be reached: {e.reason}"
    except OSError as e:
        return f"the webhook cannot be reached: {e}"


if __name__ == "__main__":
    failure = post(Path(sys.argv[1]).read_text().strip(), sys.stdin.buffer.read())
    if failure:
        print(failure, file=sys.stderr)
    sys.exit(bool(failure))
