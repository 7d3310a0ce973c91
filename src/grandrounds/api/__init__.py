"""The Python interface: `run`, `compare`, `tune`, `predict`, `evaluate`, `FederatedClassifier` and the section classes.

`import grandrounds as gr` gives all of them. This package holds what a person calls; the work is done below it.
"""
