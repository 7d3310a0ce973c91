"""Explainers of tables and images, one file each, and the table of all of them (`registry`)."""
