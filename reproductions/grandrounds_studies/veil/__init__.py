"""VEIL (Vallabhaneni): its table, its three figures, the goals we set ourselves, and what each part adds."""

from grandrounds_studies.veil.ablation import ABLATION
from grandrounds_studies.veil.demo import EICU_DEMO
from grandrounds_studies.veil.figures import FIGURE_1, FIGURE_2
from grandrounds_studies.veil.goals import GOALS
from grandrounds_studies.veil.patient import FIGURE_3
from grandrounds_studies.veil.table import TABLE_1, TABLE_1_TUNED

STUDIES = (TABLE_1, TABLE_1_TUNED, FIGURE_1, FIGURE_2, FIGURE_3, GOALS, ABLATION, EICU_DEMO)
