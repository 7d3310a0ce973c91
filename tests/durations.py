"""Seconds of all tests by file: kept in pytest's cache, and shown by folder after a run of many files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

CACHE = "grandrounds/seconds-by-file"
"""The key in pytest's cache; its file is .pytest_cache/v/grandrounds/seconds-by-file."""
MANY = 20
"""Files after which a table is shown, and the slowest that it lists."""


class Durations:
    """A plugin that adds up what set-up, call and teardown of each test take. Workers' seconds count side by side."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if len(self.seconds) > MANY:
            terminalreporter.section("seconds of tests, all workers together")
            for line in table(self.seconds):
                terminalreporter.line(line)
        if (cache := getattr(config, "cache", None)) is not None and self.seconds:
            kept = {file: round(s, 2) for file, s in self.seconds.items()}
            cache.set(CACHE, {**cache.get(CACHE, {}), **kept})


def table(seconds: Mapping[str, float]) -> list[str]:
    """Return lines of a table: the sum of each folder, or of each capability, and the slowest files."""
    folders: dict[str, float] = defaultdict(float)
    for file, s in seconds.items():
        parts = PurePosixPath(file).parts
        folders["/".join(parts[: 3 if parts[1:2] == ("capabilities",) else 2])] += s
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:MANY]
    lines = [f"{s:8.1f}  {folder}" for folder, s in sorted(folders.items(), key=lambda item: -item[1])]
    return [
        *lines,
        f"{sum(seconds.values()):8.1f}  all",
        "",
        f"The {len(slowest)} slowest files:",
        *(f"{s:8.1f}  {f}" for f, s in slowest),
    ]
