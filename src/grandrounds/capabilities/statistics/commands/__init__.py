"""Commands: rounds fit, rounds table1 and rounds card."""
