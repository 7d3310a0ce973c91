"""Explanations of models: feature attributions, sketches of them, and measures of their quality and agreement."""
