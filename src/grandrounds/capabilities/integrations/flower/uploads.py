"""Uploads of an XFed client: a trained model stays at the node until it is requested, which saves the others' uploads.

@app.train()
def train(message, context):
    ...
    return answer_with(message, context, RecordDict({"arrays": arrays, "metrics": metrics}))

app.train("grandrounds_upload")(send_kept_model)
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict

from grandrounds.capabilities.integrations.flower.client import KEEP, PREFIX, ROUND
from grandrounds.core.errors import BadInput

_KEPT, _WHEN = f"{PREFIX}kept.", f"{PREFIX}kept_in"


def answer_with(message: Message, context: Context, content: RecordDict) -> Message:
    """Reply to a training message with all of `content`, or without the model if the server asks to keep it.

    Args:
        message: The message.
        context: The client's context, whose state stores the model.
        content: The reply.

    Returns:
        The reply message.
    """
    config = _merged_config(message)
    if not config.get(KEEP, False):
        return Message(content, reply_to=message)
    for name in [n for n in context.state if n.startswith(_KEPT)]:
        del context.state[name]
    for name, arrays in content.array_records.items():
        context.state[f"{_KEPT}{name}"] = arrays
    context.state[_WHEN] = ConfigRecord({ROUND: config["server-round"]})
    rest = RecordDict({n: r for n, r in content.items() if n not in content.array_records})
    return Message(rest, reply_to=message)


def send_kept_model(message: Message, context: Context) -> Message:
    """Reply to a request for the model of a round with the stored one.

    Raises:
        BadInput: No model of this round is stored.
    """
    when = context.state.config_records.get(_WHEN)
    round_asked = _merged_config(message).get(ROUND)
    if when is None or round_asked is None or when[ROUND] != round_asked:
        raise BadInput(
            f"this node has no stored model of round {round_asked!r}: answer training messages with answer_with",
            code="no-kept-model",
        )
    models = {n.removeprefix(_KEPT): a for n, a in context.state.array_records.items() if n.startswith(_KEPT)}
    return Message(RecordDict(dict(models)), reply_to=message)


def _merged_config(message: Message) -> ConfigRecord:
    """Merge a message's ConfigRecords."""
    out = ConfigRecord()
    for record in message.content.config_records.values():
        for key, value in record.items():
            out[key] = value
    return out
