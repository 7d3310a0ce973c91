"""The process of a run logs its end as an event, and is started again after an error that nobody raised on purpose."""

from __future__ import annotations

import json
import subprocess
import sys

from grandrounds.capabilities.hospital.deploy.counts import Counts
from grandrounds.capabilities.hospital.deploy.plan_encryption import make_plan_key
from grandrounds.capabilities.hospital.deploy.run_worker import UNEXPECTED
from grandrounds.capabilities.hospital.deploy.scheduler import FINAL

BROKEN = """
import sys
from grandrounds.capabilities.hospital.deploy import run_worker
def fail(task):
    raise ValueError("lactate 9.1")
if sys.argv[1] == "broken":
    run_worker._run_task = fail
sys.exit(run_worker.main())
"""


def run(how, folder):
    for name in ("logs", "state"):
        (folder / name).mkdir(exist_ok=True)
    task = {"address": "", "authority": None, "token": "", "run_id": 1, "task_id": 1, "server": str(folder), "name": "heart"}
    given = json.dumps({**task, "plan": "no plan", "resume": False})
    return subprocess.run([sys.executable, "-c", BROKEN, how], input=given, capture_output=True, text=True)


def test_unexpected_error_is_not_final_and_its_text_is_not_logged(tmp_path):
    done = run("broken", tmp_path)
    line = json.loads(done.stderr)
    assert done.returncode == UNEXPECTED and UNEXPECTED not in FINAL
    assert line["event"] == "run failed" and line["code"] == "unexpected-error" and "ValueError" in line["exception"]
    assert "lactate" not in done.stderr + (tmp_path / "logs" / "requests.jsonl").read_text()


def test_error_on_purpose_is_logged_with_its_code_and_counted(tmp_path):
    make_plan_key(tmp_path)
    done = run("as it is", tmp_path)
    line = json.loads(done.stderr)
    assert done.returncode == 2 and line["code"] == "unreadable-plan" and line["run"] == "heart"
    assert Counts.load(tmp_path / "state" / "counts.json").failures == {"unreadable-plan": 1}
