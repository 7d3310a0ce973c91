"""`rounds scans list`: the DICOM series and NIfTI files of a folder, findings about them, and a draft of their manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.cli.terminal import Terminal, echo, show_progress, styled

if TYPE_CHECKING:
    from grandrounds.capabilities.sources.scans.listing import ListedScan, ScanListing

app = typer.Typer(help="DICOM and NIfTI scans: list a folder, draft its manifest.", no_args_is_help=True)

_ROWS = 50  # of the table
_SHOWN = 40  # characters of a description or path
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


@app.callback()
def _scans() -> None:
    """DICOM and NIfTI scans: list a folder, draft its manifest."""


@app.command("list")
def list_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; DICOM files need no suffix.")],
    tag: Annotated[
        list[str], typer.Option(metavar="TAG=PATTERN", help="Only series with this tag: Modality=CT, SeriesDescription=*axial*.")
    ] = [],  # noqa: B006
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a draft of the manifest (CSV); fill in the labels.")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the middle slice of every scan (PNG), to look for names.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the scans of a folder: modality, slices, spacing, size, and findings such as burnt-in text or missing slices.

    Values of tags that identify patients are never printed or written. Descriptions, paths and the sheet may show more
    than you want to share: they are for the hospital's staff.

    The draft numbers patients (p001, p002 ...) in place of their identifiers, and leaves out scans with an error.

    Example: `rounds scans list export --tag Modality=CT --manifest export/manifest.csv`
    """
    from grandrounds.capabilities.cases.commands.images import sheet_path, write_sheet
    from grandrounds.capabilities.sources.scans.listing import draft_manifest, draw_sheet, list_scans
    from grandrounds.core.errors import BadInput

    if manifest is not None and manifest.exists():
        raise BadInput(f"{manifest} exists: remove it, or choose another --manifest", code="file-exists")
    with show_progress():
        listing = list_scans(folder, series=_parse_tags(tag))
        drawn = None if sheet is None else draw_sheet(listing)
    if as_json:
        echo(json.dumps(_to_json(listing)))
    else:
        _show(Terminal(), listing)
    if manifest is not None:
        _write_text(manifest, draft_manifest(listing))
        usable = sum(scan.usable for scan in listing.scans)
        echo(f"{manifest}: {usable} of {len(listing.scans)} scans; fill in the labels, check the patients", err=as_json)
    if sheet is not None and drawn is not None:
        path = sheet_path(sheet, "scans", folder.name)
        write_sheet(path, drawn)
        echo(f"{path}: treat it as part of the patients' records", err=as_json)


def _parse_tags(texts: list[str]) -> dict[str, str]:
    from grandrounds.core.errors import BadInput

    pairs = [text.partition("=") for text in texts]
    for tag, equals, pattern in pairs:
        if not equals or not tag.strip() or not pattern.strip():
            raise BadInput(f"--tag {tag}{equals}{pattern}: write TAG=PATTERN, such as Modality=CT", code="invalid-option")
    return {tag.strip(): pattern.strip() for tag, _, pattern in pairs}


def _show(console: Terminal, listing: ScanListing) -> None:
    """Print the table of scans, then each kind of finding once with the scans that have it."""
    from rich.table import Table

    table = Table("#", "where", "modality", "description")
    for column in ("slices", "size", "mm", "patient"):
        table.add_column(column, justify="right", no_wrap=column != "patient")
    for scan in listing.scans[:_ROWS]:
        cells = [_shorten(scan.path), scan.modality or "-", _shorten(scan.description) or "-", str(scan.slices)]
        size = f"{scan.size[0]}x{scan.size[1]}"
        style = None if scan.usable else "red"
        table.add_row(str(scan.number), *cells, size, scan.spacing_text, scan.patient or "-", style=style)
    console.print(table)
    if len(listing.scans) > _ROWS:
        console.print(f"and {len(listing.scans) - _ROWS} more (--json has them all)")
    for (level, _code), (text, numbers) in _count_findings(listing.scans).items():
        shown = ", ".join(str(n) for n in numbers[:12]) + (", ..." if len(numbers) > 12 else "")
        console.print(styled((f"{level}:", _COLOURS[level]), f" {text} (scan {shown})"), soft_wrap=True)
    if listing.damaged:
        first = listing.damaged[0]
        text = f" {len(listing.damaged)} damaged DICOM file{'s' if len(listing.damaged) > 1 else ''}, first {first}"
        console.print(styled(("warning:", "yellow"), text), soft_wrap=True)
    if listing.absent:
        text = f" DICOMDIR names {len(listing.absent)} absent files, first {listing.absent[0]}"
        console.print(styled(("warning:", "yellow"), text), soft_wrap=True)
    if listing.without_pixels:
        console.print(f"{listing.without_pixels} DICOM files without pixels (reports, plans) are left out", soft_wrap=True)
    patients = len({scan.patient for scan in listing.scans if scan.patient})
    console.print(f"{len(listing.scans)} scans of {patients} patients" if patients else f"{len(listing.scans)} scans")


def _count_findings(scans: tuple[ListedScan, ...]) -> dict[tuple[str, str], tuple[str, list[int]]]:
    """Collect the first text of each kind of finding and the numbers of its scans, errors first."""
    out: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for level in _COLOURS:
        for scan in scans:
            for finding in scan.findings:
                if finding.level == level:
                    out.setdefault((level, finding.code), (finding.text, []))[1].append(scan.number)
    return out


def _to_json(listing: ScanListing) -> dict[str, Any]:
    scans = [
        {
            "number": scan.number,
            "path": scan.path,
            "modality": scan.modality,
            "description": scan.description,
            "slices": scan.slices,
            "size": list(scan.size),
            "spacing": list(scan.spacing),
            "patient": scan.patient,
            "findings": [{"level": f.level, "code": f.code, "what": f.text} for f in scan.findings],
        }
        for scan in listing.scans
    ]
    damaged = [path.relative_to(listing.folder).as_posix() for path in listing.damaged]
    return {"scans": scans, "damaged": damaged, "without_pixels": listing.without_pixels, "absent": list(listing.absent)}


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _write_text(path: Path, text: str) -> None:
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another file", code="cannot-write") from None
