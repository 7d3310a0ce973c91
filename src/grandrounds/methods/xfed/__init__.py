"""XFed: sites whose models are right for the right reasons upload them. Server half, site half, incompatible settings."""
