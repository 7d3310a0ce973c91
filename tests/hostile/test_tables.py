"""Hostile tables, .gz and .npz files: each is read, or refused in one sentence, and none fills the memory."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.command import rounds
from tests.hostile.test_folders import RANDOM, TooLong, alarm

ROWS = 60


def table(
    *, header: str = "age,bp,hospital,died", row: str = "{a},{b},{s},{y}", n: int = ROWS, **fixed: object
) -> bytes:
    """A table of patients; what is fixed stands in each row in place of what would vary."""
    lines = [header]
    for k in range(n):
        values = {"a": 40 + k % 37, "b": 100 + (k * 7) % 40, "s": "abc"[k % 3], "y": (k * 5 % 7) % 2, **fixed}
        lines.append(row.format(**values))
    return ("\n".join(lines) + "\n").encode()


def cell(value: str, at: str = "b") -> bytes:
    """A table with one odd cell in the middle."""
    text = table().decode().splitlines()
    cells = text[30].split(",")
    cells["absy".index(at)] = value
    return "\n".join([*text[:30], ",".join(cells), *text[31:]]).encode()


CASES: dict[str, bytes] = {
    "plain": table(),
    "empty": b"",
    "one byte": b"a",
    "header only": b"age,bp,hospital,died\n",
    "no header": b"1,2,a,0\n2,3,b,1\n" * 20,
    "random": RANDOM,
    "zeros": bytes(5000),
    "nul in a cell": cell("1\x002"),
    "no end of line": table().rstrip(b"\n"),
    "carriage returns": table().replace(b"\n", b"\r"),
    "both ends": table().replace(b"\n", b"\r\n"),
    "blank lines": table().replace(b"\n", b"\n\n"),
    "a quote that never ends": cell('"abc'),
    "quotes within": cell('"a""b"'),
    "a line of one cell": table() + b"alone\n",
    "a line of many cells": table() + b"1," * 5000 + b"1\n",
    "names twice": table(header="age,age,hospital,died"),
    "an empty name": table(header="age,,hospital,died"),
    "markup in a name": table(header="age,[/x],hospital,died"),
    "escape in a name": table(header="age,\x1b[31mred,hospital,died"),
    "a long name": table(header="age," + "x" * 100_000 + ",hospital,died"),
    "a script in a name": table(header="age,<script>alert(1)</script>,hospital,died"),
    "markup in a site": table(s="[/x]"),
    "escape in a site": table(s="\x1b[31mred"),
    "a path as a site": table(s="../../etc/passwd"),
    "a dot as a site": table(s="."),
    "a long site": table(s="s" * 5000),
    "a site in each row": table(row="{a},{b},s{a}{b},{y}"),
    "one site": table(s="a"),
    "no site": cell("", "s"),
    "markup in a label": cell("[/x]", "y"),
    "escape in a label": cell("\x1b[31mred", "y"),
    "labels in each row": table(row="{a},{b},{s},c{a}{b}"),
    "one label": table(y=1),
    "no label": cell("", "y"),
    "a rare label": cell("2", "y"),
    "labels of nan": table(y="nan"),
    "labels of floats": table(row="{a},{b},{s},{y}.0"),
    "infinite": cell("inf"),
    "minus infinite": cell("-inf"),
    "huge": cell("1e308"),
    "too huge": cell("1e999"),
    "tiny": cell("1e-320"),
    "all huge": table(b="1e308"),
    "too huge for squares": table(row="{a},{y}e308,{s},{y}"),
    "sites that look the same": table().replace(b",b,", b",a\xe2\x80\x8b,"),
    "many digits": cell("9" * 5000),
    "a number of words": cell("12 mmHg"),
    "a formula": cell("=HYPERLINK('x')"),
    "constant": table(b=1, a=1),
    "all missing": table(b="", a=""),
    "one row": table(n=1),
    "two rows": table(n=2),
    "columns without end": table(header="age,bp,hospital,died," + ",".join(f"c{k}" for k in range(3000)), n=5),
    "wide": b"".join(b"c%d," % k for k in range(99)) + b"hospital,died\n" + (b"1," * 99 + b"a,1\n" + b"2," * 99 + b"b,0\n") * 9,
    "words in each row": table(row="w{a}x{b},{b},{s},{y}"),
    "a mark of utf-8": b"\xef\xbb\xbf" + table(),
    "utf-16": table().decode().encode("utf-16"),
    "utf-32": table().decode().encode("utf-32"),
    "not utf-8": table().replace(b"age", b"\xffge"),
    "direction turned round": table(header="age,\u202egnp,hospital,died"),
    "semicolons": table().replace(b",", b";"),
    "tabs": table().replace(b",", b"\t"),
    "commas in numbers": table(row='"{a},5","{b},5",{s},{y}'),
    "dates": table(row="{a}/01/2020,{b},{s},{y}"),
    "impossible dates": cell("99/99/9999"),
    "a gzip": gzip.compress(table()),
    "a zip": b"PK\x03\x04" + RANDOM,
    "parquet in name": b"PAR1" + RANDOM,
    "spaces": table().replace(b",", b" , "),
    "a label among features": table(header="age,died2,hospital,died"),
}
GZ: dict[str, bytes] = {
    "a table": gzip.compress(table()),
    "half": gzip.compress(table())[:60],
    "random": b"\x1f\x8b" + RANDOM,
    "two in one": gzip.compress(table()) + gzip.compress(table()),
    "a wrong sum": gzip.compress(table())[:-8] + bytes(8),
}


def wrong(name: str, place: Path) -> str:
    """What is wrong with how `rounds run` met a table; "" where nothing is."""
    place.mkdir(exist_ok=True)
    kind, _, which = name.rpartition(":")
    file = "t.csv.gz" if kind == "gz" else "t.csv"
    (place / file).write_bytes(GZ[which] if kind == "gz" else CASES[name])
    more = ("--label", "died", "--site", "hospital", "--set", "method.rounds=1", "--set", "split.min_rows=1")
    try:
        with alarm():
            done = rounds("run", "--table", file, *more, "--out", f"out{abs(hash(name))}", cwd=place)
    except (Exception, TooLong) as e:
        return f"{type(e).__name__}: {str(e)[:200]}"
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if done.returncode not in (0, 1, 2) or (done.returncode and len(said) != 1):
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if "\x1b[31mred" in done.stderr + done.stdout or "\u202e" in done.stderr + done.stdout:
        return "an escape sequence reached the terminal"
    pages = list(place.glob("out*/report.html"))
    if any("<script>alert(1)</script>" in page.read_text() for page in pages):
        return "a script reached the report"
    return "" if all(len(line) < 2000 for line in said) else f"a sentence of {len(said[0]):,} characters"


NAMES = [*CASES, *(f"gz:{name}" for name in GZ)]


def test_a_thinned_corpus_of_tables(tmp_path):
    found = {name: said for name in NAMES[::20] if (said := wrong(name, tmp_path / "here"))}
    assert not found


@pytest.mark.slow
def test_the_whole_corpus_of_tables(tmp_path):
    assert len(NAMES) >= 64
    found = {}
    for k, name in enumerate(NAMES):
        said = wrong(name, tmp_path / str(k))
        found |= {name: said} if said else {}
    assert not found


# --- bombs ------------------------------------------------------------------------------------------------


def refused(place: Path, file: str, *, size: str, label: str = "died") -> str:
    done = rounds("run", "--table", file, "--label", label, cwd=place, env={"GRANDROUNDS_LARGEST": size})
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_gz_file_that_unpacks_to_more_than_allowed_is_refused(tmp_path):
    packer = zlib.compressobj(9, wbits=31)
    (tmp_path / "bomb.csv.gz").write_bytes(b"".join(packer.compress(bytes(2**20)) for _ in range(40)) + packer.flush())
    assert "unpacks to more than 10,485,760 bytes" in refused(tmp_path, "bomb.csv.gz", size="10M")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(table()))
    assert "GRANDROUNDS_LARGEST" in refused(tmp_path, "t.csv.gz", size="100")
    assert "write a size in bytes" in refused(tmp_path, "t.csv.gz", size="much")


def npz(place: Path, **members: bytes) -> str:
    with zipfile.ZipFile(place / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return "x.npz"


def npy(shape: tuple[int, ...], data: bytes = b"", kind: str = "|u1") -> bytes:
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(held, {"descr": kind, "fortran_order": False, "shape": shape})
    return held.getvalue() + data


def test_an_npz_file_that_states_a_size_it_has_not_is_refused_before_it_is_allocated(tmp_path):
    file = npz(tmp_path, images=npy((2**40, 8, 8)), labels=npy((2**40,)))
    assert "not shape (1099511627776, 8, 8)" in refused(tmp_path, file, size="1G", label="labels")
    file = npz(tmp_path, images=npy((4000, 64, 64), bytes(4000 * 64 * 64)), labels=npy((4000,), bytes(4000)))
    assert "unpacks to more than 1,048,576 bytes" in refused(tmp_path, file, size="1M", label="labels")
    file = npz(tmp_path, images=npy((1,), b"cos\nsystem\n.", "|O"), labels=npy((1,), b"\0"))
    assert "never unpickled" in refused(tmp_path, file, size="1M", label="labels")


def test_files_that_are_no_npz_are_refused_in_words(tmp_path):
    held = io.BytesIO()
    np.save(held, np.zeros(3))
    for data in (b"", b"PK\x03\x04" + RANDOM, RANDOM, held.getvalue(), b"PK\x05\x06" + bytes(18)):
        (tmp_path / "x.npz").write_bytes(data)
        done = rounds("run", "--table", "x.npz", "--label", "labels", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("error: ") == 1


def test_errors_of_odd_tables_name_the_column_and_end_with_2(tmp_path):
    for name, code in (("too huge for squares", "out-of-range"), ("sites that look the same", "ambiguous-site")):
        (tmp_path / "t.csv").write_bytes(CASES[name])
        more = ("--label", "died", "--site", "hospital", "--set", "split.min_rows=1")
        done = rounds("run", "--table", "t.csv", *more, cwd=tmp_path)
        assert done.returncode == 2 and f"[{code}]" in done.stderr
        assert "'bp'" in done.stderr or "'a\\u200b'" in done.stderr


def test_a_function_that_ends_the_program_is_an_error(tmp_path):
    (tmp_path / "plan.toml").write_text('[data]\nname = "sys:exit"\nlabel = "died"\n')
    done = rounds("run", "plan.toml", cwd=tmp_path)
    assert done.returncode == 2 and "[own-code-failed]" in done.stderr
