"""What every route has in common: roles, hosts, sizes, what a browser may do; and run folders that are not what they seem."""

from __future__ import annotations

import json
import os
import re

import pytest
from fastapi.routing import APIRoute

from grandrounds.analysis.membership.attack import FILE as ATTACKS
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.protection import LARGEST
from grandrounds.capabilities.console.auth.users import Role
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.render import environment, name
from grandrounds.capabilities.console.run_index import NotFound, RunIndex, Unreadable
from grandrounds.capabilities.console.views import runs as views_runs
from grandrounds.core.errors import visible
from tests.capabilities.console.conftest import Signed, known_users
from tests.report import EVIL
from tests.store import copied

OPEN = {"/health", "/sign-in", "/sso/start", "/sso/callback"}
GOVERNANCE = {Role.BOARD, Role.APPROVER, Role.AUDITOR}
OF = {"/compare": Role, "/case": {Role.CLINICIAN}, "/audit": GOVERNANCE, "/privacy": GOVERNANCE, "/board": GOVERNANCE,
      "/models/sign": {Role.APPROVER},
      "/access": {Role.AUDITOR, Role.CLINICIAN, Role.BOARD, Role.APPROVER}}  # fmt: skip
"""Which roles may see what lies below a path; all else that is not open is for everybody who is signed in."""
_PATIENTS = "/api/v1/cases/runs/{run}/patients"
WRITES = "/models/sign"
"""The one thing that the console writes: a signed decision in the register of models."""
_FORMS = {"/lock", "/unlock", "/access", "/access/export"}
POSTED = _FORMS | {WRITES, "/api/case/patients", "/api/case/what-if", _PATIENTS, f"{_PATIENTS}/{{case}}/what-if"}
"""Besides it, questions that hold a patient's name or values, which do not belong in an address."""
ASKS = {"run": "plain", "round": "1", "site": "a", "figure": "curves", "once": "true", "case": "1", "row": "1"}


def routes(where) -> list[APIRoute]:
    """All routes, those of included routers too: newer versions of FastAPI keep these as they are."""
    own = [r for r in where.routes if isinstance(r, APIRoute)]
    return own + [r for one in where.routes if hasattr(one, "original_router") for r in routes(one.original_router)]


def area(path: str) -> set[Role]:
    inside = path.removeprefix("/api").removeprefix("/v1")
    return next((set(roles) for start, roles in OF.items() if inside.startswith(start)), set(Role))


def test_every_route_is_for_those_roles_and_nobody_else(signed):
    """Walks all routes there are: one that somebody adds without a role is found here."""
    walked = 0
    for route in routes(signed.app):
        if route.path in OPEN or route.path == "/sign-out":
            continue
        for method in route.methods - {"HEAD"}:
            assert method == "GET" or route.path in POSTED, f"{route.path} takes {method}: the console only reads"
            nobody = signed.client().request(method, route.path, params=ASKS)
            assert nobody.status_code == (401 if route.path.startswith("/api") else 303), route.path
            for role in Role:
                status = signed.client(role.value).request(method, route.path, params=ASKS).status_code
                assert (status == 403) == (role not in area(route.path)), (route.path, role, status)
                assert status < 500, (route.path, role)
                walked += 1
    assert walked >= 3 * 8


def test_probes_learn_only_that_the_console_is_up(signed):
    page = signed.client().get("/health")
    assert (page.status_code, page.json()) == (200, {"ok": True})


def test_a_wrong_token_or_cookie_is_nobody(signed):
    client = signed.client()
    assert client.get("/api/runs", headers={"authorization": "Bearer grc_made-up"}).status_code == 401
    assert client.get("/api/runs", headers={"authorization": "Basic YTpi"}).status_code == 401
    client.cookies.set("rounds_session", "made-up")
    assert client.get("/").status_code == 303


def test_every_answer_says_what_a_browser_may_do(signed):
    for path in ("/", "/sign-in", "/api/runs", "/nowhere", "/static/console.css", "/run?run=nothing"):
        headers = signed.client("viewer").get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe-eval" not in policy
        assert "frame-ancestors 'none'" in policy and headers["x-content-type-options"] == "nosniff"
        assert (headers.get("cache-control") == "no-store") == (not path.startswith("/static"))
    first, second = (signed.client("viewer").get("/").headers["content-security-policy"] for _ in range(2))
    assert first != second  # a nonce is used once


def test_a_console_over_tls_marks_its_cookies_and_tells_browsers_to_keep_to_it(runs):
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(runs), users, tls=True)), tokens).client()
    answer = client.get("/sign-in")
    assert "Secure" in answer.headers["set-cookie"] and "max-age" in answer.headers["strict-transport-security"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8600",
        "127.0.0.1.evil.example",
        "",
        "[::1]evil.example",
        "[::1]:8600.evil",
        "localhost:evil",
    ],
)
def test_another_name_than_the_consoles_leads_nowhere(signed, host):
    assert signed.client("viewer").get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:8600", "LOCALHOST"])
def test_names_of_loopback_are_the_consoles(signed, host):
    assert signed.client("viewer").get("/", headers={"host": host}).status_code == 200


def test_large_bodies_are_not_read(signed):
    assert signed.client().post("/sign-in", content=b"x" * (LARGEST + 1)).status_code == 413

    def drops():
        for _ in range(80):
            yield b"x" * 1024

    assert signed.client().post("/sign-in", content=drops()).status_code == 413


@pytest.mark.parametrize(
    "name", ["../plain", "plain/..", "..", "/etc", "%2e%2e/plain", "plain/checkpoint", "plain\x00", "", ".", "a" * 1025]
)
def test_a_run_is_found_by_its_name_and_never_by_a_path(signed, name):
    for path in ("/run", "/api/run", "/api/run/sites"):
        assert signed.client("viewer").get(path, params={"run": name}).status_code in (404, 422)


def test_links_that_lead_out_of_the_root_are_not_followed(runs, tmp_path):
    inside = tmp_path / "root"
    inside.mkdir()
    (inside / "linked").symlink_to(runs / "plain")
    copied(runs / "trust", inside / "own")
    (inside / "own" / "summary.json").unlink()
    (inside / "own" / "summary.json").symlink_to(runs / "plain" / "summary.json")
    run_index = RunIndex(inside)
    assert [f.name for f in run_index.runs()] == ["own"]
    with pytest.raises(NotFound):
        run_index.get("linked")
    with pytest.raises(Unreadable, match="link"):
        run_index.run("own")


SPOILT = {
    "no plan": lambda f: (f / "checkpoint" / "plan.json").unlink(),
    "plan is a list": lambda f: (f / "checkpoint" / "plan.json").write_text("[]"),
    "plan is deep": lambda f: (f / "checkpoint" / "plan.json").write_text("[" * 100_000),
    "summary is cut": lambda f: (f / "summary.json").write_text((f / "summary.json").read_text()[:500]),
    "summary is another": lambda f: (f / "summary.json").write_text('{"final": 3}'),
    "rounds are numbers": lambda f: (f / "round_logs.json").write_text('{"schema": 1, "rounds": [1, 2]}'),
    "rounds are bytes": lambda f: (f / "round_logs.json").write_bytes(os.urandom(2000)),
    "explanations are empty": lambda f: (f / "explanations.json").write_text("{}"),
    "a signal is text": lambda f: _changed(f, lambda d: d["rounds"][-1]["decision"].update(weights={"a": "heavy"})),
    "no decision": lambda f: _changed(f, lambda d: d["rounds"][0].pop("decision")),
}


def _changed(folder, change) -> None:
    held = json.loads((folder / "round_logs.json").read_text())
    change(held)
    (folder / "round_logs.json").write_text(json.dumps(held))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_run_is_said_to_be_one_and_hides_no_other(runs, tmp_path, how):
    copied(runs / "by-reasons", tmp_path / "spoilt")
    copied(runs / "plain", tmp_path / "whole")
    SPOILT[how](tmp_path / "spoilt")
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("all")
    listed = {line["name"]: line for line in client.get("/api/runs").json()}
    assert listed["whole"]["state"] == "finished"
    assert client.get("/").status_code == 200
    for path in ("/run", "/api/run", "/api/run/sites", "/api/run/figure", "/api/run/round", "/api/run/why"):
        answer = client.get(path, params={**ASKS, "run": "spoilt"})
        assert answer.status_code < 500, (path, answer.text)


def test_a_file_that_is_too_large_is_not_read(runs, tmp_path, monkeypatch):
    copied(runs / "plain", tmp_path / "large")
    monkeypatch.setattr("grandrounds.capabilities.console.run_index.LARGEST", 1000)
    with pytest.raises(Unreadable, match="larger than"):
        RunIndex(tmp_path).run("large")


@pytest.mark.parametrize("odd", ["link", "pipe", "large"])
@pytest.mark.parametrize("name", ["summary.json", "checkpoint/plan.json"])
def test_the_list_reads_no_link_no_pipe_and_nothing_large(runs, tmp_path, monkeypatch, name, odd):
    copied(runs / "trust", tmp_path / "odd")
    file = tmp_path / "odd" / name
    if odd == "large":
        with file.open("ab") as f:
            f.truncate(300 * 2**20)  # a hole: it takes no room on the disk
    else:
        file.unlink()
        file.symlink_to(runs / "plain" / name) if odd == "link" else os.mkfifo(file)
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users, cases=SiteCases(RunIndex(tmp_path), "b"))), tokens).client(
        "all"
    )
    [line] = client.get("/api/runs").json()
    assert (line["state"], line["metrics"]) == ("unreadable", {})
    fault = {"link": "is a link", "pipe": "is no plain file", "large": "is larger than 256 MB"}[odd]
    assert line["wrong"] == f"the file {name} of run 'odd' {fault}: it is not read"
    page = client.get("/run", params={"run": "odd"}).text
    assert f"<p>The file {name} of run &#39;odd&#39; {fault}: it is not read.</p>" in page
    for path in ("/", "/run", "/compare", "/case", "/privacy", "/audit", "/api/live"):
        assert client.get(path, params={"run": "odd", "once": True}).status_code in (200, 404, 409, 422), path


def test_what_cannot_be_read_is_not_read_again_until_it_changes(runs, tmp_path, monkeypatch):
    copied(runs / "trust", tmp_path / "cut")
    summary = tmp_path / "cut" / "summary.json"
    whole = summary.read_text()
    summary.write_text(whole[:500])
    run_index, read = RunIndex(tmp_path), []
    line = views_runs._line
    monkeypatch.setattr(views_runs, "_line", lambda found: (read.append(found.name), line(found))[1])
    assert [views_runs.run_lines(run_index)[0].state for _ in range(3)] == ["unreadable"] * 3 and read == ["cut"]
    with pytest.raises(Unreadable):
        run_index.run("cut")
    summary.write_text(whole)
    assert views_runs.run_lines(run_index)[0].state == "finished" and read == ["cut", "cut"]


@pytest.mark.parametrize("odd", ["link", "pipe"])
def test_a_comparison_or_attack_that_is_no_plain_file_is_not_read(runs, tmp_path, odd):
    copied(runs / "trust", tmp_path / "whole")
    (tmp_path / "held").mkdir()
    for file in (
        tmp_path / "held" / "comparison.json",
        tmp_path / "whole" / ATTACKS,
        tmp_path / "whole" / "anchors.json",
    ):
        file.symlink_to("/etc/hostname") if odd == "link" else os.mkfifo(file)
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("all")
    for path, asks in (
        ("/api/compare", {"comparison": "held"}),
        ("/api/privacy", {"run": "whole"}),
        ("/api/audit/anchors", {"run": "whole"}),
    ):
        answer = client.get(path, params=asks)
        fault = "is a link: it is not read" if odd == "link" else "is no plain file: it is not read"
        refused = answer.status_code == 422 and fault in answer.json()["error"]
        assert refused or (path, odd, answer.status_code) == ("/api/compare", "link", 404), (path, answer.text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no run 'x'", "There is no run 'x'"),
        ("run big is damaged", "Run big is damaged"),
        ("summary.json of run big is damaged", "summary.json of run big is damaged"),
        ("odd/ledger.db: not a database", "odd/ledger.db: not a database"),
        ("died_30d = 1", "died_30d = 1"),
        ("", ""),
    ],
)
def test_names_of_files_and_columns_keep_their_small_letters(text, shown):
    assert environment().from_string("{{ text | capitalize_first | safe }}").render(text=text) == shown


def test_a_script_in_a_name_is_text_everywhere(signed):
    client = signed.client("all")
    assert any(s["site"] == EVIL for s in client.get("/api/run/sites", params={"run": "plain"}).json())
    page = client.get("/run", params={"run": "plain", "section": "hospitals"}).text
    assert EVIL not in page and "&lt;" in page
    for figure in ("sites-accuracy", "weights", "presence"):
        told = client.get("/api/run/figure", params={"run": "plain", "figure": figure}).text
        assert EVIL not in json.dumps(json.loads(told), ensure_ascii=False), figure


def test_a_name_cannot_turn_the_number_beside_it_round(signed):
    turned = name("a\u202eb\x1b<i>")
    assert str(turned) == r"<bdi>a\u202eb\x1b&lt;i&gt;</bdi>"
    assert environment().from_string("{{ site | name }}").render(site="a\u202e") == r"<bdi>a\u202e</bdi>"
    page = signed.client("viewer").get("/run", params={"run": "trust", "section": "hospitals"}).text
    assert '<td class="site"><bdi>a</bdi></td>' in page
    script = signed.client().get("/static/names.js").text
    marks = re.search(r"hidden = /\[(.*)\]/g", script)[1]
    found = {c for c in range(0x10000) if re.fullmatch(f"[{marks}]", chr(c))}
    assert found == {c for c in range(0x10000) if visible(chr(c)) != chr(c)}, "browser and server hide the same"


def test_a_script_that_a_browser_has_is_not_sent_again(signed):
    client = signed.client()
    for path in ("/static/plotly.min.js", "/static/console.css"):
        first = client.get(path)
        again = client.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"].removeprefix("W/")}'})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b""), path
        assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_a_fault_of_the_console_is_a_page_with_all_headers_and_a_line_in_its_log(signed, caplog):
    signed.app.add_api_route("/broken", lambda: 1 // 0)
    signed.app.add_api_route("/api/v1/broken", lambda: 1 // 0)
    client = signed.client("viewer")
    page = client.get("/broken", headers={"accept": "text/html"})
    assert page.status_code == 500 and "The console has an error" in page.text
    assert "default-src" in page.headers["content-security-policy"]
    assert "ZeroDivisionError" not in page.text and "GET /broken ended" in caplog.text and "ZeroDivisionError" in caplog.text
    assert client.get("/api/v1/broken").json()["code"] == "unexpected-error"
