"""Recalibration of a model at one hospital: slope and intercept of its log-odds, fitted to labelled recent patients."""
