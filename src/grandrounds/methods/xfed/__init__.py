"""XFed: only sites with accurate models and correct explanations upload them. Server half, site half, incompatible settings."""
