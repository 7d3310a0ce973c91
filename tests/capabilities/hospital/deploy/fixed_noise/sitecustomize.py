"""Noise and masks of a site's worker from its name, so that a private run can be repeated bit by bit. For tests only.

Python imports this file at the start of every process that has its folder on PYTHONPATH; only workers are changed.
"""

import sys

if "grandrounds.capabilities.hospital.keeper.runtime.worker" in sys.orig_argv:
    import tomllib
    from pathlib import Path

    from grandrounds.privacy.secagg import Secret

    _folder = Path(sys.orig_argv[sys.orig_argv.index("grandrounds.capabilities.hospital.keeper.runtime.worker") + 1])
    _name = tomllib.loads((_folder / "site.toml").read_text())["name"]
    Secret.own = classmethod(lambda cls: Secret.simulated(0, _name))  # type: ignore[assignment,method-assign]
