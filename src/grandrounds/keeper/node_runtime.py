"""The calls of a SuperNode's runtime API that an answer takes, over Flower's own client: internals of flwr 1.41 and 1.42."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supercore.runtime import RuntimeHttpClient

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
BEAT = 10.0
"""Seconds between heartbeats of a task at work; a SuperNode gives a task up after 60 s without one."""


@dataclass(frozen=True)
class At:
    """The node and the run of a task, as Flower wants them told with every object."""

    node: Any
    run: int


def announced(client: RuntimeHttpClient) -> tuple[At, Any]:
    """Where a task's message belongs, and the tree of its parts. The app bundle that comes with a task is left unopened."""
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest

    context = client.PullTaskInput(PullTaskInputRequest()).context
    found = client.PullMessages(PullAppMessagesRequest())
    if not found.message_object_trees:
        raise ValueError("a task without a message")
    return At(Node(node_id=context.node_id), context.run_id), found.message_object_trees[0]


def pull(client: RuntimeHttpClient, at: At, tree: Any, wait: float) -> Message:
    """The message, whole."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, at.node, at.run),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, at.node, at.run),
        return_type=Message,
        max_time=60.0,
        initial_backoff=wait,
        backoff_cap=1.0,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not carry its own id
    return message


def push(client: RuntimeHttpClient, at: At, reply: Message) -> None:
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import push_objects

    reply.metadata.__dict__["_message_id"] = reply.object_id
    head = message_to_proto(remove_content_from_message(reply))
    with no_object_id_recompute():
        tree = get_object_tree(reply)
        sent = client.PushMessages(PushAppMessagesRequest(messages_list=[head], message_object_trees=[tree]))
        push_objects(
            get_all_nested_objects(reply),
            make_push_object_fn_protobuf(client.PushObject, at.node, run_id=at.run, session_id=sent.session_id),
            object_ids_to_push=set(sent.objects_to_push),
        )


def finish(client: RuntimeHttpClient, status: str) -> None:
    """Tell the SuperNode that the task is over. What Flower calls success is that there was a reply."""
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))


def client_of(address: str, *interceptors: Any) -> RuntimeHttpClient:
    """Plain HTTP on loopback, tried again a few times when a connection breaks; never for good."""
    import httpx
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import RetryInvoker, exponential
    from flwr.supercore.runtime import RuntimeHttpClient

    again = RetryInvoker(
        lambda: exponential(base_delay=0.05, max_delay=1),
        httpx.TransportError,
        max_tries=4,
        max_time=10.0,
    )
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *interceptors],
        retry_invoker=again,
    )


def signing(secret: bytes) -> Any:
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({ACQUIRE}))


@contextmanager
def beating(client: RuntimeHttpClient) -> Iterator[None]:
    """Heartbeats from a thread for as long as the letter is worked on. Flower's own sender ends the process when a task was
    given up; here the answer is then lost and the keeper goes on."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, ValueError):
                continue

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
