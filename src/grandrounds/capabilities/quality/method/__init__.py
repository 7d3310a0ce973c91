"""Method 'quality': counts of every site in agreed bins, and sites that differ from all others, before training."""
