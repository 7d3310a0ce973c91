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
        "cohort": Command(f"{__name__}.commands.cohort:app", panel="Data", after="data"),
        "scans": Command("grandrounds.cli.scans:app", panel="Data", after="cohort"),
    },
    readers={
        "://": "grandrounds.data.sql_source:read_sql",
        ".sas7bdat": "grandrounds.data.statistics_files:read_statistics",
        ".xpt": "grandrounds.data.statistics_files:read_statistics",
        ".dta": "grandrounds.data.statistics_files:read_statistics",
        ".sav": "grandrounds.data.statistics_files:read_statistics",
        ".zsav": "grandrounds.data.statistics_files:read_statistics",
        ".por": "grandrounds.data.statistics_files:read_statistics",
        "data.cohort": "grandrounds.data.cohort.hospitals:read_records",
        "data.cohort site": "grandrounds.data.cohort.hospitals:read_site_records",
        "data.cohort settings": "grandrounds.data.cohort.hospitals:cohort_settings",
        "data.cohort definition": "grandrounds.data.cohort.plan_cohort:define_cohort",
        "data.cohort schema": "grandrounds.data.cohort.plan_cohort:parse_cohort_schema",
        "data.scan": "grandrounds.data.scans.reading:read_scans",
        "data.scan manifest": "grandrounds.data.scans.manifest:is_scan_manifest",
        "data.scan site": "grandrounds.data.scans.inspect:inspect_site_scans",
    },
)
