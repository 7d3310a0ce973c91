"""A hospital's own side in a deployment: what it holds, allows, checks and answers."""
