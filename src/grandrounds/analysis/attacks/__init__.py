"""Attacks on a finished run as evidence: membership, attribute inference, and reconstruction of what was disclosed."""
