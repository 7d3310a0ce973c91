"""Import user code that an experiment names by import path: `model.name = "mypkg.nets:MyNet"`.

`resolve` imports such code only after a decision that it may run. Two functions decide: `allow`, for an
experiment that the user of this process runs, and `admit`, for a run folder. A run folder may come from anybody, so its
code runs only if the run was made here (proved by a stamp under a secret of this user) or the user trusts it
(`trust_code`), and only from modules whose SHA-256 the plan lists. The same two decide which files, addresses and queries of a
plan are opened (`sources`). Code named in a message is never imported: a site builds a model from user code only if it was
started with that option.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import os
import secrets
import stat
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from grandrounds.core import sources
from grandrounds.core.errors import BadInput, GrandRoundsError, nearest
from grandrounds.core.plan import PlanValues

_SCRIPT = "__main__"
_MOST = 300  # characters of an error's own words
_FIELDS = (
    ("data", "name"), ("split", "partition"), ("model", "name"), ("method", "name"), ("evaluation", "metrics"),
    ("train", "objective"),
)  # fmt: skip
"""Settings of a plan that may name code."""

STAMP = "made-here"
"""The file of checkpoint/ with this user's stamps on the run's plan, one a line: a plan may be changed by a resume."""

_ELSEWHERE = (
    "this run was not made here, and opening a run does not run its author's code; read that code, then say "
    "--trust-code (in Python trust_code=True)"
)
_NEVER = "the console runs no code of a run's author; use the command line"
_FOREIGN = (
    "this run was not made here, and opening a run opens no file, address or query that its author named; name the rows "
    "yourself (--table), or say --trust-code (in Python trust_code=True)"
)
_FOREIGN_TO_CONSOLE = (
    "this run was not made by the user of this console, which opens no file, address or query of a run's author: start it with "
    "--data"
)
_UNASKED = "no experiment of this process names it, so it is not imported"
_STAMPS = 100_000  # bytes of them
_decided: dict[str, str] = {}  # import path -> why it may not be imported in this process; "" where it may
_own_key: list[bytes] = []  # of this process, where none can be stored


def is_path(name: str) -> bool:
    """Return True if a name is an import path, `package.module:name`, and not a built-in name."""
    module, colon, attribute = name.partition(":")
    words = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(w.isidentifier() for w in words)


def last_word(name: str) -> str:
    """Return a short label for file names and tables: the last part of an import path."""
    return name.replace(":", ".").rpartition(".")[2] if is_path(name) else name


def names_in(plan: PlanValues) -> dict[str, str]:
    """Find the code that a plan names.

    Args:
        plan: A plan, also a damaged one: fields of another type name nothing.

    Returns:
        The key of each import path: {"mypkg.nets:MyNet": "model.name"}.
    """
    out = {}
    for section, name in _FIELDS:
        values = plan.get(section)
        value = values.get(name) if isinstance(values, Mapping) else None
        if section == "train" and _is_deployed(plan):
            continue
        for path in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(path, str) and is_path(path):
                out[path] = f"{section}.{name}"
    return out


def _is_deployed(plan: PlanValues) -> bool:
    """Return True for a run at hospitals: its local objective is imported there, and never by the server."""
    data = plan.get("data")
    return isinstance(data, Mapping) and data.get("table") == sources.AT_SITES


def allow_listed(path: str, listed: Mapping[str, str], *, key: str) -> None:
    """Let this process import code that a site's policy lists by hash.

    Args:
        path: An import path.
        listed: SHA-256 of source files by module, with those of the packages that a module is in.
        key: The setting that names it, for errors.

    Raises:
        BadInput: A module is not listed, is not installed here, or is another file than the one listed.
    """
    why = unlisted(path, listed)
    if why:
        raise BadInput(f"{key} is '{path}': {why}", code="code-not-run")
    _decided[path] = ""


def unlisted(path: str, listed: Mapping[str, str]) -> str:
    """Explain why a list of module hashes does not allow an import path; "" where it does. Nothing is imported."""
    if not is_path(path):
        return "that is no import path: write it as module:Class"
    for module in _modules(path):
        expected, digest = listed.get(module, ""), _digest(module)
        if not expected:
            return f"this site's policy does not list module {module} with its SHA-256 under [objectives]"
        if not digest:
            return f"module {module} is not installed at this site"
        if digest != expected:
            return (
                f"module {module} ({_source(module)}) has sha256 {digest[:12]}..., and the policy lists {expected[:12]}...: "
                "install the listed file, or list this one"
            )
    return ""


def allow(plan: PlanValues) -> None:
    """Let this process import the code of an experiment that its user runs, and open the files and addresses that it names.

    Args:
        plan: The experiment's values. Under "code" it may have the SHA-256 of modules, as a run's own experiment.toml does.

    Raises:
        BadInput: A module is not the one whose hash is listed.
    """
    for path, key in names_in(plan).items():
        why = _changed(path, _listed(plan))
        if why:
            raise BadInput(f"{key} is '{path}': {why}, or remove [code] from the experiment", code="code-not-run")
        _decided[path] = ""
    sources.allow(plan)


def admit(folder: Path, plan: PlanValues, *, trust_code: bool | None) -> None:
    """Decide whether this process may import the code, and open the files, addresses and queries, that a run folder names.

    Nothing is imported or opened here.

    Args:
        folder: The run folder.
        plan: Its plan.
        trust_code: True if the user trusts the author of a run that was made elsewhere. None: no code at all, and no file,
            address or query of such a run.
    """
    named, opened = names_in(plan), sources.named_in(plan)
    if not named and not opened:
        return
    made_here = is_stamped(folder, plan)
    foreign = _FOREIGN_TO_CONSOLE if trust_code is None else _FOREIGN
    sources.decide(plan, reason="" if made_here or trust_code else foreign)
    for path in named:
        if trust_code is None:
            _decided[path] = _NEVER
        elif not made_here and not trust_code:
            _decided[path] = _ELSEWHERE
        else:
            _decided[path] = ("" if made_here else _unlisted(path, _listed(plan))) or _changed(path, _listed(plan))


def refuse(plan: PlanValues) -> None:
    """Raise BadInput if a plan names what may not be imported or opened. Call it before starting another process."""
    for path, key in names_in(plan).items():
        check(path, key)
    sources.refuse(plan)


def hashes(names: Iterable[str]) -> dict[str, str]:
    """Compute the SHA-256 of the modules that import paths name, and of the packages they are in.

    Args:
        names: Import paths.

    Returns:
        By module, of its source file; "" where it has none (a notebook, a compiled module).
    """
    return {module: _digest(module) for path in sorted(names) for module in _modules(path)}


def stamp(folder: Path, plan: PlanValues) -> str:
    """Record that a run that names code, files, addresses or a query was made here. Call it before writing the plan.

    Args:
        folder: The run folder.
        plan: The plan, with the hashes of its modules.

    Returns:
        A warning where the secret could not be stored, so that the stamp holds in this process only; else "".
    """
    from grandrounds.core.arrays import read_file, write_atomic

    file = folder / "checkpoint" / STAMP
    lines = read_file(file, largest=_STAMPS).decode().split() if file.exists() else []
    key = _key(make=True)
    warning = ""
    if key is None:
        _own_key[:] = _own_key or [secrets.token_bytes(32)]
        key, warning = _own_key[0], f"cannot store {key_file()}: this run's rows will need --table, its code --trust-code"
    write_atomic(file, "\n".join([*lines, _stamped(key, plan), ""]).encode())
    return warning


def key_file() -> Path:
    """Return the file of the secret that stamps runs: in $XDG_STATE_HOME/grandrounds, or ~/.local/state/grandrounds."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "grandrounds" / f"{STAMP}.key"


def _key(*, make: bool = False) -> bytes | None:
    """Return the stored secret; None if it is missing, cannot be stored, or others could read or write it."""
    file = key_file()
    try:
        if make and not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = file.with_name(f".{secrets.token_hex(8)}.part")
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as f:
                f.write(secrets.token_bytes(32))
            try:
                os.link(part, file)  # fails if another process was first; its secret is then used
            except FileExistsError:
                pass
            finally:
                part.unlink()
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as f:
            facts, content = os.fstat(handle), f.read(33)
    except OSError:
        return None
    private = stat.S_ISREG(facts.st_mode) and not facts.st_mode & 0o077 and facts.st_uid == os.getuid()
    return content if private and len(content) == 32 else None


def _stamped(key: bytes, plan: PlanValues) -> str:
    text = json.dumps(plan, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, b"grandrounds made here\n" + text, hashlib.sha256).hexdigest()


def is_stamped(folder: Path, plan: PlanValues) -> bool:
    """Return True if this user made the run with exactly this plan on this machine."""
    from grandrounds.core.arrays import read_file

    try:
        lines = read_file(folder / "checkpoint" / STAMP, largest=_STAMPS).decode().split()
    except (BadInput, UnicodeDecodeError):
        return False
    keys = [*_own_key, *filter(None, [_key()])]
    return any(hmac.compare_digest(_stamped(key, plan), one) for key in keys for one in lines if one.isascii())


def _listed(plan: PlanValues) -> dict[str, str]:
    """Return the hashes of modules that a plan lists."""
    code = plan.get("code")
    return {str(m): str(h) for m, h in code.items()} if isinstance(code, Mapping) else {}


def _modules(path: str) -> list[str]:
    """Return the modules that importing a path runs, outermost package first."""
    words = path.partition(":")[0].split(".")
    return [".".join(words[: n + 1]) for n in range(len(words))]


def _unlisted(path: str, listed: Mapping[str, str]) -> str:
    """Return the cause why this code may not run even if the user trusts it; "" if it may."""
    top = path.partition(":")[0].split(".")[0]
    if top in sys.stdlib_module_names or top in _INSTALLED:
        return (
            f"{top} is part of this machine's Python, not a module of the run's author: it is not run for a run folder"
        )
    missing = next((m for m in _modules(path) if not listed.get(m) and _source(m) is not None), None)
    if missing is None and listed.get(path.partition(":")[0]):
        return ""
    missing_module = missing or path.partition(":")[0]
    return f"the run's plan does not list the SHA-256 of module {missing_module}, so its code is not run: run it again"


_INSTALLED = frozenset({
    "grandrounds", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "torch", "torchvision", "shap", "lightgbm", "flwr",
    "pydantic", "typer", "rich", "plotly", "onnx", "onnxruntime", "mlflow", "optuna", "sqlalchemy", "pip", "setuptools",
})  # fmt: skip


def _changed(path: str, listed: Mapping[str, str]) -> str:
    """Return the difference between a module and its listed hash; "" if it matches or is missing (import reports that)."""
    for module in _modules(path):
        digest = _digest(module) if listed.get(module) else ""
        if digest and digest != listed[module]:
            return (
                f"module {module} ({_source(module)}) has changed since the run was made (sha256 {digest[:12]}..., expected "
                f"{listed[module][:12]}...): restore the old file"
            )
    return ""


def _digest(module: str) -> str:
    file = _source(module)
    try:
        return "" if file is None or module == _SCRIPT else hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _source(module: str) -> Path | None:
    """Return the source file of a module, without importing anything; None if it has none."""
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
        return Path(file) if isinstance(file, str) else None
    where: Any = None
    spec: ModuleSpec | None = None
    for name in _modules(module):
        loaded = sys.modules.get(name)
        if loaded is not None:
            where = getattr(loaded, "__path__", [])
            continue
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        spec = next((s for find in finders if find is not None and (s := find(name, where)) is not None), None)
        if spec is None and "." not in name:
            spec = PathFinder.find_spec(name, [str(Path.cwd())])
        if spec is None:
            return None
        where = spec.submodule_search_locations or []
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def check(path: str, key: str) -> None:
    why = _decided.get(path, _UNASKED)
    if why:
        raise BadInput(f"{key} is '{path}': {why}", code="code-not-run")


def resolve(path: str, *, key: str) -> Any:
    """Import what a path names, where that was allowed; modules in the current folder are found too.

    Args:
        path: An import path.
        key: The setting that names it, for errors.

    Returns:
        The class, function or value.

    Raises:
        BadInput: It may not be imported, it cannot be, or its module has no such name.
    """
    check(path, key)
    module, _, attribute = path.partition(":")
    try:
        imported = _imported(module)
    except ImportError as e:
        raise BadInput(
            f"{key} is '{path}': cannot import {module} ({e}); is it installed, or in this folder?",
            code="cannot-import-code",
        ) from e
    except (Exception, SystemExit) as e:
        raise BadInput(f"{key} is '{path}': cannot import {module} ({said(e, path)})", code="cannot-import-code") from e
    for name in attribute.split("."):
        if not hasattr(imported, name):
            if module == _SCRIPT:
                raise BadInput(
                    f"{key} is '{path}': it was defined in a script and is known only while that script runs; "
                    "define it in a module and name that",
                    code="cannot-import-code",
                )
            public_names = [n for n in vars(imported) if not n.startswith("_")]
            raise BadInput(
                f"{key} is '{path}': {module} has no '{attribute}'; {nearest(name, public_names)}",
                code="cannot-import-code",
            )
        imported = getattr(imported, name)
    return imported


def _imported(module: str) -> Any:
    cwd = str(Path.cwd())
    if cwd not in sys.path:
        sys.path.append(cwd)  # at the end, so that no file here replaces an installed module
    return importlib.import_module(module)


def call(path: str, *arguments: Any, key: str, **named: Any) -> Any:
    """Call the function or class of an import path; an error names the setting and the place."""
    work = resolve(path, key=key)
    if not callable(work):
        raise BadInput(
            f"{key} is '{path}': that is of type {type(work).__name__}, not a function or class", code="bad-own-code"
        )
    try:
        return work(*arguments, **named)
    except GrandRoundsError:
        raise
    except (Exception, SystemExit) as e:  # code that ends the program would end a run with exit code 0
        raise BadInput(f"{key} is '{path}': it failed with {said(e, path)}", code="own-code-failed") from e


def failure(error: Exception, names: Iterable[str]) -> str:
    """Describe a failure inside user code of these names; "" if it arose elsewhere."""
    for name in names:
        if is_path(name) and _frames(error, name):
            return f"'{name}' failed with {said(error, name)}"
    return ""


def said(error: BaseException, path: str) -> str:
    """Describe an error in one line, with its last line in the module of the path."""
    words = " ".join(str(error).split())
    words = words if len(words) <= _MOST else words[:_MOST] + " ..."
    frame = _frames(error, path)
    where = f", {Path(frame[-1][0]).name} line {frame[-1][1]}" if frame else ""
    return f"{type(error).__name__}: {words}{where}"


def _frames(error: BaseException, path: str) -> list[tuple[str, int]]:
    walked, module = traceback.walk_tb(error.__traceback__), path.partition(":")[0]
    return [(f.f_code.co_filename, line) for f, line in walked if f.f_globals.get("__name__") == module]


def path_of(target: Any) -> str:
    """Return the import path of a class or function."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module is None or name is None or "<" in name:
        label = name or f"an object of type {type(target).__name__}"
        raise ValueError(f"{label} has no import path: define a class or function at the top of a module and give that")
    return f"{module}:{name}"


def named(value: Any) -> Any:
    """Replace a class or function, or a list of them, by import paths."""
    if isinstance(value, (list, tuple)):
        return [named(v) for v in value]
    return path_of(value) if callable(value) else value
