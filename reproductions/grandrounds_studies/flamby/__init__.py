"""FLamby's benchmark of federated learning across real hospitals (du Terrail et al., NeurIPS 2022)."""

from grandrounds_studies.flamby.tcga import TCGA

STUDIES = (TCGA,)
