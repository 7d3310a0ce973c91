"""Membership attacks on a finished run."""
