"""What holds for all tests: no property test is held to a clock, since two cores may be busy with something else."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
