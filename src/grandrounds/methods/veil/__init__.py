"""VEIL: a sparse linear score from proposals and noisy sums of sites. Server half, site half, privacy budget."""
