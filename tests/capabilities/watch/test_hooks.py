"""Commands for alarms: real programs and a real HTTP server, one that fails, one that hangs, and secrets that stay out."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from grandrounds.capabilities.watch.at_sites.hooks import Hook, notify
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.core.errors import BadInput
from tests.capabilities.watch.records import SIGNER, SITE, alarm, alarmed, status

EXAMPLES = Path(__file__).parents[3] / "examples" / "alarms"
HIDDEN = "token-8f3a"


@pytest.fixture
def record(tmp_path):
    with WatchRecord.open(alarmed(tmp_path / "watch"), signer=SIGNER) as opened:
        yield opened


def program(folder: Path, text: str, *arguments: str) -> Hook:
    """A Python program as a hook."""
    path = folder / "hook.py"
    path.write_text(text)
    return Hook((sys.executable, "-S", str(path), *arguments), seconds=20)


SAVE = """
import json, os, sys
variables = {k: v for k, v in os.environ.items() if k.startswith("GRANDROUNDS_ALARM")}
with open(sys.argv[1], "a") as f:
    f.write(json.dumps([json.load(sys.stdin), variables]) + "\\n")
"""


def test_a_command_gets_the_alarm_once(record, tmp_path):
    out = tmp_path / "out"
    hook = program(tmp_path, SAVE, str(out), HIDDEN)
    assert notify(record, [hook]) == []
    assert notify(record, [hook]) == []
    (line,) = out.read_text().splitlines()
    given, variables = json.loads(line)
    assert given == {
        "schema": 1, "id": "A1", "run": "heart-7", "site": "va", "date": "2026-11-18T02:00:00+00:00", "check": "age up",
        "kind": "shift", "column": "age", "direction": "up", "patient": 118, "since": 71, "patients": 48, "state": "open",
        "sentence": "Age has been higher since patient 71.",
        "details": ["Since patient 71, for 48 patients.", "No outcome is known yet."],
        "advice": ["Check the unit of the column."], "figures": {"reference": 54.25, "current": 61.5},
    }  # fmt: skip
    assert variables["GRANDROUNDS_ALARM_ID"] == "A1"
    assert variables["GRANDROUNDS_ALARM_SENTENCE"] == "Age has been higher since patient 71."
    assert HIDDEN not in json.dumps(list(record.entries))
    assert not record.verify(SITE.public)


def test_no_shell_reads_the_command_and_no_name_begins_a_new_line(tmp_path):
    out = tmp_path / "out"
    with WatchRecord.open(alarmed(tmp_path / "watch"), signer=SIGNER) as record:
        record.add_reading(status(180), [alarm(patient=170, column="a\nge\x1b[2J; touch x")], new=60)
        hook = program(tmp_path, SAVE, str(out))
        notify(record, [Hook.parse(f"{shlex.join(hook.command)} '; touch {tmp_path}/x' $(touch {tmp_path}/x)")])
    assert not (tmp_path / "x").exists()
    column = json.loads(out.read_text().splitlines()[1])[1]["GRANDROUNDS_ALARM_COLUMN"]
    assert column == "a ge\\x1b[2J; touch x"


def test_a_command_that_fails_is_recorded_and_called_again(record, tmp_path):
    out = tmp_path / "out"
    fails = program(tmp_path, "import sys; print('no route', file=sys.stderr); sys.exit(3)", str(out))
    (sentence,) = notify(record, [fails])
    assert sentence.endswith("did not take alarm A1: exit code 3 (no route); it is called again at the next reading")
    assert len(notify(record, [fails])) == 1
    assert [e["result"] for e in record.entries if e["kind"] == "notice"] == ["exit code 3"], "the same failure is one entry"
    assert "no route" not in json.dumps(list(record.entries)), "the output of a command may hold a secret"
    works = program(tmp_path, SAVE, str(out))  # the same command, repaired
    assert works.name == fails.name
    assert notify(record, [works]) == []
    assert record.alarm("A1").is_delivered(works.name)
    assert len(out.read_text().splitlines()) == 1


HANG = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""


def test_a_command_that_hangs_is_ended_with_its_children(record, tmp_path):
    began = time.monotonic()
    hook = program(tmp_path, HANG, str(tmp_path / "pid"))
    (sentence,) = notify(record, [Hook(hook.command, seconds=0.7)])
    assert "no end within 0.7 s" in sentence
    assert time.monotonic() - began < 10
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child of the command goes on")


def test_a_missing_program_is_a_failure_of_the_hook_and_not_of_the_watch(record):
    (sentence,) = notify(record, [Hook.parse("/no/such/program --x")])
    assert "cannot be started: No such file or directory" in sentence


@pytest.mark.parametrize("state", ["acknowledged", "silenced"])
def test_nobody_is_notified_of_a_known_or_silenced_alarm(record, tmp_path, state):
    out = tmp_path / "out"
    if state == "silenced":
        record.silence("age up", by="M. Curie", patients=60)
    else:
        record.acknowledge("A1", by="M. Curie")
    hook = program(tmp_path, SAVE, str(out))
    notify(record, [hook])
    assert not out.exists()
    record.add_reading(status(180), [alarm("score up", 180)], new=60)
    notify(record, [hook])
    taken = [json.loads(line)[0]["id"] for line in out.read_text().splitlines()]
    assert taken == (["A1", "A2"] if state == "silenced" else ["A2"]), "a silence of 60 patients has ended after 180"


@pytest.mark.parametrize(("line", "words"), [("", "empty"), ("mail 'x", "close its quotes")])
def test_a_command_that_cannot_be_read_is_refused(line, words):
    with pytest.raises(BadInput, match=words):
        Hook.parse(line)
    with pytest.raises(BadInput, match="above 0"):
        Hook.parse("mail", seconds=0)


@pytest.fixture
def server():
    """An HTTP server that keeps what it is sent; /moved redirects, /full fails."""
    taken = []

    class Page(BaseHTTPRequestHandler):
        def do_POST(self):
            taken.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response({"/moved": 302, "/full": 507}.get(self.path, 204))
            if self.path == "/moved":
                self.send_header("Location", "/hook")
            self.end_headers()

        def log_message(self, *_):
            """Log nothing."""

    running = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}", taken
    running.shutdown()
    running.server_close()


def test_the_webhook_example_posts_the_alarm(record, server, tmp_path):
    url, taken = server
    address = tmp_path / "address"
    hook = Hook((sys.executable, str(EXAMPLES / "post_alarm.py"), str(address)))
    for path, words in (("/full", "answered 507"), ("/moved", "answered 302")):
        address.write_text(f"{url}{path}\n")
        assert words in notify(record, [hook])[0]
    address.write_text(f"{url}/hook?{HIDDEN}\n")
    assert notify(record, [hook]) == []
    assert [path for path, _ in taken] == ["/full", "/moved", f"/hook?{HIDDEN}"], "no redirect is followed"
    assert json.loads(taken[-1][1])["sentence"] == "Age has been higher since patient 71."
    assert HIDDEN not in json.dumps(list(record.entries))


def test_the_webhook_example_refuses_plain_http_to_other_machines(record, tmp_path):
    (tmp_path / "address").write_text("http://hospital.example/hook")
    hook = Hook((sys.executable, str(EXAMPLES / "post_alarm.py"), str(tmp_path / "address")))
    assert "must begin with https://" in notify(record, [hook])[0]


def test_the_mail_example_gives_one_message_to_sendmail(record, tmp_path, monkeypatch):
    mailer = tmp_path / "bin" / "sendmail"
    mailer.parent.mkdir()
    mailer.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\ncat > {tmp_path}/mail\n")
    mailer.chmod(0o755)
    monkeypatch.setenv("PATH", str(mailer.parent), prepend=":")
    hook = Hook((sys.executable, str(EXAMPLES / "mail_alarm.py"), "it@hospital.example"))
    assert notify(record, [hook]) == []
    mail = (tmp_path / "mail").read_text()
    assert (tmp_path / "arguments").read_text() == "-t -i\n"
    assert mail.startswith("To: it@hospital.example\nSubject: [va] alarm A1: age\n")
    for words in ("Age has been higher", "No outcome is known yet.", "- Check the unit"):
        assert words in mail
