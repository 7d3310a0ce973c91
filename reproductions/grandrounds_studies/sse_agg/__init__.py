"""SSE-AGG (Bhatia et al. 2026): its two tables, its four figures, and the experiment whose results it announces."""

from grandrounds_studies.sse_agg.communication import FIGURE_4
from grandrounds_studies.sse_agg.figures import FIGURE_1, FIGURE_2, FIGURE_3
from grandrounds_studies.sse_agg.goals import GOALS, TUNING
from grandrounds_studies.sse_agg.outliers import OUTLIERS, SHORTCUTS
from grandrounds_studies.sse_agg.skin import SKIN_LESIONS, SKIN_LESIONS_128
from grandrounds_studies.sse_agg.tables import TABLE_1, TABLE_2

STUDIES = (
    *(TABLE_1, TABLE_2, FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, SKIN_LESIONS, SKIN_LESIONS_128),
    *(GOALS, TUNING, OUTLIERS, SHORTCUTS),
)
