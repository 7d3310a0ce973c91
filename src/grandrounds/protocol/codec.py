"""Encode Asks and Answers as bytes. The model is sent as its named arrays, every other value under its own name.

A message contains only arrays, numbers and short strings. Numbers are arrays without dimensions, so the size of an answer
does not depend on its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, decode, encode, encoded_size
from grandrounds.core.errors import BadInput
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import PROTOCOL, Answer, Ask, AskId, Payload, Value

MODEL = "model"
_BUNDLE = b"\xff\xff\xff\xffGRB1"
"""First bytes of a bundle. A single message begins with the length of its header, which is never this large."""

_MOST = 64
"""Largest number of messages in a bundle."""


def _split(values: Payload, layout: ParameterLayout | None) -> tuple[dict[str, Array], dict[str, str]]:
    arrays: dict[str, Array] = {}
    words: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, str):
            words[name] = value
        elif name == MODEL and layout is not None:
            arrays |= {f"{MODEL}/{part}": view for part, view in layout.views(np.asarray(value)).items()}
        else:
            arrays[name] = np.asarray(value)
    return arrays, words


def _join(arrays: Mapping[str, Array], words: Mapping[str, str], layout: ParameterLayout | None) -> dict[str, Value]:
    values: dict[str, Value] = dict(words)
    params: dict[str, Array] = {}
    for name, array in arrays.items():
        if name.startswith(f"{MODEL}/"):
            params[name.removeprefix(f"{MODEL}/")] = array
        else:
            values[name] = array.item() if array.ndim == 0 else array
    if params:
        if layout is None:
            raise BadInput("a model arrived before its shape was agreed: prepare the site first", code="not-prepared")
        values[MODEL] = layout.pack(params, dtype=next(iter(params.values())).dtype)
    return values


def _ask_meta(ask: Ask, words: Mapping[str, str]) -> dict[str, object]:
    return {
        "protocol": ask.protocol,
        "task": ask.task,
        "report": list(ask.report),
        "deadline": ask.deadline,
        "id": [ask.id.run, ask.id.round, ask.id.step] if ask.id else None,
        "words": words,
        **({"held": list(ask.withheld)} if ask.withheld else {}),
    }


def _answer_meta(id: AskId, error: str, words: Mapping[str, str]) -> dict[str, object]:
    return {"protocol": PROTOCOL, "id": [id.run, id.round, id.step], "error": error, "words": words}


def encode_ask(ask: Ask, site: str, layout: ParameterLayout | None) -> bytes:
    """Encode an Ask for one site: the shared part and the site's own, no other site's."""
    arrays, words = _split(ask.for_site(site), layout)
    return encode(arrays, _ask_meta(ask, words))


def decode_ask(data: bytes, site: str, layout: ParameterLayout | None) -> Ask:
    arrays, meta = decode(data, where="an Ask")
    _check_protocol(meta)
    return _build_ask(arrays, meta, site, layout)


def _build_ask(arrays: Mapping[str, Array], meta: Any, site: str, layout: ParameterLayout | None) -> Ask:
    return Ask(
        task=str(meta["task"]),
        shared=_join(arrays, meta["words"], layout),
        to=(site,),
        report=tuple(meta["report"]),
        deadline=meta["deadline"],
        id=AskId(*meta["id"]),
        withheld=tuple(meta.get("held", ())),
    )


@dataclass(frozen=True)
class ParsedAsk:
    """An Ask whose bytes are parsed but whose model is not assembled yet, because its layout depends on the run."""

    task: str
    id: AskId
    arrays: Mapping[str, Array]
    meta: Any

    def build(self, site: str, layout: ParameterLayout | None) -> Ask:
        """Assemble the Ask as `decode_ask` returns it, without parsing the bytes again."""
        return _build_ask(self.arrays, self.meta, site, layout)


def peek_ask(data: bytes) -> tuple[str, AskId]:
    """Read the task and the id of an Ask, before the layout of its model is known."""
    parsed = parse_ask(data)
    return parsed.task, parsed.id


def parse_ask(data: bytes) -> ParsedAsk:
    """Parse the bytes of an Ask.

    Args:
        data: The encoded Ask.

    Returns:
        The parsed Ask.

    Raises:
        BadInput: The bytes are damaged, use another protocol version, or have no task and id.
    """
    arrays, meta = decode(data, where="an Ask")
    _check_protocol(meta)
    try:
        run, round, step = meta["id"]
        return ParsedAsk(str(meta["task"]), AskId(str(run), int(round), int(step)), arrays, meta)
    except (KeyError, TypeError, ValueError):
        raise BadInput("an Ask without a task and an id cannot be answered", code="malformed-message") from None


def encode_answer(answer: Answer, layout: ParameterLayout | None) -> bytes:
    arrays, words = _split(answer.values, layout)
    return encode(arrays, _answer_meta(answer.id, answer.error, words))


def decode_answer(data: bytes, site: str, layout: ParameterLayout | None) -> Answer:
    arrays, meta = decode(data, where=f"the answer of {site}")
    _check_protocol(meta)
    values = _join(arrays, meta["words"], layout)
    return Answer(site, AskId(*meta["id"]), values, error=str(meta["error"]))


def peek_answer(data: bytes) -> str:
    """Return the error code of an encoded Answer; empty if there is none."""
    _, meta = decode(data, where="an Answer")
    return str(meta["error"])


def ask_size(ask: Ask, site: str, layout: ParameterLayout | None) -> int:
    """Compute the size of `encode_ask` in bytes, without encoding."""
    arrays, words = _split(ask.for_site(site), layout)
    return encoded_size(arrays, _ask_meta(ask, words))


def answer_size(id: AskId, values: Payload, layout: ParameterLayout | None) -> int:
    """Compute the size of `encode_answer` in bytes, without encoding."""
    arrays, words = _split(values, layout)
    return encoded_size(arrays, _answer_meta(id, "", words))


def bundle(parts: Sequence[bytes]) -> bytes:
    """Bundle several Asks, or their Answers, as the body of one message; a single one is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    sizes = b"".join(len(part).to_bytes(8, "little") for part in parts)
    return _BUNDLE + len(parts).to_bytes(4, "little") + sizes + b"".join(parts)


def unbundle(data: bytes) -> list[bytes]:
    """Split a bundle into its messages; data that are no bundle are returned as one message.

    Raises:
        BadInput: The bundle is truncated or its sizes do not add up.
    """
    if not data.startswith(_BUNDLE):
        return [data]
    start = len(_BUNDLE) + 4
    count = int.from_bytes(data[len(_BUNDLE) : start], "little")
    if count > _MOST or len(data) < start + 8 * count:
        raise BadInput("a bundle of messages is truncated", code="malformed-message")
    sizes = [int.from_bytes(data[start + 8 * k : start + 8 * (k + 1)], "little") for k in range(count)]
    first = start + 8 * count
    if first + sum(sizes) != len(data):
        raise BadInput("the sizes of a bundle of messages do not add up", code="malformed-message")
    ends = [first + sum(sizes[: k + 1]) for k in range(count)]
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _check_protocol(meta: Any) -> None:
    if not isinstance(meta, dict) or meta.get("protocol") != PROTOCOL:
        theirs = meta.get("protocol") if isinstance(meta, dict) else None
        raise BadInput(
            f"the message uses protocol {theirs}, this package protocol {PROTOCOL}: install the same version everywhere",
            code="protocol-mismatch",
        )
