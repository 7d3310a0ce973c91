"""A process that must not outlive the one that started it."""

from __future__ import annotations

import os
import threading
import time

ORPHANED = 4
"""Exit code of a process whose parent is gone."""


def end_with_parent() -> None:
    """End this process, whatever it is at, within a second of its parent's end."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(ORPHANED)

    threading.Thread(target=watch, daemon=True, name="parent").start()
