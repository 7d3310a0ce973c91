"""Attacks on what was promised: how much a mechanism, or a finished model, really tells of one patient."""
