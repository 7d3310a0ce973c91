"""At a client of XFed: a trained model stays at the node until it is asked for, so that the others' uploads are saved.

@app.train()
def train(message, context):
    ...
    return answer_with(message, context, RecordDict({"arrays": arrays, "metrics": metrics}))

app.train("grandrounds_upload")(kept)
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict

from grandrounds.core.errors import BadInput
from grandrounds.integrations.flower.reports import KEEP, PREFIX, ROUND

_KEPT, _WHEN = f"{PREFIX}kept.", f"{PREFIX}kept_in"


def answer_with(message: Message, context: Context, content: RecordDict) -> Message:
    """The reply to a training message: all of `content`, or without the model where the server said to keep it."""
    told = _told(message)
    if not told.get(KEEP, False):
        return Message(content, reply_to=message)
    for name in [n for n in context.state if n.startswith(_KEPT)]:
        del context.state[name]
    for name, arrays in content.array_records.items():
        context.state[f"{_KEPT}{name}"] = arrays
    context.state[_WHEN] = ConfigRecord({ROUND: told["server-round"]})
    rest = RecordDict({n: r for n, r in content.items() if n not in content.array_records})
    return Message(rest, reply_to=message)


def kept(message: Message, context: Context) -> Message:
    """The reply to a message that asks for the model of a round: the one that was kept in it."""
    when = context.state.config_records.get(_WHEN)
    asked = _told(message).get(ROUND)
    if when is None or asked is None or when[ROUND] != asked:
        raise BadInput(
            f"this node keeps no model of round {asked!r}: answer training messages with answer_with",
            code="no-kept-model",
        )
    held = {n.removeprefix(_KEPT): a for n, a in context.state.array_records.items() if n.startswith(_KEPT)}
    return Message(RecordDict(dict(held)), reply_to=message)


def _told(message: Message) -> ConfigRecord:
    """All that a message's ConfigRecords say."""
    out = ConfigRecord()
    for record in message.content.config_records.values():
        for key, value in record.items():
            out[key] = value
    return out
