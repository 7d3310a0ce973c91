"""Processes of a hospital: the supervisor, and the worker that reads its data."""
