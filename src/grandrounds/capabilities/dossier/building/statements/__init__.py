"""Statements by subject, which several documents share: data, model, performance, privacy, record, monitoring.

Each function takes the facts of a run and returns one or more statements; it raises MissingFact where the run lacks the fact.
"""
