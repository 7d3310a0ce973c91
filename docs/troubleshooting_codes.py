"""Codes that an operator or a site can meet, and those that docs/troubleshooting.md does not explain.

python docs/troubleshooting_codes.py            print the missing codes; exit 1 where there are some
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("troubleshooting.md")
PACKAGES = ("capabilities.hospital", "engine", "protocol", "privacy.site_budget")
"""Modules of which every code is explained."""


def operator_codes() -> set[str]:
    """Return the codes of errors in these modules, and all codes with which a site refuses."""
    from grandrounds.capabilities.hospital.keeper import codes
    from grandrounds.capabilities.hospital.keeper.policy.rules import CODES

    raised = runpy.run_path(str(PAGE.with_name("errors_page.py")))["collect"]()
    names = re.compile("|".join(rf"{re.escape(p)}($|[._])" for p in PACKAGES))
    found = {code for code, (_, modules) in raised.items() if any(names.match(m) for m in modules)}
    return found | {"unexpected-error"} | set(CODES) | {v for k, v in vars(codes).items() if k.isupper() and isinstance(v, str)}


def explained_codes() -> set[str]:
    """Return the codes in the first column of the page's tables."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)}


if __name__ == "__main__":
    missing = sorted(operator_codes() - explained_codes())
    print("\n".join(missing) or "every code is explained")
    sys.exit(bool(missing))
