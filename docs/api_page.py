"""The table of docs/api.md and the examples of the API's description, from the application itself.

python docs/api_page.py --check       exit 1 where the table differs from the API
python docs/api_page.py --write       write the table
python docs/api_page.py --examples    run a small consortium, and store the API's answers as examples
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grandrounds as gr
from grandrounds.analysis.compare import compare
from grandrounds.analysis.comparison_plans import write_comparison
from grandrounds.capabilities.dossier.register.register import Register
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.users import Role, Users
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex

PAGE = Path(__file__).with_name("api.md")
EXAMPLES = Path(__file__).resolve().parents[1] / "src" / "grandrounds" / "console" / "api" / "examples.json"
BEGIN, END = "<!-- the table is written by docs/api_page.py -->", "<!-- end of the table -->"
DATA = {"name": "breast-cancer"}
RUN, SITE = "breast-cancer", "site-05"
COMPARISON = "compared"
RUNS: dict[str, dict[str, Any]] = {
    RUN: {
        "method": {"name": "sse-agg", "rounds": 3},
        "reference": {"rows": {"rows": 50}},
        "explain": {"every": 1},
        "evaluation": {"subgroup": "mean_radius"},
    },
    "readable/gam": {"model": {"name": "gam"}},
    "readable/card": {"model": {"name": "card"}},
    "private": {"method": {"rounds": 2}, "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0, "min_rows": 5}},
}
"""Runs that examples are taken from, and their settings."""
OF_RUN = {"shapes": "readable/gam", "card": "readable/card", "privacy": "private"}
"""Runs of paths that contain a word; RUN for all others."""
VALUES = {"site": SITE, "round": "3", "number": "1", "figure": "curves", "column": "mean_radius", "comparison": COMPARISON}
"""Values of parameters in paths."""
ITEMS, NUMBERS, LINES = 2, 4, 8
"""Items of a list of objects, of a list of numbers, and lines of a text, in an example."""
KEYS = 12
"""Keys of a summary in an example."""
LEFT_OUT = ("/live", "/proof", "/studies/{study}", "/watch/{site}/figure")
"""Ends of paths without an example: an answer has no end, is long, or needs a reproduction or a watch."""
FIGURES = {"privacy": "epsilon", "cases": "waterfall", "compared-runs": "intervals", "comparisons": "intervals"}
"""Figures of paths by their subject."""
BODIES: dict[str, dict[str, Any]] = {"/patients": {"find": "1"}, "/what-if": {"mean_radius": 20.0}}
"""Bodies of POST requests by the end of their path."""
SHOWN = ("application/json", "text/csv", "application/toml")
"""Types of answers that have an example."""


def describe() -> dict[str, Any]:
    """Describe the API of a console without runs."""
    with tempfile.TemporaryDirectory() as folder:
        schema: dict[str, Any] = create_app(AppState(RunIndex(Path(folder)), Users())).openapi()
    return schema


def table() -> str:
    """Return the reference table: path, answer and roles of each operation that is not deprecated."""
    lines = ["| request | answer | roles |", "|---|---|---|"]
    for path, methods in describe()["paths"].items():
        for method, operation in methods.items():
            if not operation.get("deprecated"):
                roles = operation["x-roles"]
                shown = "all" if len(roles) == len(Role) else ", ".join(roles)
                lines.append(f"| `{method.upper()} {path}` | {operation['summary']} | {shown} |")
    return "\n".join(lines)


def page() -> str:
    """Return docs/api.md with the present table."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def examples() -> dict[str, Any]:
    """Run a small consortium and collect the console's answers by method and path."""
    from fastapi.testclient import TestClient

    with tempfile.TemporaryDirectory() as folder:
        for name, settings in RUNS.items():
            gr.run(gr.Experiment.parse({"name": name, "data": DATA, **settings}), out=Path(folder) / name)
        compared = [Path(folder) / name for name in (RUN, "private")]
        write_comparison(compare([gr.load_run(run) for run in compared]), Path(folder) / COMPARISON, virtual_seconds=None)
        register = Register.create(Path(folder), roles=["medical director"])
        register.propose(Path(folder) / RUN, purpose="second reading of biopsies", by="ada")
        users = Users()
        users.add("docs", [role.value for role in Role])
        run_index = RunIndex(Path(folder))
        app = create_app(AppState(run_index, users, cases=SiteCases(run_index, SITE)))
        client = TestClient(app, base_url="http://127.0.0.1")
        client.headers["authorization"] = f"Bearer {users.issue('docs', days=1)}"
        return dict(_answers(client, app.openapi()))


def _answers(client: Any, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    patients = client.get(f"/api/v1/cases/runs/{RUN}/patients").json()["patients"]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if not operation.get("deprecated") and not path.endswith(LEFT_OUT):
                yield from _answer(client, method.upper(), path, str(patients[0]["case"]))


def _answer(client: Any, method: str, path: str, case: str) -> Iterator[tuple[str, Any]]:
    """Ask for one path; nothing is returned where the answer is no text or no success."""
    run = next((name for word, name in OF_RUN.items() if f"/{word}" in path), RUN)
    subject = next((word for word in FIGURES if f"/{word}" in path), "")
    values = VALUES | {"run": run.replace("/", "~"), "case": case, "figure": FIGURES.get(subject, VALUES["figure"])}
    if "{column}" in path:
        values["column"] = client.get(f"/api/v1/runs/{values['run']}/shapes").json()["columns"][0]["column"]
    asked = path.format_map({name: quote(value) for name, value in values.items()})
    if "compared-runs" in path:
        asked += f"?run={RUN}&run=private"
    elif path.endswith("/hospitals/{site}/figure"):
        asked += "?figure=importances"
    body = next((body for end, body in BODIES.items() if path.endswith(end)), None) if method == "POST" else None
    answer = client.request(method, asked, json=body)
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if answer.status_code == 200 and kind in SHOWN:
        content = answer.json() if kind == "application/json" else "\n".join(answer.text.splitlines()[:LINES])
        shown = dict(list(content.items())[:KEYS]) if path.endswith("/summary") else content
        sent = {} if body is None else {"body": body}
        yield f"{method} {path}", {"path": asked, **sent, "answer": _shorten(shown)}


def _shorten(value: Any) -> Any:
    """Shorten lists, so that a reader sees the form of an answer."""
    if isinstance(value, dict):
        return {key: _shorten(inner) for key, inner in value.items()}
    if isinstance(value, list):
        numbers = all(isinstance(item, int | float | str | None) for item in value)
        return [_shorten(item) for item in value[: NUMBERS if numbers else ITEMS]]
    return value


def main() -> int:
    if "--examples" in sys.argv:
        EXAMPLES.write_text(json.dumps(examples(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    elif "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif "--check" in sys.argv:
        return int(PAGE.read_text(encoding="utf-8") != page())
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
