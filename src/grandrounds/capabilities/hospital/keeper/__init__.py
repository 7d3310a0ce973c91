"""A hospital's side of a deployment: its data, policy, privacy account and answers."""
