"""Pages of the register of models, and the one thing that this console writes: a signed decision about a model."""
