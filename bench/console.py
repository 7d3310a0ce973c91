"""How long the console takes to show a large run: 152 hospitals, 200 rounds, explained every ten.

    python bench/console.py [--rounds 200] [--run FOLDER]

Makes the run (about a minute), serves it, and opens its pages in a real Chromium with an empty cache: seconds until the page
has loaded, and until the figures on the first screen are drawn. The baseline is the run's own report.html in the same
browser, which holds every figure at once. Once somebody looks at the list for three seconds before the run is opened, in
which the browser reads the script that draws; once nobody does. Bar: 2 s for the run's page, the first time after the
console was started.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
BAR, LOOKS = 2.0, 3.0
FIGURE = "figure[data-figure=curves], .plot"
DRAWN = "() => document.querySelector('figure[data-figure=curves] .main-svg') !== null"
REPORT = "() => document.querySelector('.plot .main-svg') !== null"


def made(folder: Path, rounds: int) -> None:
    command = [_rounds(), "run", "icu-cohort", "--set", f"method.rounds={rounds}", "--set", "explain.every=10"]
    subprocess.run([*command, "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)


def served(root: Path) -> tuple[subprocess.Popen[str], str, str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [_rounds(), "console", "--runs", str(root), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    token = next(line for line in process.stdout if "grc_" in line).split()[-1]
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}", token
        time.sleep(0.1)
    raise SystemExit("the console did not start")


def shown(page, url: str, drawn: str) -> tuple[float, float]:
    """Seconds until a page has loaded, and until its first figure is drawn."""
    began = time.monotonic()
    page.goto(url)
    loaded = time.monotonic() - began
    page.locator(FIGURE).first.scroll_into_view_if_needed()
    page.wait_for_function(drawn)
    return loaded, time.monotonic() - began


def signed_in(browser, url: str, token: str):
    """A window with an empty cache, at the list of runs."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(url)
    page.fill("#secret", token)
    page.click("button.primary")
    page.wait_for_url(f"{url}/")
    return page


def main() -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--run", type=Path, help="a run that is there already, in place of a new one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = given.run.parent if given.run else Path(folder)
        run = given.run or root / "large"
        if given.run is None:
            made(run, given.rounds)
        process, url, token = served(root)
        try:
            with sync_playwright() as p:
                browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                page = signed_in(browser, url, token)
                time.sleep(LOOKS)
                first = shown(page, f"{url}/run?run={run.name}", DRAWN)
                again = shown(page, f"{url}/run?run={run.name}", DRAWN)
                hurried = shown(signed_in(browser, url, token), f"{url}/run?run={run.name}", DRAWN)
                report = shown(browser.new_page(), (run / "report.html").resolve().as_uri(), REPORT)
                browser.close()
        finally:
            process.terminate()
            process.wait(10)
    print(f"load {os.getloadavg()[0]:.1f}; seconds until loaded, and until the first figure is drawn")
    print(f"{'the run in the console, first time':40s}{first[0]:7.2f}{first[1]:7.2f}")
    print(f"{'the run in the console, again':40s}{again[0]:7.2f}{again[1]:7.2f}")
    print(f"{'the same by a browser that never saw it':40s}{hurried[0]:7.2f}{hurried[1]:7.2f}")
    print(f"{'report.html (baseline)':40s}{report[0]:7.2f}{report[1]:7.2f}")
    print(f"ratio to the baseline {first[1] / report[1]:.2f}; bar {BAR} s: {'met' if first[1] < BAR else 'not met'}")
    return 0


def _rounds() -> str:
    return str(Path(sys.executable).parent / "rounds")


if __name__ == "__main__":
    sys.exit(main())
