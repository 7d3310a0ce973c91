"""Run every script of bench/ at its smallest size, two at a time: `make bench-smoke`.

    python tools/bench_smoke.py [NAME ...]

A script is a file of bench/ that has a main part. Each runs with BENCH_SMOKE=1 (`bench/smoke.py`) in an empty folder of its own:
files with relative paths stay out of the repository. Status 77 means that a package, data folder or device is not on this
machine: the script is skipped, with its reason. Any other status but 0 fails, as does a script that takes more than four minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_HERE = 77
MOST_SECONDS = 240.0
LINES = 25
"""Lines of the output of a failed script that are printed."""


def list_scripts(names: list[str]) -> list[Path]:
    """List the files of bench/ with a main part, or those of them that are named."""
    found = [p for p in sorted((ROOT / "bench").glob("*.py")) if '__name__ == "__main__"' in p.read_text()]
    unknown = set(names) - {p.stem for p in found}
    if unknown:
        sys.exit(f"bench/ has no script {sorted(unknown)[0]}")
    return [p for p in found if not names or p.stem in names]


def run_script(path: Path) -> tuple[int, float, str]:
    """Run one script; return its status, seconds and output."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        env = os.environ | {"BENCH_SMOKE": "1", "TMPDIR": folder, "XDG_CACHE_HOME": folder}
        env |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        process = subprocess.Popen(
            [sys.executable, path], cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        with suppress(ProcessLookupError):  # also what the script started and left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        return status, time.monotonic() - began, output.read()


def main() -> int:
    """Run the scripts; return 1 if one failed."""
    scripts, counts = list_scripts(sys.argv[1:]), Counter[str]()
    with ThreadPoolExecutor(2) as pool:
        running = {pool.submit(run_script, path): path for path in scripts}
        for done in as_completed(running):
            status, seconds, output = done.result()
            last = (output.strip().splitlines() or [""])[-1]
            kind, words = {0: ("passed", "ok"), NOT_HERE: ("skipped", f"not here: {last}")}.get(
                status, ("failed", f"FAILED with status {status}")
            )
            counts[kind] += 1
            print(f"{running[done].stem:20} {seconds:5.1f} s  {words}", flush=True)
            if kind == "failed":
                print("".join(f"    {line}\n" for line in output.splitlines()[-LINES:]), end="", flush=True)
    print(", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")))
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
