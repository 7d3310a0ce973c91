"""Attacks that test privacy guarantees of mechanisms and of finished models."""
