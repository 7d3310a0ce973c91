"""Commands: rounds site, rounds server and rounds provision."""
