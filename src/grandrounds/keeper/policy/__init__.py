"""A site's own policy: what it answers, and how small a count may leave it."""
