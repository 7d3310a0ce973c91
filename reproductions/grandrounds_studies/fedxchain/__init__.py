"""FedXChain (Atmoko et al.): its two tables, its eight figures, attacks that trust should catch, and trust of hospitals."""

from grandrounds_studies.fedxchain.attacks import ATTACKS
from grandrounds_studies.fedxchain.figures import FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6
from grandrounds_studies.fedxchain.hospitals import HOSPITALS
from grandrounds_studies.fedxchain.readings import READINGS_STUDY
from grandrounds_studies.fedxchain.robust import ROBUST
from grandrounds_studies.fedxchain.sites_and_models import FIGURE_7, FIGURE_8
from grandrounds_studies.fedxchain.tables import TABLE_1, TABLE_2

STUDIES = (
    *(TABLE_1, TABLE_2),
    *(FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8),
    *(READINGS_STUDY, ROBUST, ATTACKS, HOSPITALS),
)
