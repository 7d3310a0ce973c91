"""Method 'watch': compare the new patients of all hospitals with those of training, from sums."""
