"""A Flower app: four hospitals, one model."""
