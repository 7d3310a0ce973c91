"""Pages of the console by role: the links of the header, and the start page of a user."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.capabilities.console.auth.access import CurrentUser
from grandrounds.capabilities.console.auth.users import Area, Role


@dataclass(frozen=True)
class Page:
    """A page of the header.

    Attributes:
        path: Its address.
        label: Its name in the header.
        area: The area that a user needs.
        prefixes: Addresses of pages that belong to it, as they begin.
    """

    path: str
    label: str
    area: Area
    prefixes: tuple[str, ...] = ()

    def contains(self, path: str) -> bool:
        """Check that a path is this page's, or that of a page that belongs to it."""
        return path == self.path or any(path == prefix or path.startswith(f"{prefix}/") for prefix in self.prefixes)


OVERVIEW = Page("/board", "Overview", Area.OVERVIEW)
PATIENTS = Page("/case", "Patients", Area.CASES, ("/case", "/cases"))
RUNS = Page(
    "/runs", "Runs", Area.RUNS, ("/run", "/shapes", "/card", "/watch", "/hospitals", "/hospital", "/thresholds")
)
AUDIT = Page("/audit", "Audit", Area.AUDIT)
PAGES = (
    OVERVIEW,
    PATIENTS,
    Page("/models", "Models", Area.REGISTER, ("/models",)),
    RUNS,
    Page("/compare", "Compare", Area.COMPARE),
    AUDIT,
    Page("/privacy", "Privacy", Area.PRIVACY),
    Page("/access", "Access log", Area.ACCESS),
)
"""Pages of the header, in their order."""
START_PAGES = {
    Role.BOARD: OVERVIEW,
    Role.APPROVER: OVERVIEW,
    Role.AUDITOR: AUDIT,
    Role.CLINICIAN: PATIENTS,
    Role.ENGINEER: RUNS,
    Role.VIEWER: RUNS,
}


def start_page(who: CurrentUser, *, has_patients: bool) -> Page:
    """Choose the start page of a user: that of the first role, or of the next one where the console has no patients.

    Args:
        who: The user.
        has_patients: The console shows patients of a hospital.

    Returns:
        The page. It is the list of runs for a clinician at a console without patients.
    """
    pages = [START_PAGES[role] for role in who.roles]
    return next((page for page in pages if has_patients or page is not PATIENTS), RUNS)


def list_pages(who: CurrentUser | None, *, has_patients: bool) -> list[Page]:
    """List the pages of the header that a user may open, the start page first.

    Args:
        who: The user; None for nobody.
        has_patients: The console shows patients of a hospital.

    Returns:
        The pages; none for nobody.
    """
    if who is None:
        return []
    pages = [page for page in PAGES if who.may_see(page.area) and (has_patients or page is not PATIENTS)]
    start = start_page(who, has_patients=has_patients)
    return sorted(pages, key=lambda page: page is not start)
