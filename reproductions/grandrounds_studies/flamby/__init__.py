"""FLamby's benchmark of federated learning across real hospitals (du Terrail et al., NeurIPS 2022)."""

from grandrounds_studies.flamby import heart_published, published
from grandrounds_studies.flamby.heart import HEART
from grandrounds_studies.flamby.tcga import TCGA

STUDIES = (HEART, TCGA)
PUBLISHED = {HEART.name: heart_published.BY_SEED, TCGA.name: published.BY_SEED}
"""Study -> strategy -> the published figures of each seed."""
