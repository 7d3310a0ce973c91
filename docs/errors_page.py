"""The page of error codes, docs/errors.md, from the source.

python docs/errors_page.py            print the page
python docs/errors_page.py --write    write it
python docs/errors_page.py --check    exit 1 where it differs
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_name("errors.md")
SOURCE = Path(__file__).resolve().parents[1] / "src" / "grandrounds"
ROOT = "GrandRoundsError"
EXIT_CODE = 1
"""The exit code of a class that does not set one, nor its base."""
PRINTERS = ("echo_error",)
"""Functions of the command line that print an error with a code of their own, as the second argument."""

HEAD = """# Error codes

Every error that Grand Rounds raises on purpose is one sentence and a code. The sentence says what is wrong, where, and what to do.
The code names the kind of error. Sentences may be reworded between versions; codes stay.

```shell
$ rounds list model
error: cannot list 'model'; did you mean 'models'? known: methods, selection, weighing, robust, ... [unknown-list]
$ echo $?
2
```

In Python the code is an attribute of the exception:

```python
import grandrounds as gr
from grandrounds.core.errors import GrandRoundsError

try:
    gr.load_run("runs/hart")
except GrandRoundsError as error:
    print(error.code)  # not-a-run-folder
```

## Exit codes

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the run could not continue (`RunFailed`); finished rounds are on disk, and `rounds resume RUN` continues the run. `rounds site check` and `rounds site policy`: the data or the plan do not fit |
| 2 | the input is at fault (`BadInput`): a file, a setting or an option. Nothing was changed |
| 3 | a verification found something: `rounds audit`, `rounds privacy`, `rounds provision verify`; or files of a run are not those that its ledger names (`changed-run`) |
| 130 | interrupted by Ctrl-C |

## All codes

This table is made from the source by `python docs/errors_page.py --write`. Modules are below `grandrounds`.

| code | exit code | raised by |
|---|---|---|
"""


def read_sources() -> dict[str, ast.Module]:
    """Parse every module of the package that may raise a code, by its name below `grandrounds`."""
    modules = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if "code=" not in text and ROOT not in text and not any(word in text for word in (*PRINTERS, "exit_code")):
            continue  # nothing in it raises a code, and parsing takes the time
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name or "grandrounds"] = ast.parse(text)
    return modules


def find_error_classes(modules: dict[str, ast.Module]) -> dict[str, int]:
    """Return the exit code of every class of errors, by the class's name."""
    classes = [node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {ROOT: EXIT_CODE}
    while True:
        new = {}
        for node in classes:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in found]
            if bases and node.name not in found:
                own = [
                    statement.value.value
                    for statement in node.body
                    if isinstance(statement, ast.Assign)
                    and [t.id for t in statement.targets if isinstance(t, ast.Name)] == ["exit_code"]
                    and isinstance(statement.value, ast.Constant)
                ]
                new[node.name] = int(str(own[0])) if own else found[bases[0]]
        if not new:
            return found
        found |= new


def find_codes(tree: ast.AST, classes: dict[str, int], inside: str = "") -> Iterator[tuple[str, int]]:
    """Yield each code that a module raises, with its exit code; `inside`: the class around `tree`."""
    for node in ast.iter_child_nodes(tree):
        within = node.name if isinstance(node, ast.ClassDef) else inside
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name == "__init__":
                name = inside  # super().__init__(sentence, code="...")
            if name in classes:
                codes = (k.value for k in node.keywords if k.arg == "code")
                yield from ((code, classes[name]) for value in codes for code in _constants(value))
            elif name in PRINTERS and len(node.args) > 1:
                yield from ((code, EXIT_CODE) for code in _constants(node.args[1]))
        yield from find_codes(node, classes, within)


def _constants(value: ast.expr) -> Iterator[str]:
    """Yield the strings that an expression may be: a constant, or either side of a condition."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from _constants(value.body)
        yield from _constants(value.orelse)


@cache
def collect() -> dict[str, tuple[set[int], set[str]]]:
    """Return the exit codes and the modules of every code."""
    modules = read_sources()
    classes = find_error_classes(modules)
    codes: dict[str, tuple[set[int], set[str]]] = {}
    for module, tree in modules.items():
        for code, exit_code in find_codes(tree, classes):
            exits, raisers = codes.setdefault(code, (set(), set()))
            exits.add(exit_code)
            raisers.add(module)
    return codes


def page() -> str:
    """Return the whole page."""
    rows = [
        f"| `{code}` | {', '.join(map(str, sorted(exits)))} | {', '.join(f'`{m}`' for m in sorted(modules))} |"
        for code, (exits, modules) in sorted(collect().items())
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    else:
        print(page(), end="")
