"""Small bar charts of shares as SVG, for pages that are read without JavaScript and printed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

BAR, MARK = "#0969da", "#1b1f24"
"""Colours of a bar and of the mark of a reference."""

_WIDTH, _HEIGHT, _GAP, _FOOT = 46, 90, 6, 16


def share_bars(names: Sequence[str], shares: Sequence[float], reference: Sequence[float] = (), *, title: str) -> str:
    """Draw shares as bars, with a mark at the reference share of each.

    Args:
        names: Name of each bin.
        shares: Share of each bin.
        reference: Agreed share of each bin; none: no marks.
        title: Name of the figure, which a screen reader says.

    Returns:
        HTML: a figure with a text for each bar.
    """
    highest = max([*shares, *reference, 1e-9])
    width = len(shares) * (_WIDTH + _GAP) + _GAP
    parts = []
    for k, (name, share) in enumerate(zip(names, shares, strict=True)):
        left = _GAP + k * (_WIDTH + _GAP)
        tall = _HEIGHT * share / highest
        tip = f"{name}: {share:.1%}" + (f", agreed {reference[k]:.1%}" if reference else "")
        bar = f"<rect x='{left}' y='{_HEIGHT - tall:.1f}' width='{_WIDTH}' height='{max(tall, 0.5):.1f}' fill='{BAR}'/>"
        label = f"<text x='{left + _WIDTH / 2}' y='{_HEIGHT + 12}' text-anchor='middle' font-size='11' fill='{MARK}'>"
        parts.append(f"<g><title>{escape(tip)}</title>{bar}{label}{share:.0%}</text></g>")
        if reference:
            y, right = _HEIGHT - _HEIGHT * reference[k] / highest, left + _WIDTH + 2
            parts.append(f"<path d='M{left - 2} {y:.1f}H{right}' stroke='{MARK}' stroke-width='2'/>")
    described = "; ".join(f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True))
    tall = _HEIGHT + _FOOT + 4
    label = escape(f"{title}: {described}", quote=True)
    return (
        f"<figure class='bars'><svg viewBox='0 -4 {width} {tall}' width='{width}' height='{tall}' role='img' "
        f"aria-label='{label}'>{''.join(parts)}</svg><figcaption>{escape(_range_text(names))}</figcaption></figure>"
    )


def _range_text(names: Sequence[str]) -> str:
    """Name the bins from left to right."""
    return " | ".join(names)


STYLE = """
.bars { display: inline-block; margin: .3rem 1rem .3rem 0; max-width: 100% }
.bars svg { max-width: 100%; height: auto }
.bars figcaption { color: #57606a; font-size: .8rem; padding: 0; max-width: 34rem }
.verdict { border-left: 6px solid; padding: .5rem .9rem; font-size: 1.1rem; max-width: none }
.verdict.fits { border-color: #00674b; background: #eaf6f1 }
.verdict.unfit { border-color: #a04000; background: #fdf1e7 }
.stays { border: 2px solid #a04000; padding: .5rem .9rem; max-width: none }
section.column { border-top: 1px solid #e5e8eb; padding: .6rem 0 }
section.column h3 { margin: 0 0 .2rem }
td.text { color: #1b1f24 }
"""
"""Style of pages with such charts."""
