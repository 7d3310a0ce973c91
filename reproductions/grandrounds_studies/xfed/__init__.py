"""XFed (Zhao et al.): its tables, its figures, and the experiments that it lacks."""

from grandrounds_studies.xfed.cost import TABLE_2
from grandrounds_studies.xfed.detect import DETECT
from grandrounds_studies.xfed.figures import FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7
from grandrounds_studies.xfed.hospitals import HOSPITALS
from grandrounds_studies.xfed.scenes import SCENES
from grandrounds_studies.xfed.seen import FIGURE_1, FIGURE_2
from grandrounds_studies.xfed.table import TABLE_1

STUDIES = (TABLE_1, TABLE_2, FIGURE_1, FIGURE_2, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7, SCENES, DETECT, HOSPITALS)
