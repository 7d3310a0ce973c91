"""The Python interface: `run`, `glm`, `cox`, `compare`, `tune`, `predict`, `evaluate`, `FederatedClassifier`, section classes.

`import grandrounds as gr` gives all of them. This package holds what a person calls; the work is done below it.
"""
