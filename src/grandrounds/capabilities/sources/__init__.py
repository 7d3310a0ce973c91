"""Sources of patients: OMOP, FHIR, DICOM, NIfTI, databases, files of statistics packages."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="sources",
    title="Sources of patients: OMOP, FHIR, DICOM, NIfTI, databases, files of statistics packages",
    budget=8_600,
    page="own-data.md",
    names={
        "cohort_table": f"{__name__}.api:cohort_table",
    },
    commands={
        "cohort": Command(f"{__name__}.commands.cohort:app", panel="Data", after="data"),
        "scans": Command(f"{__name__}.commands.scans:app", panel="Data", after="cohort"),
    },
    readers={
        "://": f"{__name__}.sql_source:read_sql",
        ".sas7bdat": f"{__name__}.statistics_files:read_statistics",
        ".xpt": f"{__name__}.statistics_files:read_statistics",
        ".dta": f"{__name__}.statistics_files:read_statistics",
        ".sav": f"{__name__}.statistics_files:read_statistics",
        ".zsav": f"{__name__}.statistics_files:read_statistics",
        ".por": f"{__name__}.statistics_files:read_statistics",
        "data.cohort": f"{__name__}.cohort.hospitals:read_records",
        "data.cohort site": f"{__name__}.cohort.hospitals:read_site_records",
        "data.cohort settings": f"{__name__}.cohort.hospitals:cohort_settings",
        "data.cohort definition": f"{__name__}.cohort.plan_cohort:define_cohort",
        "data.cohort schema": f"{__name__}.cohort.plan_cohort:parse_cohort_schema",
        "data.scan": f"{__name__}.scans.reading:read_scans",
        "data.scan manifest": f"{__name__}.scans.manifest:is_scan_manifest",
        "data.scan site": f"{__name__}.scans.inspect:inspect_site_scans",
    },
)
