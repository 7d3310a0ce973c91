"""The health page of a site serves the metrics of its watch beside its own."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace

from grandrounds.capabilities.hospital.keeper.runtime.health import Health
from grandrounds.capabilities.hospital.keeper.runtime.site import Site
from grandrounds.capabilities.hospital.keeper.runtime.supernode import ConnectionStatus
from tests.capabilities.watch.records import alarmed
from tests.capabilities.watch.test_metrics import labels, parse


def test_the_health_page_of_a_site_has_the_metrics_of_its_watch(tmp_path):
    alarmed(tmp_path / "watch")
    budget = SimpleNamespace(spent=lambda: 0.5, epsilon=3.0)
    site = SimpleNamespace(
        folder=SimpleNamespace(path=tmp_path, stored_budget=lambda: budget),
        log=SimpleNamespace(metrics=lambda: {"grandrounds_work_seconds_total": ("counter", "Seconds.", {"": 1763438776.25})}),
        supervisor=SimpleNamespace(restarts=1),
        _connected=True,
        _node=None,
        _connection=lambda: ConnectionStatus.load(tmp_path),
    )
    page = Health(0, faults=list, metrics=lambda: Site._metrics(site))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics") as answer:
            found = parse(answer.read().decode())
    finally:
        page.close()
    assert found["grandrounds_watch_open_alarms"] == {labels(): 1}
    assert found["grandrounds_epsilon_spent"] == {frozenset(): 0.5}
    assert found["grandrounds_work_seconds_total"] == {frozenset(): 1763438776.25}, "all digits of a time"
