"""Patients of one hospital, at a console that was started with --site: their rows, explanations, what-if, and routes."""
