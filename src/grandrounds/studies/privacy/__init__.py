"""What a promise to patients costs the systems that make none of their own."""

from grandrounds.studies.privacy.sse_agg import SSE_AGG
from grandrounds.studies.privacy.trust import TRUST

STUDIES = (SSE_AGG, TRUST)
