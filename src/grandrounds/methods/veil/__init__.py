"""VEIL: a sparse linear score from feature proposals and noisy sums of sites. Server half, site half, privacy budget."""
