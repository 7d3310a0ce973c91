"""Sources of patients: OMOP, FHIR, DICOM, NIfTI, databases, files of statistics packages."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="sources",
    title="Sources of patients: OMOP, FHIR, DICOM, NIfTI, databases, files of statistics packages",
    budget=7_500,
    page="own-data.md",
    names={
        "cohort_table": "grandrounds.api.cohorts:cohort_table",
    },
    commands={
        "cohort": Command("grandrounds.capabilities.sources.commands.cohort:app", panel="Data", after="data"),
        "scans": Command("grandrounds.cli.scans:app", panel="Data", after="cohort"),
    },
)
