"""Commands: rounds dossier and rounds models."""
