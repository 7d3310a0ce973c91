"""What a run takes of its machine: counters that count, sums over interrupted runs, and nothing of it where bits are compared."""

from __future__ import annotations

import builtins
import os
import time

import numpy as np
import psutil
import pytest

import grandrounds as gr
from grandrounds.audit.entry import without_seconds
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.resources import MACHINE, Gauge, cores
from grandrounds.report.document import machine_line
from tests.command import rounds
from tests.support import patients

MB = 10**6


def run(out, **method):
    values = {"name": "used", "data": {"label": "died", "site": "hospital"}, "method": {"rounds": 3, **method}}
    return gr.run(gr.Experiment.parse(values), table=patients([40, 30, 50]), out=out)


def steady(cost: dict) -> dict:
    """What does not say anything of the machine."""
    return {k: v for k, v in cost.items() if k not in MACHINE}


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_cpu_seconds_are_those_between_begin_and_end_with_childrens():
    gauge = Gauge()
    burn(0.3)
    gauge.begin()
    burn(0.1)
    child = os.fork()
    if not child:
        burn(0.15)
        os._exit(0)
    os.waitpid(child, 0)
    gauge.end()
    burn(0.3)
    assert 0.24 < gauge.cpu_seconds < 0.5, "neither what came before nor what came after"
    assert gauge.children_peak_memory > 10 * MB
    told = gauge.summarise(seconds=0.5, rounds=2)
    assert told["cpu_share"] == pytest.approx(gauge.cpu_seconds / (0.5 * cores()))
    assert told["round_seconds"] == 0.25


def test_the_peak_holds_what_is_let_go_of_before_the_round_ends():
    gauge = Gauge()
    before = psutil.Process().memory_info().rss
    most = gauge._first.peak
    gauge.begin()
    held = np.ones((most - before + 200 * MB) // 8)  # more than this process has ever held
    del held
    gauge.end()
    assert gauge.peak_memory >= most + 100 * MB > psutil.Process().memory_info().rss


def test_an_earlier_runs_peak_is_not_this_ones():
    held = np.ones(300 * MB // 8)
    del held
    gauge = Gauge()
    gauge.begin()
    gauge.end()
    assert 10 * MB < gauge.peak_memory < gauge._first.peak - 100 * MB


def test_without_psutil_the_standard_library_stands_in(monkeypatch):
    real = builtins.__import__

    def bare(name, *args, **kwargs):
        if name == "psutil":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    with_it = Gauge().summarise(seconds=1.0, rounds=1)
    monkeypatch.setattr(builtins, "__import__", bare)
    gauge = Gauge()
    gauge.begin()
    gauge.end()
    told = gauge.summarise(seconds=1.0, rounds=1)
    assert set(told) == set(with_it) == set(MACHINE)
    assert told["peak_memory"] > 10 * MB
    total = told["peak_memory"] / told["memory_share"]
    assert total == pytest.approx(psutil.virtual_memory().total, rel=0.01)


def test_a_runs_summary_has_them_and_show_and_report_say_so(tmp_path):
    done = run(tmp_path / "run")
    cost = done.summary["cost"]
    assert set(MACHINE) <= set(cost)
    assert 0 < cost["cpu_share"] <= 1.5
    assert cost["peak_memory"] > 10 * MB and 0 < cost["memory_share"] < 1
    assert cost["round_seconds"] == pytest.approx(cost["seconds"] / 3)
    assert cost["seconds"] == pytest.approx(sum(r["decision"]["cost"]["seconds"] for r in done.rounds))
    line = machine_line(cost)
    assert f"{cost['cpu_seconds']:.2f} CPU seconds" in line and f"{cost['peak_memory'] / 1e6:.0f} MB" in line
    assert line in " ".join(rounds("show", done.folder, "--verbose").stdout.split())
    assert line in (done.folder / "report.html").read_text()


def test_a_resumed_run_adds_up(tmp_path):
    short = run(tmp_path / "run")
    first, state = short.summary["cost"], Checkpoint(short.folder / "checkpoint").read().facts["machine"]
    assert state["cpu_seconds"] == first["cpu_seconds"]
    longer = gr.resume(short.folder, settings=["method.rounds=6"], table=patients([40, 30, 50])).summary["cost"]
    assert longer["cpu_seconds"] > first["cpu_seconds"] and longer["seconds"] > first["seconds"]
    assert longer["peak_memory"] >= first["peak_memory"]
    gauge = Gauge()
    gauge.resume({"cpu_seconds": 100.0, "peak_memory": 10**15})
    gauge.begin()
    gauge.end()
    assert 100 <= gauge.cpu_seconds < 101 and gauge.peak_memory == 10**15


def test_equal_runs_are_equal_but_for_the_machine(tmp_path):
    one, other = (run(tmp_path / name) for name in ("one", "other"))
    assert (one.folder / "model.safetensors").read_bytes() == (other.folder / "model.safetensors").read_bytes()
    assert [without_seconds(r["decision"]) for r in one.rounds] == [without_seconds(r["decision"]) for r in other.rounds]
    assert not {k for r in one.rounds for k in without_seconds(r["decision"])["cost"]} & set(MACHINE), "none in the ledger"
    same, again = ({**r.summary, "cost": steady(r.summary["cost"])} for r in (one, other))
    assert same == again
