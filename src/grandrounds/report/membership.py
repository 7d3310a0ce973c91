"""The report's section on membership attacks: whether the model gives away who was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from grandrounds.report.document import number, table, td

_SITES = 12


def membership(attacks: Mapping[str, Any] | None) -> list[str]:
    """The section, if the run was attacked (`rounds attack`); attacks.json has every site."""
    if attacks is None:
        return []
    head = ["attack", "members", "non-members", "AUC", "95% CI", "TPR at 1% FPR"]
    rows = [_row(escape(a["attack"]), a) for a in attacks["attacks"]]
    bound = attacks["bound"]
    if bound is not None:
        most = [number(bound["auc"], 3), "", number(bound["tpr"], 3)]
        rows.append([td(f"most that epsilon = {bound['epsilon']:.3g} allows"), td(""), td(""), *map(td, most)])
    words = [f"<p>{escape(s)}</p>" for s in attacks["sentences"]]
    if bound is not None and bound["broken"]:
        words[-1] = f"<p class='warn'>{escape(attacks['sentences'][-1])}</p>"
    words += [f"<p class='quiet'>{escape(note)}</p>" for note in attacks["notes"]]
    out = ["<h2>Who was trained on?</h2>", *words, table(head, rows)]
    if attacks["separate"]:
        sites = sorted(attacks["sites"].items(), key=lambda item: (-(item[1]["auc"] or 0), item[0]))[:_SITES]
        head[0] = "site, most exposed first"
        out += ["<h3>Each site's own model</h3>", table(head, [_row(escape(site), a) for site, a in sites])]
    return out


def _row(name: str, a: Mapping[str, Any]) -> list[str]:
    interval = f"{number(a['low'], 3)} to {number(a['high'], 3)}"
    cells = [str(a["members"]), str(a["nonmembers"]), number(a["auc"], 3), interval, number(a["tpr"], 3)]
    return [td(name), *map(td, cells)]
