"""Hostile ledgers: databases that are no ledgers, and alterations of a finished run, without a key or with the server's."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grandrounds.audit.ledger import Ledger
from grandrounds.core.arrays import load, save
from grandrounds.protocol.identity import Identity
from tests.audit.ledgers import countersigned, tampered

SEED, RUN = 0, "led-0"
JSON = ("summary.json", "round_logs.json", "explanations.json", "schema.json", "environment.json", "percentiles.json")
SERVER = Identity.simulated(SEED, "server")
Change = Callable[[Path], None]


# Databases


def _sql(*statements: str, keep: bool = True) -> Change:
    """Another schema: `keep` begins with the real ledger, without its triggers."""

    def change(folder: Path) -> None:
        path = folder / "ledger.db"
        if not keep:
            path.unlink()
        database = sqlite3.connect(path)
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()

    return change


def _bytes(data: bytes, part: str = "") -> Change:
    return lambda folder: (folder / f"ledger.db{part}").write_bytes(data)


def _patched(at: int, data: bytes) -> Change:
    def change(folder: Path) -> None:
        path = folder / "ledger.db"
        held = bytearray(path.read_bytes())
        held[at : at + len(data)] = data
        path.write_bytes(held)

    return change


def _replaced(make: Callable[[Path], Any], name: str = "ledger.db") -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def _cyclic(folder: Path) -> None:
    """The root page of `entries` becomes an inner page all of whose children are itself."""
    path = folder / "ledger.db"
    with sqlite3.connect(path) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()[0]
    cells = b"".join(struct.pack(">I", root) + bytes([n]) for n in range(1, 100))
    start = size - len(cells)
    head = struct.pack(">BHHHBI", 5, 0, 99, start, 0, root) + b"".join(struct.pack(">H", start + 5 * n) for n in range(99))
    data = bytearray(path.read_bytes())
    at = size * (root - 1)
    data[at : at + size] = head + b"\x00" * (size - len(head) - len(cells)) + cells
    path.write_bytes(data)


def _many_parents(folder: Path) -> None:
    """Inner pages that lead to the same leaf a hundred times, on four levels: a hundred million rows in a small file."""
    path = folder / "ledger.db"
    tampered(path, "DELETE FROM witnesses")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        size = database.execute("PRAGMA page_size").fetchone()[0]
        root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()[0]
    data = bytearray(path.read_bytes())
    leaf = bytes(data[size * (root - 1) : size * root])
    first = len(data) // size + 1
    pages = [leaf]
    for level in range(4):
        child = first + level
        cells = b"".join(struct.pack(">I", child) + bytes([1]) for _ in range(99))
        start = size - len(cells)
        places = b"".join(struct.pack(">H", start + 5 * n) for n in range(99))
        head = struct.pack(">BHHHBI", 5, 0, 99, start, 0, child) + places
        pages.append(head + b"\x00" * (size - len(head) - len(cells)) + cells)
    *new, top = pages
    data[size * (root - 1) : size * root] = top
    data += b"".join(new)
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)


_LONG = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
_HEADS = "CREATE TABLE heads (size INTEGER PRIMARY KEY, run TEXT NOT NULL, root BLOB NOT NULL, signature BLOB NOT NULL)"
DATABASES: dict[str, Change] = {
    "entries is a view without end": _sql(
        "DROP TABLE entries", f"CREATE VIEW entries AS {_LONG} x AS number, x AS body, x AS signature FROM n"
    ),
    "heads is a view without end": _sql(
        "DROP TABLE heads", f"CREATE VIEW heads AS {_LONG} x AS size, x AS run, x AS root, x AS signature FROM n"
    ),
    "witnesses is a product of itself": _sql(
        "DROP TABLE witnesses",
        "CREATE TABLE w (x)",
        *["INSERT INTO w VALUES (1), (2), (3), (4), (5), (6), (7), (8)"] * 8,
        "CREATE VIEW witnesses AS SELECT a.x AS size, b.x AS site, c.x AS signature FROM w a, w b, w c, w d, w e, w f",
    ),
    "entries makes a blob of a gigabyte": _sql(
        "DROP TABLE entries",
        "CREATE VIEW entries AS SELECT 0 AS number, randomblob(1000000000) AS body, x'00' AS signature",
    ),
    "entries sorts a product": _sql(
        "DROP TABLE entries",
        f"CREATE VIEW entries AS {_LONG} x AS number, hex(randomblob(1000)) AS body, x AS signature FROM n ORDER BY body",
    ),
    "a view besides": _sql("CREATE VIEW more AS SELECT * FROM entries"),
    "a table besides": _sql("CREATE TABLE more (x)"),
    "an index besides": _sql("CREATE INDEX more ON entries (body)"),
    "an index on an expression": _sql("CREATE INDEX more ON entries (hex(body))"),
    "a virtual table": _sql("CREATE VIRTUAL TABLE more USING fts5(x)"),
    "entries is a virtual table": _sql("DROP TABLE entries", "CREATE VIRTUAL TABLE entries USING fts5(number, body, signature)"),
    "a trigger of another's": _sql(
        "CREATE TRIGGER entries_UPDATE BEFORE UPDATE ON entries BEGIN SELECT randomblob(1000000000); END"
    ),
    "a trigger on insert": _sql("CREATE TRIGGER more AFTER INSERT ON heads BEGIN DELETE FROM entries; END"),
    "a generated column": _sql(
        "DROP TABLE heads", _HEADS.replace("root BLOB NOT NULL", "root BLOB AS (zeroblob(size * 1000000)) VIRTUAL")
    ),
    "a default that is code": _sql(
        "DROP TABLE heads", _HEADS.replace("run TEXT NOT NULL", "run TEXT DEFAULT (hex(randomblob(9)))")
    ),
    "a check that is long": _sql(
        "DROP TABLE heads", _HEADS.replace("run TEXT NOT NULL", f"run TEXT CHECK ({' + '.join(['1'] * 900)})")
    ),
    "other columns": _sql("DROP TABLE entries", "CREATE TABLE entries (number, body)"),
    "no tables": _sql("DROP TABLE entries", "DROP TABLE heads", "DROP TABLE witnesses"),
    "another database": _sql("CREATE TABLE patients (name)", keep=False),
    "sizes that are text": _sql(
        "DROP TABLE witnesses",
        "CREATE TABLE witnesses (size INTEGER NOT NULL, site TEXT NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (size, site))",
        "INSERT INTO witnesses VALUES ('many', 'a', 'b')",
    ),
    "names that are no text": _sql("UPDATE heads SET run = CAST(x'ff80fe' AS TEXT)"),
    "numbers without measure": _sql("UPDATE entries SET number = -9223372036854775808 WHERE number = 1"),
    "bodies that are numbers": _sql("UPDATE entries SET body = 1e308"),
    "bodies that are large": _sql("UPDATE entries SET body = zeroblob(30000000) WHERE number = 1"),
    "bodies that are deep": _sql(f"UPDATE entries SET body = CAST('{'[' * 100000}' AS BLOB) WHERE number = 1"),
    "signatures that are large": _sql("UPDATE heads SET signature = zeroblob(30000000)"),
    "a million witnesses": _sql(
        f"INSERT INTO witnesses {_LONG} x, 'site-' || x, x'00' FROM n LIMIT 200000"
    ),
    "pages in a circle": _cyclic,
    "pages with many parents": _many_parents,
    "no SQLite": _bytes(b"a ledger" * 4000),
    "nothing": _bytes(b""),
    "half a file": lambda folder: os.truncate(folder / "ledger.db", (folder / "ledger.db").stat().st_size // 2),
    "the header alone": lambda folder: os.truncate(folder / "ledger.db", 100),
    "a page size of 1": _patched(16, b"\x00\x01"),
    "a page size of 512": _patched(16, b"\x02\x00"),
    "an encoding of UTF-16": _patched(56, b"\x00\x00\x00\x02"),
    "a version of the future": _patched(18, b"\x09\x09"),
    "a schema of the future": _patched(44, b"\x00\x00\x00\x63"),
    "a list of free pages in a circle": _patched(32, b"\x00\x00\x00\x01\x00\x00\x00\x09"),
    "a log of noise": _bytes(random.Random(1).randbytes(300_000), "-wal"),
    "a log with a false head": _bytes(b"\x37\x7f\x06\x82" + b"\x00" * 40_000, "-wal"),
    "a log that is a folder": _replaced(Path.mkdir, "ledger.db-wal"),
    "a foreign journal": _bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\xff" * 4000, "-journal"),
    "a link": _replaced(lambda path: path.symlink_to("/etc/hosts")),
    "a link to a device": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _replaced(lambda path: path.symlink_to(path.name)),
    "a pipe": _replaced(os.mkfifo),
    "a folder": _replaced(Path.mkdir),
    "a log that is a pipe": _replaced(os.mkfifo, "ledger.db-wal"),
    "a log that is a link": _replaced(lambda path: path.symlink_to("/dev/zero"), "ledger.db-wal"),
    "a file with a hole of a terabyte": lambda folder: os.truncate(folder / "ledger.db", 2**40),
}


HARMLESS = ("a list of free pages in a circle", "a log of noise", "a log with a false head")
"""SQLite reads the ledger as it was; it may verify."""


# Files that people read


def _leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    if isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(item, (*path, at))
    else:
        yield path


def _bent(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if isinstance(value, int) else value * 1.01 + 1e-6
    return f"{value} indeed" if isinstance(value, str) else 1


def _at_leaf(name: str, path: tuple) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        place = content
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = _bent(place[path[-1]])
        (folder / name).write_text(json.dumps(content, indent=1))

    return change


def _text(name: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def located(whole: Path, *, each: int) -> dict[str, tuple[Change, str]]:
    """Altered figures of JSON files, with the words that must name the place."""
    out: dict[str, tuple[Change, str]] = {}
    for name in ("summary.json", "schema.json", "environment.json", "percentiles.json", "round_logs.json"):
        content = json.loads((whole / name).read_text())
        found = [path for path in _leaves(content) if name != "round_logs.json" or path[0] == "rounds"]
        for path in found[3 :: max(1, len(found) // each)][:each]:
            place = f"rounds[{path[1]}].{path[2]}" if name == "round_logs.json" else f"{path[0]}"
            out[f"{name}: {'.'.join(map(str, path))}"] = _at_leaf(name, path), place
    return out


def files(whole: Path, *, each: int) -> dict[str, tuple[Change, str]]:
    """Alterations of files without any key, with the file that must be named."""
    out: dict[str, tuple[Change, str]] = {}
    for name in JSON:
        found = list(_leaves(json.loads((whole / name).read_text())))
        for path in found[:: max(1, len(found) // each)][:each]:
            out[f"{name}: {'.'.join(map(str, path))}"] = _at_leaf(name, path), name
    others = (*JSON, "experiment.toml", "model.safetensors")
    for name in others:
        out |= {
            f"{name}: half": (_text(name, lambda data: data[: len(data) // 2]), name),
            f"{name}: nothing": (_text(name, lambda data: b""), name),
            f"{name}: noise": (_text(name, lambda data: random.Random(0).randbytes(len(data))), name),
            f"{name}: deep": (_text(name, lambda data: b"[" * 200_000), name),
            f"{name}: a space more": (_text(name, lambda data: data + b" "), name),
            f"{name}: gone": (lambda folder, name=name: (folder / name).unlink(), name),
            f"{name}: a folder": (_replaced(Path.mkdir, name), name),
            f"{name}: a link": (_replaced(lambda path: path.symlink_to("/etc/hosts"), name), name),
            f"{name}: a pipe": (_replaced(os.mkfifo, name), name),
        }
    return out | _models(whole) | _settings() | _reports(whole)


def _models(whole: Path) -> dict[str, tuple[Change, str]]:
    name = "model.safetensors"
    size = (whole / name).stat().st_size

    def flip(at: int) -> Change:
        return _text(name, lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    def meta(folder: Path) -> None:
        arrays, facts = load(folder / name)
        save(folder / name, arrays, {**facts, "threshold": 0.1})

    def swapped(folder: Path) -> None:
        arrays, facts = load(folder / name)
        save(folder / name, {n: -a for n, a in arrays.items()}, facts)

    def added(folder: Path) -> None:
        (folder / "models").mkdir()
        shutil.copy(folder / name, folder / "models" / "1.safetensors")

    out = {f"{name}: bit {at}": (flip(at), name) for at in (0, 9, 100, size // 2, size - 100, size - 1)}
    out |= {f"{name}: threshold": (meta, name), f"{name}: swapped": (swapped, name)}
    return out | {"models/1.safetensors: added": (added, "models/1.safetensors")}


def _settings() -> dict[str, tuple[Change, str]]:
    name = "experiment.toml"
    changes = ((b"rounds = 3", b"rounds = 9"), (b"seed = 0", b"seed = 1"), (b'name = "sse-agg"', b'name = "fedavg"'))
    return {f"{name}: {old.decode()}": (_text(name, lambda data, a=old, b=new: data.replace(a, b)), name) for old, new in changes}


def _reports(whole: Path) -> dict[str, tuple[Change, str]]:
    """A page in which a figure was altered, or one with other facts about itself."""
    name = "report.html"
    figures = json.loads((whole / "summary.json").read_text())["final"]
    page = (whole / name).read_bytes()
    out: dict[str, tuple[Change, str]] = {}
    for key in ("auroc", "accuracy", "log_loss", "ece", "brier", "auprc", "sensitivity", "specificity"):
        shown = f"{figures[key]:.3f}".encode()
        if shown in page:
            out[f"{name}: {key}"] = _text(name, lambda data, a=shown: data.replace(a, b"0.999", 1)), name
    facts = {
        "another root": (b"&quot;root&quot;: &quot;", b"&quot;root&quot;: &quot;0"),
        "another run": (b"&quot;run&quot;: &quot;led", b"&quot;run&quot;: &quot;LED"),
        "another size": (b"&quot;entries&quot;: ", b"&quot;entries&quot;: 1"),
        "another version": (b"&quot;version&quot;: &quot;", b"&quot;version&quot;: &quot;9"),
        "keys of its own": (b"&quot;simulated&quot;: true", b"&quot;simulated&quot;: false"),
        "no facts": (b"<meta name='grandrounds'", b"<meta name='other'"),
        "facts twice": (b"<meta name='grandrounds'", b"<meta name='grandrounds' content='{}'><meta name='grandrounds'"),
        "a script": (b"</body>", b"<script>document.title = 1</script></body>"),
        "another chart script": (b"id='plotly-packed'>H", b"id='plotly-packed'>I"),
        "an input less": (b"&quot;summary.json&quot;: ", b"&quot;other.json&quot;: "),
    }
    for what, (old, new) in facts.items():
        out[f"{name}: {what}"] = _text(name, lambda data, a=old, b=new: data.replace(a, b, 1)), name
    return out | {
        f"{name}: nothing": (_text(name, lambda data: b""), name),
        f"{name}: half": (_text(name, lambda data: data[: len(data) // 2]), name),
        f"{name}: a pipe": (_replaced(os.mkfifo, name), name),
    }


# The ledger itself, without a key


def ledgers(whole: Path) -> dict[str, Change]:
    """Alterations of the ledger by somebody who has no key."""
    with Ledger.open(whole / "ledger.db") as ledger:
        book = ledger.book()
    out: dict[str, Change] = {}
    for at, entry in enumerate(book.entries):
        for field in entry.content:
            out[f"entry {at}: {field}"] = _field(at, field)
        out[f"entry {at}: dropped"] = _table(f"DELETE FROM entries WHERE number = {at}")
        out[f"entry {at}: signature"] = _table(f"UPDATE entries SET signature = zeroblob(64) WHERE number = {at}")
        last = len(book.entries)
        out[f"entry {at}: twice"] = _table(f"INSERT INTO entries SELECT {last}, body, signature FROM entries WHERE number = {at}")
        if at:
            out[f"entries {at - 1} and {at}: swapped"] = _table(
                f"UPDATE entries SET number = -1 WHERE number = {at}",
                f"UPDATE entries SET number = {at} WHERE number = {at - 1}",
                f"UPDATE entries SET number = {at - 1} WHERE number = -1",
            )
    for size in range(1, len(book.entries) + 1):
        out[f"head of {size}: root"] = _table(f"UPDATE heads SET root = zeroblob(32) WHERE size = {size}")
        out[f"head of {size}: signature"] = _table(f"UPDATE heads SET signature = zeroblob(64) WHERE size = {size}")
        out[f"head of {size}: run"] = _table(f"UPDATE heads SET run = 'other' WHERE size = {size}")
        out[f"head of {size}: dropped"] = _table(f"DELETE FROM heads WHERE size = {size}")
        out[f"head of {size}: no witness"] = _table(f"DELETE FROM witnesses WHERE size = {size}")
        out[f"head of {size}: forged witness"] = _table(f"UPDATE witnesses SET signature = zeroblob(64) WHERE size = {size}")
        out[f"head of {size}: a stranger"] = _table(f"UPDATE witnesses SET site = site || '!' WHERE size = {size}")
    for size in range(1, len(book.entries)):
        out[f"rolled back to {size}"] = _rollback(size)
        out[f"rolled back to {size}, no summary"] = _rollback(size, summary=False)
        out[f"rolled back to {size}, another model"] = _rollback(size, model=True)
    out["no head beside it, and cut"] = _rollback(len(book.entries) - 1, head=False)
    out["an older head beside it, and the end forged"] = _older_head
    name = "ledger.head.json"
    out |= {
        f"{name}: a pipe": _replaced(os.mkfifo, name),
        f"{name}: a link": _replaced(lambda path: path.symlink_to("/dev/zero"), name),
        f"{name}: a folder": _replaced(Path.mkdir, name),
        f"{name}: noise": _text(name, lambda data: random.Random(0).randbytes(900)),
        f"{name}: deep": _text(name, lambda data: b"[" * 200_000),
        f"{name}: another root": _text(name, lambda data: data.replace(b'"root":"', b'"root":"00', 1)),
        f"{name}: another size": _text(name, lambda data: data.replace(b'"size":', b'"size":1', 1)),
    }
    out["gone"] = lambda folder: (folder / "ledger.db").unlink()
    return out


def _field(at: int, field: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / "ledger.db"
        with sqlite3.connect(path) as database:
            body = json.loads(database.execute("SELECT body FROM entries WHERE number = ?", (at,)).fetchone()[0])
        body[field] = _bent(body[field]) if not isinstance(body[field], (dict, list)) else {}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        tampered(path, f"UPDATE entries SET body = ? WHERE number = {at}", values=(text,))

    return change


def _table(*statements: str) -> Change:
    return lambda folder: tampered(folder / "ledger.db", *statements)


def _rollback(size: int, *, summary: bool = True, model: bool = False, head: bool = True) -> Change:
    """Cut the ledger to a head that was signed and countersigned, and put that head beside it (H5)."""

    def change(folder: Path) -> None:
        path = folder / "ledger.db"
        cut = [f"DELETE FROM entries WHERE number >= {size}"]
        tampered(path, *cut, *(f"DELETE FROM {table} WHERE size > {size}" for table in ("heads", "witnesses")))
        with Ledger.open(path) as ledger:
            newest = ledger.head()
        (folder / "ledger.head.json").unlink()
        if head:
            (folder / "ledger.head.json").write_bytes(newest.to_bytes())
        if not summary:
            (folder / "summary.json").unlink()
        if model:
            arrays, facts = load(folder / "model.safetensors")
            save(folder / "model.safetensors", {n: -a for n, a in arrays.items()}, facts)

    return change


def _older_head(folder: Path) -> None:
    _rollback(3)(folder)
    with Ledger.open(folder / "ledger.db", identity=Identity.simulated(1, "server")) as ledger:
        ledger.append(RUN, {"kind": "resume", "run": RUN, "round": 2, "plan": "00" * 32})


# With the server's key


def rewritten(folder: Path, change: Callable[[list[dict]], list[dict] | None], *, witnesses: str = "none") -> None:
    """Sign another history with the server's own key. `witnesses`: "none", "simulated", or "made up" by the server."""
    path = folder / "ledger.db"
    with Ledger.open(path) as ledger:
        said = [{k: v for k, v in e.items() if k not in ("number", "previous", "schema")} for e in ledger.entries()]
    said = change(said) or said
    made_up = {}
    if witnesses == "made up":
        made_up = {site: Identity.simulated(99, site) for site in said[0]["keys"]["sites"]}
        said[0]["keys"]["sites"] = {site: one.public.hex() for site, one in made_up.items()}
    for name in ("ledger.db", "ledger.head.json"):
        (folder / name).unlink()
    with Ledger.open(path, identity=SERVER) as ledger:
        for value in said:
            head = ledger.append(str(said[0].get("run")), value)
            if made_up:
                ledger.add_countersignatures(head.with_witnesses({s: head.head.countersign(one) for s, one in made_up.items()}))
    if witnesses == "simulated":
        countersigned(path, seed=SEED, sites=said[0]["keys"]["sites"])
    with Ledger.open(path) as ledger:
        (folder / "ledger.head.json").write_bytes(ledger.head().to_bytes())


def with_key(whole: Path) -> dict[str, Change]:
    """Alterations by who has the server's key; sites' countersignatures are missing, or made up."""
    out: dict[str, Change] = {}

    def case(name: str, change: Callable[[list[dict]], list[dict] | None], witnesses: str = "none") -> None:
        out[name] = lambda folder: rewritten(folder, change, witnesses=witnesses)

    with Ledger.open(whole / "ledger.db") as ledger:
        said = list(ledger.entries())
    case("as it was, without witnesses", lambda said: None)
    case("another weight", lambda said: said[2]["decision"]["weights"].update({"site-01": 0.9}))
    case("no sites", lambda said: said[0]["keys"].update(sites={}))
    case("sites of the server's making", lambda said: None, "made up")
    case("a site less", lambda said: said[0]["keys"]["sites"].pop("site-02") and None, "made up")
    case("no close", lambda said: said[:-1], "simulated")
    case("a close without hashes of values", lambda said: said[-1].pop("contents") and None, "simulated")
    case("a close of another model", lambda said: said[-1].update(model="00" * 32), "simulated")
    case("a close of another round", lambda said: said[-1].update(round=1), "simulated")
    case("a close of no file", lambda said: said[-1].update(files={}), "simulated")
    case("a close of a file elsewhere", lambda said: said[-1]["files"].update({"../other": "00" * 32}), "simulated")
    case("a close of another summary", lambda said: said[-1]["files"].update({"summary.json": "00" * 32}), "simulated")
    case("two rounds swapped", lambda said: [said[0], said[2], said[1], *said[3:]], "simulated")
    case("a round less", lambda said: [said[0], *said[2:]], "simulated")
    case("a round twice", lambda said: [*said[:3], *said[2:]], "simulated")
    case("a close before the end", lambda said: [*said[:2], said[-1], *said[2:-1]], "simulated")
    case("a resume at another round", lambda said: [*said, {"kind": "resume", "run": RUN, "round": 9, "plan": ""}], "simulated")
    case("no opening", lambda said: said[1:])
    case("nothing at all", lambda said: [{"kind": "close"}])
    for at, kind in ((0, "open"), (1, "round"), (len(said) - 1, "close")):
        for field in (f for f in said[at] if f not in ("number", "previous", "schema", "version", "explanation")):
            for what, bad in (("gone", None), ("a list", [1]), ("text", "x")):
                if bad is not None and isinstance(said[at][field], type(bad)):
                    continue
                case(f"{kind}.{field}: {what}", _spoilt(at, field, bad), "none")
    return out


def _spoilt(at: int, field: str, bad: Any) -> Callable[[list[dict]], None]:
    def change(said: list[dict]) -> None:
        if bad is None:
            del said[at][field]
        else:
            said[at][field] = bad

    return change
