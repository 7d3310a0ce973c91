"""The programs of a hospital at work: the supervisor and the process that works with its data."""
