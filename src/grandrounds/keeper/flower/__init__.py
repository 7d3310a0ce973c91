"""A hospital's connection to Flower: its SuperNode, and the messages that it takes from it."""
