"""Tests of reproductions are of two fifths of CIFAR-10, as kept readings are, also where all of it is on the machine."""

import os

os.environ.setdefault("GRANDROUNDS_CIFAR", "cifar-10")
