"""The JSON API under made-up questions: it never breaks, and answers as it says it does."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.console.conftest import Signed
from tests.console.test_protection import routes


def asked(signed: Signed, *, below: str) -> dict[str, set[int]]:
    """What Schemathesis makes up for every route below a path, right, odd and wrong: the codes it was answered with."""
    headers = {"authorization": f"Bearer {signed.tokens['all']}", "host": "127.0.0.1"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", signed.app, headers=headers)
    schema.config.update(headers=headers)
    codes: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        if not operation.path.startswith(below) or operation.path == "/api/live":
            continue  # a stream has no end

        @given(case=operation.as_strategy())
        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def ask(case) -> None:
            answer = case.call()
            codes.setdefault(case.operation.path, set()).add(answer.status_code)
            case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])

        ask()
    assert all(code < 500 for told in codes.values() for code in told), codes
    return codes


def test_no_question_breaks_the_api(signed):
    found = asked(signed, below="/api")
    assert len(found) >= 20 and found["/api/runs"] == {200}


def test_the_description_names_every_route_of_the_api(signed):
    told = signed.client("viewer").get("/api/openapi.json").json()
    held = {r.path for r in routes(signed.app) if r.path.startswith("/api") and r.include_in_schema}
    assert set(told["paths"]) == held and len(held) >= 7
    assert signed.client().get("/api/openapi.json").status_code == 401


def test_the_description_says_how_a_program_signs_in(signed):
    told = signed.client("viewer").get("/api/openapi.json").json()
    schemes = told["components"]["securitySchemes"]
    assert (schemes["token"]["type"], schemes["token"]["scheme"]) == ("http", "bearer")
    assert (schemes["session"]["in"], schemes["session"]["name"]) == ("cookie", "rounds_session")
    assert told["security"] == [{"token": []}, {"session": []}]
