"""The FL-XAI study (a thesis): its ten experiments, secs. 4.3 to 4.12, with heat maps as numbers, and why its FedAdam failed."""

from grandrounds_studies.fl_xai.asynchrony import ASYNCHRONY
from grandrounds_studies.fl_xai.cost import COST
from grandrounds_studies.fl_xai.distributions import DISTRIBUTIONS
from grandrounds_studies.fl_xai.nets import NETS, NUMBER_OF_SITES
from grandrounds_studies.fl_xai.noise import NOISE
from grandrounds_studies.fl_xai.reading import READING
from grandrounds_studies.fl_xai.sharing import SHARING
from grandrounds_studies.fl_xai.steps import STEPS
from grandrounds_studies.fl_xai.strategies import STRATEGIES
from grandrounds_studies.fl_xai.tasks import TASKS

STUDIES = (STRATEGIES, DISTRIBUTIONS, ASYNCHRONY, READING, NOISE, TASKS, SHARING, NETS, NUMBER_OF_SITES, COST, STEPS)
