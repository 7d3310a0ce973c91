"""Progress: silent where nobody watches, a bar on request, and events for a function."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import grandrounds as gr
from grandrounds.api.progress import NotebookBar, SilentBar, TerminalBar, in_notebook, make_bar


def test_events_go_to_a_function_and_nothing_is_printed(frame, tmp_path, capsys):
    events = []
    options = {"label": "died", "site": "hospital", "rounds": 2}
    gr.run(frame, **options, out=tmp_path / "a", progress=lambda e: events.append(e["event"]))
    gr.run(frame, **options, out=tmp_path / "b")
    assert events == ["reading", "start", "round", "round", "judging", "done"]
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_request(frame, tmp_path, capsys):
    gr.run(frame, label="died", site="hospital", rounds=2, out=tmp_path / "a", progress=True)
    shown = capsys.readouterr()
    assert shown.out == "" and "2/2" in shown.err and "AUROC" in shown.err


def test_the_kind_of_bar_follows_from_the_place(monkeypatch):
    assert isinstance(make_bar("round", False), SilentBar) and isinstance(make_bar("round", None), SilentBar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = make_bar("round", None)
    assert isinstance(bar, TerminalBar)
    bar.close()


def test_a_notebook_shows_one_element_with_escaped_texts(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data))
    shell = type("ZMQInteractiveShell", (), {})()
    display = SimpleNamespace(display=lambda data, raw, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert in_notebook()
    bar = make_bar("run", None)
    assert isinstance(bar, NotebookBar)
    bar.update("<b>site</b>", 1, 4)
    bar.close()
    assert shown[0]["text/html"] == '<progress value="1" max="4"></progress> run 1 of 4 &lt;b&gt;site&lt;/b&gt;'
    assert shown[0]["text/plain"] == "run 1 of 4 <b>site</b>"
