"""`gr.card`: the risk card of a run, or a card with the data of another run, as one printable page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import RunProgress, exchange_progress
from grandrounds.api.sources import memory_rows
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named, slug

if TYPE_CHECKING:
    from grandrounds.models.risk_card import Card
    from grandrounds.report.risk_card import CardPerformance, CardRecord
    from grandrounds.runs.run import Run

TERMS = 10
"""Terms of a card that is fitted beside a run, if their number is not given."""


@dataclass(frozen=True)
class RiskCard:
    """A risk card with its performance at one place.

    Attributes:
        record: Terms, totals and the facts of the fit.
        performance: Calibration and net benefit at a hospital, or at all of them.
        run: The run of the card.
        fitted: The card was fitted by this call, as a new run.
    """

    record: CardRecord
    performance: CardPerformance
    run: Run
    fitted: bool = False

    @property
    def card(self) -> Card:
        """Terms with points, and the risk of every total."""
        return self.record.card

    def svg(self) -> str:
        """Draw the sheet as SVG.

        Returns:
            The text of the drawing.
        """
        from grandrounds.report.figures.card import card_sheet

        return card_sheet(self.record, self.performance)

    def html(self) -> str:
        """Write the sheet as an HTML page that prints on one sheet of paper.

        Returns:
            The text of the page.
        """
        from grandrounds.report.figures.card import risk_card_page

        return risk_card_page(self.record, self.performance, self._provenance().tag)

    def write(self, folder: str | Path | None = None) -> tuple[Path, ...]:
        """Write the page as HTML, SVG and PDF.

        Args:
            folder: The folder; by default that of the run.

        Returns:
            The files. Without Chrome or Chromium there is no PDF.

        Raises:
            BadInput: A file cannot be written.
        """
        from grandrounds.core.arrays import write_atomic
        from grandrounds.report.figure import find_browser
        from grandrounds.report.printing import write_pdf

        where = Path(self.run.folder if folder is None else folder)
        name = self.file_name
        page = self.html()
        try:
            where.mkdir(parents=True, exist_ok=True)
            for ending, text in (("html", page), ("svg", self.svg())):
                write_atomic(where / f"{name}.{ending}", text.encode(), durable=False)
        except OSError as e:
            raise BadInput(
                f"cannot write to {where}: {e.strerror or e}; choose another folder", code="cannot-write"
            ) from None
        written = (where / f"{name}.html", where / f"{name}.svg")
        if find_browser() is None:
            return written
        write_pdf(page, where / f"{name}.pdf", self._provenance())
        return (*written, where / f"{name}.pdf")

    @property
    def file_name(self) -> str:
        """Name of the files, without ending: risk_card, or with the place: risk_card-cleveland."""
        from grandrounds.capabilities.statistics.risk_card import ALL_SITES

        place = self.performance.place
        return "risk_card" if place == ALL_SITES else f"risk_card-{slug(Path(place).stem) or 'site'}"

    def _provenance(self) -> Any:
        from grandrounds.audit.files import SUMMARY, hash_file
        from grandrounds.report.provenance import Provenance
        from grandrounds.runs.environment import own_version

        return Provenance(None, {SUMMARY: hash_file(self.run.folder / SUMMARY)}, own_version())

    def _repr_html_(self) -> str:
        return self.svg()


def card(
    run: Run | str | Path,
    *,
    terms: int | None = None,
    site: str | int | None = None,
    table: Any = None,
    out: str | Path | None = None,
    progress: RunProgress = None,
) -> RiskCard:
    """Return the risk card of a run; fit one with the same data and split if the run has none of so many terms.

    Args:
        run: A finished run of two classes, or its folder.
        terms: Number of terms, 2 to 15. None: those of the run's card, or 10.
        site: The hospital whose test rows show calibration and net benefit; None: all hospitals.
        table: Labelled rows of a hospital, in place of those of the run: a DataFrame, or the path of a table.
        out: The folder of a new run, if one is needed; by default beside the run.
        progress: As in `gr.run`.

    Returns:
        The card, with `.svg()`, `.html()` and `.write(folder)`.

    Raises:
        BadInput: The run is not finished, has images or another task, or its rows are not here.

    Examples:
        >>> card("runs/heart-gam-seed0", terms=5).write("cards")  # doctest: +SKIP
    """
    from grandrounds.capabilities.statistics.models.card import MOST_TERMS
    from grandrounds.capabilities.statistics.risk_card import evaluate_card, find_card_beside, fit_card_beside
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import read_patients

    if terms is not None and not 2 <= terms <= MOST_TERMS:
        raise BadInput(f"a risk card has 2 to {MOST_TERMS} terms, not {terms}", code="setting-out-of-range")
    if site is not None and table is not None:
        raise BadInput("a site and a table are both given: leave one of them out", code="conflicting-options")
    found = run if isinstance(run, Run) else Run(Path(run))
    found.refuse_withdrawn()
    if site is not None:
        site = site_named(site, list(found.summary["per_site"]), where=found.folder)
    has = bool(found.summary.get("card")) and (terms is None or terms == found.plan["method"]["card"]["terms"])
    earlier = None if has or out is not None else find_card_beside(found, terms=terms or TERMS)
    if earlier is not None:
        found = earlier
    elif not has:
        with exchange_progress(progress) as report:
            found = fit_card_beside(found, terms=terms or TERMS, out=out, progress=report)
    rows, name = None, ""
    if table is not None:
        rows = memory_rows(table)
        if rows is None:
            rows, name = read_patients(found, str(table)), Path(str(table)).name
    shown = evaluate_card(found, site=None if site is None else str(site), rows=rows, name=name)
    return RiskCard(found.card, shown, found, fitted=not has and earlier is None)
