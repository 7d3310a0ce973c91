"""Write docs/releases.md, the page of every release, from the table of tasks.

python docs/releases_page.py            print the page
python docs/releases_page.py --write    write it
python docs/releases_page.py --check    exit 1 if the page differs
"""

from __future__ import annotations

import sys
from pathlib import Path

from grandrounds.privacy.releases import FILES
from grandrounds.protocol.task_spec import CLASSES
from grandrounds.protocol.tasks import specs

PAGE = Path(__file__).with_name("releases.md")

HEAD = """# Every release of a site

This page lists every report that can leave a site: the data it discloses, the runs that ask for it, and its privacy class while
`privacy.epsilon` is set. It also lists the files of a run folder. It is generated from `grandrounds.protocol.tasks` by
`python docs/releases_page.py --write`.

A site sends no report that is not listed here. Under a budget it sends no report that is listed as refused, whatever the server asks.
A new task or report fails a test until it has a class (`tests/privacy/test_releases.py`).

```shell
rounds run breast-cancer --set privacy.mechanism=dp-sgd --set privacy.epsilon=3 --set evaluation.threshold=half --out runs/dp
rounds privacy runs/dp    # the guarantee, its releases, and the data that it does not cover
```

Without `privacy.epsilon` no report is refused ([data that leave a site](threat-model.md#data-that-leave-a-site)). A hospital refuses tasks
and reports in its [policy](site.md#policy).

## Reports of a site

| task | reports | disclosure | asked by |
|---|---|---|---|
"""


def page() -> str:
    """Compose the whole page."""
    lines = []
    for task, spec in specs().items():
        for kind in dict.fromkeys(report.kind for report in spec.reports.values()):
            names = ", ".join(f"`{r.name}`" for r in spec.reports.values() if r.kind == kind)
            lines.append(f"| `{task}` | {names} | {kind} | {spec.asked_by} |")
    silent = ", ".join(f"`{task}`" for task, spec in specs().items() if not spec.reports)
    lines += [f"\n{silent} have no report.", "\n## Classes under a budget\n", "| class | meaning |", "|---|---|"]
    lines += [f"| {kind} | {meaning} |" for kind, meaning in CLASSES.items()]
    lines += ["\n## Reports under a budget\n", "| task | report | data | class | details |", "|---|---|---|---|---|"]
    for task, spec in specs().items():
        releases = {name: report.release for name, report in spec.reports.items()}
        lines += [f"| `{task}` | `{name}` | {r.tells} | {r.kind} | {r.why} |" for name, r in releases.items()]
    lines += ["\n## Files of a run folder under a budget\n", "| file | data | class | details |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {r.tells} | {r.kind} | {r.why} |" for name, r in FILES.items()]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    else:
        print(page(), end="")
