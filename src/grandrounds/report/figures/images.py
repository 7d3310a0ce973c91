"""Images beside heat maps, and how heat maps change over rounds."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.mapped import COMMON, LOCAL, REPORT, TITLES
from grandrounds.report.figure import Figure
from grandrounds.report.paint import AMOUNT, COLOURS, SIGNED, layout, safe

_ACROSS = 4
_CELL = 240
_GAP = 0.03


def image_grid(panels: Sequence[tuple[str, Array]], *, title: str = "Pictures", across: int = _ACROSS) -> Figure:
    """Panels (title, array) in rows of `across`.

    Arrays of whole numbers (uint8), and those of three channels, are pictures; floats (H, W) are heat maps, from blue
    over white to red where some are negative. Floats of three channels lie between 0 and 1.
    """
    if not panels:
        raise BadInput("there is no picture to show: give at least one (title, array)", code="nothing-to-draw")
    columns = min(across, len(panels))
    down = -(-len(panels) // columns)
    traces, notes = [], []
    axes: dict[str, Any] = {}
    for k, (name, given) in enumerate(panels):
        number = "" if k == 0 else str(k + 1)
        row, column = divmod(k, columns)
        array = np.asarray(given)
        panel = _panel(name, array)
        left, top = column / columns, 1 - row / down
        right, bottom = left + 1 / columns - _GAP, top - 1 / down + 2 * _GAP
        bare = {"visible": False, "constrain": "domain"}
        height, width = array.shape[:2]
        axes[f"xaxis{number}"] = {**bare, "domain": [left, right], "anchor": f"y{number}", "range": [-0.5, width - 0.5]}
        axes[f"yaxis{number}"] = {
            **bare,
            "domain": [bottom, top],
            "anchor": f"x{number}",
            "range": [height - 0.5, -0.5],
            "scaleanchor": f"x{number}",
        }
        traces.append({**panel, "xaxis": f"x{number}", "yaxis": f"y{number}"})
        notes.append(
            {"text": safe(name), "showarrow": False, "xref": "paper", "yref": "paper", "x": (left + right) / 2,
             "y": top, "yanchor": "bottom", "font": {"size": 12}}
        )  # fmt: skip
    return Figure(
        traces,
        {**layout(safe(title), height=70 + _CELL * down), **axes, "annotations": notes, "margin": {"t": 70, "b": 10}},
    )


def _panel(name: str, array: Array) -> dict[str, Any]:
    if array.ndim == 2 and array.dtype.kind == "f":
        return _heat(array)
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3):
        whole = array if array.dtype == np.uint8 else np.clip(np.round(255 * array), 0, 255).astype(np.uint8)
        return {
            "type": "image",
            "source": f"data:image/png;base64,{base64.b64encode(_png(whole)).decode()}",
            "hoverinfo": "skip",
        }
    raise BadInput(
        f"picture '{name}' has shape {array.shape}: it should be (height, width) or (height, width, 3)",
        code="bad-image-shape",
    )


def _heat(array: Array) -> dict[str, Any]:
    signed = bool((array < 0).any())
    far = float(np.nanmax(np.abs(array))) if array.size else 1.0
    return {
        "type": "heatmap",
        "z": [[float(f"{v:.3g}") for v in row] for row in array.tolist()],
        "colorscale": SIGNED if signed else AMOUNT,
        "zmin": -far if signed else 0,
        "zmax": far or 1.0,
        "showscale": False,
        "hovertemplate": "row %{y}, column %{x}: %{z}<extra></extra>",
    }


def _png(pixels: Array) -> bytes:
    """A PNG of uint8 pixels, grey (H, W) or in colour (H, W, 3)."""
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else 2
    lines = np.ascontiguousarray(pixels).reshape(height, -1)
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body)) for tag, body in parts
    )


_SHARP = {(LOCAL, "concentration"): ("own models", "dash"), (COMMON, "concentration"): ("common model", "solid")}
_ALIKE = {
    ("alike", "ssim"): ("own and common", "solid"),
    ("since", "local_ssim"): ("own and its last", "dash"),
    ("since", "common_ssim"): ("common and its last", "dot"),
}


def maps_sharp(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Concentration of heat, means over sites: of the models that sites trained, and of the common one."""
    note = "mean over sites; 0 spread evenly, 1 on one pixel"
    return _drawn(rounds, _SHARP, "How sharply models look", note, "concentration", {"rangemode": "tozero"})


def maps_alike(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """SSIM of maps: a site's own model with the common one, and either with itself the last time."""
    note = "mean over sites; 1 is the same map"
    return _drawn(rounds, _ALIKE, "How alike heat maps are", note, "SSIM", {"range": [None, 1.02]})


def _drawn(
    rounds: Sequence[Mapping[str, Any]],
    wanted: Mapping[tuple[str, str], tuple[str, str]],
    title: str,
    note: str,
    y: str,
    axis: Mapping[str, Any],
) -> Figure:
    told = {r["round"]: r[REPORT]["means"] for r in rounds if r.get(REPORT)}
    if not told:
        raise BadInput("no round of this run has heat maps: set explain.maps and run it again", code="nothing-to-draw")
    lines = []
    for name, colour in zip(next(iter(told.values())), COLOURS, strict=False):
        for (block, key), (words, dash) in wanted.items():
            lines.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{TITLES[name]}, {words}",
                    "x": list(told),
                    "y": [means[name][block][key] for means in told.values()],
                    "line": {"color": colour, "dash": dash, "width": 2},
                    "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
                }
            )
    drawn = [line for line in lines if any(v is not None for v in line["y"])]
    return Figure(drawn, layout(title, note=note, x="round", y=y, height=380, yaxis=dict(axis)))


_LINES = {
    "accuracy": "accuracy on the scoring pictures",
    "xai": "XAI accuracy",
    "grid": "grid accuracy",
    "in_mask": "in-mask share",
}
_COMPARED = "shuffled weights"


def reasons_over_rounds(
    rounds: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, float | None]] | None = None
) -> Figure:
    """Accuracy, XAI accuracy, grid accuracy and in-mask share; dotted: the final net with its weights shuffled."""
    told = [r for r in rounds if r.get("reasons")]
    if not told:
        raise BadInput(
            "no round of this run was scored for its reasons: set evaluation.rationale_set and run it again",
            code="nothing-to-draw",
        )
    x = [r["round"] for r in told]
    kept = [key for key in _LINES if any(key in r["reasons"] for r in told)]
    shuffled = (baselines or {}).get(_COMPARED, {})
    lines: list[dict[str, Any]] = []
    shapes = []
    for key, colour in zip(kept, COLOURS, strict=False):
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _LINES[key],
                "x": x,
                "y": [r["reasons"].get(key) for r in told],
                "line": {"color": colour, "width": 2},
                "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
            }
        )
        level = shuffled.get(key)
        if level is not None:
            line = {"color": colour, "dash": "dot", "width": 1.5}
            shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level, "line": line})
    return Figure(
        lines,
        layout(
            "Right, and for the right reason",
            note="dotted: the final net with its weights shuffled" if shapes else "",
            x="round",
            y="share of scoring pictures",
            height=360,
            yaxis={"range": [0, 1.02]},
            shapes=shapes,
        ),
    )
