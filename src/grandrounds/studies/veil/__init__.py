"""VEIL (Vallabhaneni): its table, its three figures, the goals we set ourselves, and what each part adds."""

from grandrounds.studies.veil.ablation import ABLATION
from grandrounds.studies.veil.figures import FIGURE_1, FIGURE_2
from grandrounds.studies.veil.goals import GOALS
from grandrounds.studies.veil.patient import FIGURE_3
from grandrounds.studies.veil.table import TABLE_1

STUDIES = (TABLE_1, FIGURE_1, FIGURE_2, FIGURE_3, GOALS, ABLATION)
