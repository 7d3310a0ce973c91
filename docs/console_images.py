"""Draw the images of the console's pages: `python docs/console_images.py`.

It runs `rounds run heart` three times in a temporary folder, sets up a register of models and starts a console for the hospital
va. Chromium photographs every page: light and dark, 1440 and 820 px wide. Images are cut at two screens and have 128 colours.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

OUT = Path(__file__).parent / "images" / "console"
PORT = 8651
WIDTHS, THEMES = (1440, 820), ("light", "dark")
TALLEST = 1800
"""Pixels of the tallest image: two screens."""

RUN, OTHER = "heart-fedavg", "heart-sse"
PAGES = {
    "board": ("board", "/"),
    "patients": ("clinician", "/"),
    "patient": ("clinician", f"/case?run={RUN}&case=841"),
    "runs": ("engineer", "/"),
    "run": ("engineer", f"/run?run={RUN}"),
    "performance": ("engineer", f"/run?run={RUN}&section=performance"),
    "hospitals": ("engineer", f"/hospitals?run={RUN}"),
    "hospital": ("engineer", f"/hospital?run={RUN}&site=va"),
    "thresholds": ("engineer", f"/thresholds?run={RUN}"),
    "explanations": ("engineer", f"/run?run={RUN}&section=explanations"),
    "weights": ("engineer", f"/run?run={OTHER}&section=weights"),
    "compare": ("engineer", f"/compare?run={RUN}&run={OTHER}"),
    "models": ("approver", "/models"),
    "model": ("approver", f"/models?run={OTHER}"),
    "audit": ("auditor", f"/audit?run={RUN}"),
    "privacy": ("auditor", f"/privacy?run={RUN}"),
    "access": ("auditor", "/access"),
}
"""Image -> role and address."""

PEOPLE = {"ada": "medical director", "bob": "data protection officer"}


def rounds(folder: Path, *words: str) -> str:
    """Run a command in a folder and return what it prints."""
    done = subprocess.run(["rounds", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"rounds {' '.join(words)}: {done.stderr}")
    return done.stdout


def make_runs(folder: Path) -> dict[str, str]:
    """Make the runs, the register and the users; return a token for each role."""
    rounds(folder, "run", "heart", "--quiet", "--out", f"runs/{RUN}")
    sse = ("--method", "sse-agg", "--set", "reference.rows.rows=200")
    rounds(folder, "run", "heart", *sse, "--quiet", "--out", f"runs/{OTHER}")
    rounds(folder, "run", "heart", "--method", "scaffold", "--quiet", "--out", "runs/heart-scaffold")
    rounds(folder, "models", "init", *(word for role in PEOPLE.values() for word in ("--role", role)))
    files = {}
    for name, role in PEOPLE.items():
        files[name] = folder / f"{name}.passphrase"
        files[name].touch(mode=0o600)
        files[name].write_text(f"an example passphrase of {name}")
        rounds(folder, "models", "signatory", "add", name, "--role", role, "--passphrase-file", str(files[name]))
    for run in (RUN, OTHER):
        purpose = "heart disease, adults with chest pain"
        rounds(folder, "models", "propose", f"runs/{run}", "--purpose", purpose, "--by", "eva")
    for run, who in ((RUN, "ada"), (RUN, "bob"), (OTHER, "ada")):
        rounds(folder, "models", "approve", f"runs/{run}", "--by", who, "--passphrase-file", str(files[who]))
    rounds(folder, "models", "use", f"runs/{RUN}", "--hospital", "va", "--by", "ada", "--passphrase-file", str(files["ada"]))
    tokens = {}
    for role in ("board", "clinician", "engineer", "auditor", "approver"):
        name = "bob" if role == "approver" else role
        printed = rounds(folder, "console", "users", "add", name, "--role", role, "--token", "--users", "users.json")
        tokens[role] = re.findall(r"grc_\S+", printed)[0]
    return tokens


@contextmanager
def console(folder: Path) -> Iterator[str]:
    """Serve the runs and give the address."""
    words = ["--runs", "runs", "--site", "va", "--users", "users.json", "--port", str(PORT), "--lock", "0"]
    names = ["--title", "VA Medical Center", "--contact", "it@hospital.example", "--access-log", "access.jsonl"]
    server = subprocess.Popen(["rounds", "console", *words, *names], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        while "Ctrl-C" not in server.stdout.readline():
            if server.poll() is not None:
                sys.exit("the console did not start")
        yield f"http://127.0.0.1:{PORT}"
    finally:
        server.terminate()
        server.wait()


def photograph(browser: Browser, url: str, tokens: dict[str, str], width: int, theme: str) -> Iterator[tuple[str, int]]:
    """Photograph every page; give its name and height."""
    windows = {}
    for role in dict.fromkeys(role for role, _ in PAGES.values()):
        page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme).new_page()
        page.set_default_timeout(60_000)
        page.goto(url)
        page.fill("#secret", tokens[role])
        page.click("button.primary")
        page.wait_for_url(lambda address: "/sign-in" not in address)
        windows[role] = page
    for name, (role, path) in PAGES.items():
        page = windows[role]
        page.goto(url + path)
        page.wait_for_load_state("networkidle")
        time.sleep(1)
        height = int(page.evaluate("document.documentElement.scrollHeight"))
        page.set_viewport_size({"width": width, "height": min(height, TALLEST)})
        time.sleep(1.5)  # figures that came into view
        image = Image.open(io.BytesIO(page.screenshot()))
        image.convert("RGB").quantize(128).save(OUT / f"{name}-{width}-{theme}.png", optimize=True)
        page.set_viewport_size({"width": width, "height": 900})
        yield name, height


def main() -> None:
    """Draw all images and print the height of each page."""
    OUT.mkdir(parents=True, exist_ok=True)
    heights: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        folder = Path(home)
        tokens = make_runs(folder)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        with console(folder) as url:
            for width in WIDTHS:
                for theme in THEMES:
                    for name, height in photograph(browser, url, tokens, width, theme):
                        heights.setdefault(name, []).append(height)
        browser.close()
    print(json.dumps({name: each[0] for name, each in heights.items()}))


if __name__ == "__main__":
    main()
