"""Capabilities of the package: one folder each, with a manifest that the kernel finds (`core/capability.py`)."""
