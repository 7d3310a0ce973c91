"""The page of every release, docs/releases.md, and the list of reports in docs/site-policy.md, from the table of tasks.

python docs/releases_page.py            print the page of releases
python docs/releases_page.py --write    write both
python docs/releases_page.py --check    exit 1 where one of them differs
"""

from __future__ import annotations

import sys
from pathlib import Path

from grandrounds.privacy.releases import FILES
from grandrounds.protocol.task_spec import CLASSES
from grandrounds.protocol.tasks import SPECS

PAGE = Path(__file__).with_name("releases.md")
POLICY = Path(__file__).with_name("site-policy.md")

HEAD = """# Every release under a budget

This page lists every report that can leave a site, and every file of a run folder, with its privacy class while
`privacy.epsilon` is set. It is made from `grandrounds.protocol.tasks` by `python docs/releases_page.py --write`.

A site answers with no report that this table does not have. Under a budget it answers with none that is refused, whatever it is
asked. A new task or report fails a test until it has a class here (`tests/privacy/test_releases.py`).

```shell
rounds run breast-cancer --set privacy.mechanism=dp-sgd --set privacy.epsilon=3 --set evaluation.threshold=half --out runs/dp
rounds privacy runs/dp    # the promise, its releases, and what it does not cover
```

Without `privacy.epsilon` nothing is refused: [what leaves a site today](privacy-today.md) says what is sent then.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## Classes\n", "| class | meaning |", "|---|---|"]
    lines += [f"| {kind} | {meaning} |" for kind, meaning in CLASSES.items()]
    lines += ["\n## Reports of a site\n", "| task | report | data | class | reason |", "|---|---|---|---|---|"]
    for task, spec in SPECS.items():
        releases = {name: report.release for name, report in spec.reports.items()}
        lines += [f"| `{task}` | `{name}` | {r.tells} | {r.kind} | {r.why} |" for name, r in releases.items()]
    silent = ", ".join(f"`{task}`" for task, spec in SPECS.items() if not spec.reports)
    lines += [f"\n{silent} carry no report.", "\n## Files of a run folder\n"]
    lines += ["| file | data | class | reason |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {r.tells} | {r.kind} | {r.why} |" for name, r in FILES.items()]
    return "\n".join(lines) + "\n"


def policy_page() -> str:
    """The page of the site policy, with its list of reports by kind of disclosure."""
    head = "| task | reports | what they tell | asked by |\n|---|---|---|---|\n"
    before, _, after = POLICY.read_text().partition(head)
    rows = []
    for task, spec in SPECS.items():
        for kind in dict.fromkeys(report.kind for report in spec.reports.values()):
            names = ", ".join(f"`{r.name}`" for r in spec.reports.values() if r.kind == kind)
            rows.append(f"| `{task}` | {names} | {kind} | {spec.asked_by} |\n")
    return before + head + "".join(rows) + "\n" + after.partition("\n\n")[2]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
        POLICY.write_text(policy_page())
    elif "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page() or POLICY.read_text() != policy_page())
    else:
        print(page(), end="")
