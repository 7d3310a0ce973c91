"""Commands: rounds explain, with masks and heat maps."""
