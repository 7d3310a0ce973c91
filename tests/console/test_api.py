"""The JSON API under made-up questions: it never breaks, and answers as it says it does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture(scope="session")
def api(runs):
    from grandrounds.console.app import create_app
    from grandrounds.console.desk import Desk
    from grandrounds.console.library import Library
    from tests.console.conftest import Signed, known_users

    users, tokens = known_users()
    signed = Signed(create_app(Desk(Library(runs), users)), tokens)
    headers = {"authorization": f"Bearer {tokens['all']}", "host": "127.0.0.1"}
    found = schemathesis.openapi.from_asgi("/api/openapi.json", signed.app, headers=headers)
    found.config.update(headers=headers)
    return found


def test_no_question_breaks_the_api(api):
    """Schemathesis makes questions up for every route: right ones, odd ones, wrong ones."""
    asked: dict[str, set[int]] = {}
    for found in api.get_all_operations():
        operation = found.ok()
        if operation.path == "/api/live":
            continue  # a stream has no end

        @given(case=operation.as_strategy())
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def ask(case) -> None:
            answer = case.call()
            asked.setdefault(case.operation.path, set()).add(answer.status_code)
            case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])

        ask()
    assert len(asked) >= 6 and all(status < 500 for found in asked.values() for status in found)
    assert asked["/api/runs"] == {200}


def test_the_description_names_every_route_of_the_api(signed):
    from tests.console.test_protection import routes

    told = signed.client("viewer").get("/api/openapi.json").json()
    held = {r.path for r in routes(signed.app) if r.path.startswith("/api") and r.include_in_schema}
    assert set(told["paths"]) == held and len(held) >= 7
    assert signed.client().get("/api/openapi.json").status_code == 401
