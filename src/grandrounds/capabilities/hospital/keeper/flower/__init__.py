"""A hospital's connection to Flower: its SuperNode, and the messages received from it."""
