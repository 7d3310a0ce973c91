"""Exact methods: regression, survival and tables from sums over hospitals, equal to those of the pooled rows."""
