"""Fed-TCGA-BRCA of FLamby: survival of breast cancer patients in six regions, with FLamby's training and test rows.

39 columns of 1,088 patients: age in years and 38 indicators of ancestry, stage, histology and treatment. `event` is 1 where
the death was observed, `days` the follow-up time (0 in 12 rows, none of them a death). FLamby's page words the two the other
way round. Eight of the file's 1,096 patients have no region and are left out, as in FLamby.

The rows are of The Cancer Genome Atlas, open access: nobody may try to identify a person. They are found through
GRANDROUNDS_DATA or fetched from FLamby's repository, and are not part of this package.
"""

from __future__ import annotations

import numpy as np

from grandrounds.data.formats import PLAIN
from grandrounds.data.readers import read_table
from grandrounds.data.store import DataFile, locate_file
from grandrounds.data.table import Table

NAME = "tcga-brca"
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
"""Sites in the order of FLamby's centres 0 to 5."""

_URL = "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_tcga_brca"
ROWS = DataFile(
    "fed_tcga_brca/brca.csv",
    "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020",
    113_184,
    url=f"{_URL}/brca.csv",
)
PARTS = DataFile(
    "fed_tcga_brca/train_test_split.csv",
    "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
    28_946,
    url=f"{_URL}/dataset_creation_scripts/train_test_split.csv",
)
FILES = (ROWS, PARTS)

FEATURES = (
    "age_at_index", "ethnicity_not hispanic or latino", "ethnicity_not reported", "race_asian",
    "race_black or african american", "race_not reported", "race_white", "ajcc_pathologic_m_MX", "ajcc_pathologic_n_N0 (i-)",
    "ajcc_pathologic_n_N1", "ajcc_pathologic_n_N1a", "ajcc_pathologic_n_N2", "ajcc_pathologic_n_N2a",
    "ajcc_pathologic_stage_Stage IA", "ajcc_pathologic_stage_Stage IIA", "ajcc_pathologic_stage_Stage IIB",
    "ajcc_pathologic_stage_Stage IIIA", "ajcc_pathologic_stage_Stage IIIC", "ajcc_pathologic_t_T1c", "ajcc_pathologic_t_T2",
    "ajcc_pathologic_t_T3", "ajcc_staging_system_edition_5th", "ajcc_staging_system_edition_6th",
    "ajcc_staging_system_edition_7th", "icd_10_code_C50.9", "morphology_8500/3", "morphology_8520/3",
    "primary_diagnosis_Infiltrating duct carcinoma, NOS", "primary_diagnosis_Lobular carcinoma, NOS", "prior_malignancy_yes",
    "synchronous_malignancy_Not Reported", "treatment_or_therapy_not reported", "treatment_or_therapy_yes",
    "tumor_stage_stage i", "tumor_stage_stage ia", "tumor_stage_stage iia", "tumor_stage_stage iib", "tumor_stage_stage iiia",
    "tumor_stage_stage iiic",
)  # fmt: skip
"""The 39 columns in FLamby's order."""


def load() -> Table:
    """Load `region`, `part` ("train" or "test"), `patient`, 39 features, `event` and `days`."""
    rows = read_table(locate_file(ROWS, name=NAME), form=PLAIN)
    parts = read_table(locate_file(PARTS, name=NAME), form=PLAIN)
    place = dict(zip(parts.column("pid").tolist(), parts.column("fold2").tolist(), strict=True))
    words = [place.get(patient) for patient in rows.column("pid").tolist()]
    rows = rows.take(np.array([word is not None for word in words]))
    part, centre = zip(*(word.split("_") for word in words if word is not None), strict=True)
    columns = {
        "region": np.array([REGIONS[int(k)] for k in centre], object),
        "part": np.array(part, object),
        "patient": rows.column("pid"),
        **{name: rows.column(name) for name in FEATURES},
        "event": rows.column("E"),
        "days": rows.column("T"),
    }
    return Table(columns, NAME)
