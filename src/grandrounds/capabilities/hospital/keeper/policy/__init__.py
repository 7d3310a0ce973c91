"""A site's own policy: what it answers, and the smallest count that may leave."""
