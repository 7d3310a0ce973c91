"""A site's own privacy account: the cost of each Ask, charged before it is answered."""
