"""The table of tasks and reports in docs/extending.md, from protocol/tasks.py.

python docs/asks_table.py            print it
python docs/asks_table.py --write    put it between the two marks in docs/extending.md
python docs/asks_table.py --check    exit 1 where the page differs
"""

from __future__ import annotations

import sys
from pathlib import Path

from grandrounds.protocol.task_spec import REFUSED, TaskSpec
from grandrounds.protocol.tasks import specs

PAGE = Path(__file__).with_name("extending.md")
BEGIN, END = "<!-- asks: begin -->", "<!-- asks: end -->"


def row(spec: TaskSpec) -> str:
    """Return a task's line: its reports, those refused under a budget in parentheses, and the runs that ask for it."""
    names = [f"(`{r.name}`)" if r.release.kind == REFUSED else f"`{r.name}`" for r in spec.reports.values()]
    return f"| `{spec.name}` | {', '.join(names)} | {spec.asked_by} |"


def table() -> str:
    """Return the table of tasks that a method can ask for: those with a report, but for the steps of secure sums."""
    lines = ["| task | reports | asked for by |", "|---|---|---|"]
    return "\n".join([*lines, *(row(spec) for spec in specs().values() if spec.reports and not spec.is_sum_step)])


def page(text: str) -> str:
    """Return the page's text with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Print, write or check the table."""
    text = PAGE.read_text(encoding="utf-8")
    if "--write" in sys.argv:
        PAGE.write_text(page(text), encoding="utf-8")
    elif "--check" in sys.argv:
        return int(page(text) != text)
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
