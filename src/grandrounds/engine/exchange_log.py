"""Log every message between server and sites.

Each line names the request by the first 16 hexadecimal digits of its message's SHA-256. The site logs the same digits
(`state/log.jsonl`), so `grep REQUEST` over both logs shows both sides of one exchange.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import Any, Protocol

from grandrounds.core.event_log import log_event
from grandrounds.protocol.envelope import request_id
from grandrounds.protocol.messages import Ask

logger = logging.getLogger("grandrounds.exchange")

SENT, RECEIVED, UNANSWERED, REFUSED = "request sent", "answer received", "request unanswered", "request refused"
HELLO = "hello"
_CODE = re.compile(r"[a-z][a-z0-9-]{0,39}")


class Message(Protocol):
    """The parts of a dispatcher's request that a log names."""

    site: str
    digest: str
    sent: float

    @property
    def asks(self) -> Sequence[Ask]: ...


def log_sent(message: Message, size: int) -> None:
    """Log a request that was sent."""
    log_event(logger, SENT, **_describe(message), bytes=size)


def log_received(message: Message, data: bytes | None, error: str = "") -> None:
    """Log the answer to a request, or the reason why the transport has none."""
    seconds = round(time.monotonic() - message.sent, 3)
    if data is None:
        log_event(logger, UNANSWERED, level=logging.WARNING, **_describe(message), seconds=seconds, code=error)
    else:
        log_event(logger, RECEIVED, **_describe(message), seconds=seconds, bytes=len(data))


def log_refused(ask: Ask, site: str, code: str) -> None:
    """Log the refusal of an Ask with the site's code; anything that is not a code is logged as "other"."""
    known = code if _CODE.fullmatch(code) else "other"
    log_event(logger, REFUSED, level=logging.WARNING, **_place(ask), site=site, task=ask.task, code=known)


def log_hello(digest: str, size: int) -> None:
    """Log the question for the name of a site that has just connected."""
    log_event(logger, SENT, request=request_id(digest), task=HELLO, bytes=size)


def log_identified(digest: str, site: str, size: int, sent: float) -> None:
    """Log the answer to a hello."""
    seconds = round(time.monotonic() - sent, 3)
    log_event(logger, RECEIVED, request=request_id(digest), site=site, task=HELLO, seconds=seconds, bytes=size)


def _describe(message: Message) -> dict[str, Any]:
    tasks = ",".join(dict.fromkeys(ask.task for ask in message.asks))
    return {**_place(message.asks[-1]), "site": message.site, "request": request_id(message.digest), "task": tasks}


def _place(ask: Ask) -> dict[str, Any]:
    return {} if ask.id is None else {"run": ask.id.run, "round": ask.id.round}
