"""How a finished model's log-odds were corrected, so that its probabilities mean what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Calibration:
    """Log-odds s became slope * s + intercept. It is in the model itself, in its last layer or its leaves.

    A temperature T is the slope 1 / T; it is kept as it was chosen, and Platt's line has none.
    """

    slope: float
    intercept: float = 0.0
    temperature: float | None = None

    @property
    def platt(self) -> dict[str, float] | None:
        """Slope and intercept as a run folder keeps them; nothing of a temperature, which has a place of its own."""
        return None if self.temperature is not None else {"slope": self.slope, "intercept": self.intercept}

    @classmethod
    def cooled(cls, temperature: float) -> Calibration:
        return cls(1 / temperature, 0.0, temperature)

    @classmethod
    def read(cls, temperature: float | None, platt: Any) -> Calibration | None:
        """From what a run folder keeps; None where nothing was fitted."""
        if platt is not None:
            return cls(float(platt["slope"]), float(platt["intercept"]))
        return None if temperature is None else cls.cooled(float(temperature))
