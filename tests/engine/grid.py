"""A Grid whose nodes are keepers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flwr.app import Message

from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.protocol.flower_message import pack, unpack
from tests.near_grid import NearGrid


def keeper_grid(keepers: Sequence[Keeper]) -> NearGrid:
    """Node ids count from 1 in the order of the keepers."""
    return NearGrid({id: partial(_answered, keeper) for id, keeper in enumerate(keepers, start=1)})


def _answered(keeper: Keeper, message: Message) -> Message:
    return Message(pack(keeper.handle(unpack(message.content))), reply_to=message)
