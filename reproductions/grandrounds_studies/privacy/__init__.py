"""Cost of a privacy guarantee in the systems that make none of their own."""

from grandrounds_studies.privacy.sse_agg import SSE_AGG
from grandrounds_studies.privacy.trust import TRUST

STUDIES = (SSE_AGG, TRUST)
