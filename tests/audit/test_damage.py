"""A damaged or forged file ends in words: never in a traceback, and never in a process that dies of it."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from grandrounds.audit.ledger import Ledger
from grandrounds.core.errors import BadInput
from tests.audit.ledgers import RUN, SERVER, made, of_round, opening
from tests.support import refused

PARTS = ("", "-wal", "-shm")
TIMES = 300


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Bits, bytes and numbers changed, most of them where SQLite keeps its own: file and page headers."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16, 64])):
        page = 4096 * rng.randrange(max(1, len(out) // 4096))
        at = min(len(out) - 1, rng.choice([rng.randrange(len(out)), rng.randrange(110), page + rng.randrange(40)]))
        out[at] = rng.choice([out[at] ^ 1 << rng.randrange(8), 0, 0x7F, 0x80, 0xFF])
    return bytes(out[: rng.randrange(len(out))] if rng.random() < 0.1 else out)


def read_and_write(folder: Path, *, seed: int) -> None:
    """Damage a ledger that a killed writer left behind, in one of its files or in all; then read it, or go on with it.

    The same files are written over: a connection that an earlier turn left open would lock them, or die of it.
    """
    rng, refusals = random.Random(seed), 0
    for _ in range(TIMES):
        spoilt = rng.choice([*PARTS, None])
        for part in PARTS:
            data, path = (folder / f"whole.db{part}").read_bytes(), folder / f"l.db{part}"
            path.write_bytes(damaged(data, rng) if spoilt in (part, None) else data)
        try:
            with Ledger.open(folder / "l.db", identity=rng.choice([None, SERVER])) as ledger:
                refusals += bool(ledger.verify(SERVER.public))
                if ledger._identity:
                    ledger.append(RUN, of_round(4))
        except (BadInput, OSError):
            refusals += 1
    assert refusals > TIMES // 4, refusals


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [0, 1])
def test_damage_to_any_file_of_a_ledger_kills_no_process(tmp_path, seed):
    with Ledger.open(tmp_path / "live.db", identity=SERVER) as ledger:
        ledger.append(RUN, opening(), *(of_round(n) for n in (1, 2, 3)))
        for part in PARTS:
            shutil.copy(tmp_path / f"live.db{part}", tmp_path / f"whole.db{part}")
    code = f"from pathlib import Path; from {__name__} import *; read_and_write(Path({str(tmp_path)!r}), seed={seed})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_ledger_whose_rows_are_in_the_way_is_refused_in_words(tmp_path):
    """Its newest entry was moved to a number that the next must have."""
    path = made(tmp_path / "l.db", rounds=2)
    database = sqlite3.connect(path)
    database.execute("DROP TRIGGER entries_UPDATE")
    database.execute("UPDATE entries SET number = 9 WHERE number = 2")
    database.commit()
    database.close()
    with Ledger.open(path, identity=SERVER) as ledger, refused("damaged-ledger"):
        ledger.append(RUN, of_round(3))


def test_a_forged_schema_cannot_reach_beyond_the_file(tmp_path):
    """Entries that are a view over a table of SQLite's own: not read, though a plain connection would."""
    path = made(tmp_path / "l.db", rounds=2)
    database = sqlite3.connect(path)
    database.execute("DROP TABLE entries")
    view = "SELECT rowid AS number, file AS body, file AS signature FROM pragma_database_list"
    database.execute(f"CREATE VIEW entries AS {view}")
    database.commit()
    assert database.execute("SELECT body FROM entries").fetchall()
    database.close()
    with Ledger.open(path) as ledger, refused("not-a-ledger", match="view 'entries'"):
        ledger.book()
