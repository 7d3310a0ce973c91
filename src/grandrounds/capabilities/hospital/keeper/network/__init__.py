"""A hospital's connection to the gateways of its consortium: proxy, fail-over, IPv6, clock, diagnosis."""
