"""From a model and rows to reasons: attributions, sketches, and numbers about them."""
