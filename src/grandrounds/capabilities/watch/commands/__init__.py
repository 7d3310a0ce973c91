"""Commands: rounds watch and rounds recalibrate."""
