"""The times that a SuperNode signs follow the server's clock."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime

import httpx
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec

from grandrounds.capabilities.hospital.keeper.flower.launcher import correct_clock


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_signed_times_are_those_of_the_server_and_the_signature_covers_them(monkeypatch, seconds):
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import verify_signature
    from flwr.supercore.protobuf.client import ProtobufRequestContext
    from flwr.supernode import node_auth_http_interceptor as module

    monkeypatch.setattr(module, "now", module.now)  # restored after the test
    correct_clock(seconds)
    key = ec.generate_private_key(ec.SECP256R1())
    request = httpx.Request("POST", "https://localhost/")
    context = ProtobufRequestContext("x", None, request)
    module.NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda context: httpx.Response(200))
    signed = request.headers[TIMESTAMP_HEADER]
    ahead = (datetime.fromisoformat(signed) - datetime.now(UTC)).total_seconds()
    assert ahead == pytest.approx(seconds, abs=5)
    assert verify_signature(key.public_key(), signed.encode(), b64decode(request.headers[FLEET_HTTP_SIGNATURE_HEADER]))
