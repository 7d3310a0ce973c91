"""Send an alarm of `rounds watch` by e-mail, with the program `sendmail` of this machine.

Example: rounds watch RUN --table new.csv --on-alarm "python examples/alarms/mail_alarm.py it@hospital.example"
"""

from __future__ import annotations

import json
import subprocess
import sys
from email.message import EmailMessage


def build_message(alarm: dict, recipient: str) -> EmailMessage:
    """Build the e-mail: the sentence as text, the advice below it, and the commands of an answer."""
    subject = f"[{alarm['site']}] alarm {alarm['id']}: {alarm['column'] or alarm['check']}"
    lines = [alarm["sentence"], *alarm["details"], "", *(f"- {advice}" for advice in alarm["advice"]), ""]
    lines.append(f"Acknowledge it: rounds watch acknowledge FOLDER --alarm {alarm['id']} --by NAME --note TEXT")
    message = EmailMessage()
    message["To"] = recipient
    message["Subject"] = " ".join(subject.split())  # a column's name must not begin a new header
    message["Message-ID"] = f"<{alarm['run']}-{alarm['site']}-{alarm['id']}@watch.invalid>".replace(" ", "-")
    message.set_content("\n".join(lines))
    return message


if __name__ == "__main__":
    message = build_message(json.load(sys.stdin), sys.argv[1])
    sys.exit(subprocess.run(["sendmail", "-t", "-i"], input=message.as_bytes()).returncode)
