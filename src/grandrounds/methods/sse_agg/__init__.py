"""SSE-AGG: aggregation weights by the agreement of explanations. Method, site half and weights."""
