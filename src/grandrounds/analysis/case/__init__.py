"""Explanations of single cases and of sites, for a finished run."""
