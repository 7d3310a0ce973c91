"""Clinical names and units of columns, for pages that people read.

Data sets of the catalog have them here. Any other column is shown by its own name, with spaces for underscores.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ColumnLabel:
    """The clinical name of a column, and the unit of its values; `unit` is empty where there is none."""

    name: str
    unit: str = ""

    def with_unit(self, value: str) -> str:
        """Write a number with its unit.

        Args:
            value: The number as text.

        Returns:
            The number, followed by the unit where the column has one.
        """
        return f"{value} {self.unit}" if self.unit else value


_HEART = {
    "age": ColumnLabel("age", "years"),
    "chest_pain": ColumnLabel("chest pain"),
    "resting_bp": ColumnLabel("resting blood pressure", "mmHg"),
    "cholesterol": ColumnLabel("serum cholesterol", "mg/dl"),
    "high_fasting_sugar": ColumnLabel("fasting blood sugar above 120 mg/dl"),
    "resting_ecg": ColumnLabel("resting ECG"),
    "max_heart_rate": ColumnLabel("maximum heart rate", "beats/min"),
    "exercise_angina": ColumnLabel("exercise-induced angina"),
    "st_depression": ColumnLabel("ST depression by exercise", "mm"),
    "st_slope": ColumnLabel("slope of the ST segment at peak exercise"),
    "vessels": ColumnLabel("major vessels coloured by fluoroscopy"),
    "thallium_scan": ColumnLabel("thallium scan"),
    "disease": ColumnLabel("coronary disease"),
}
_LABELS = {"heart": _HEART}


def column_label(column: str, data: str | None = None) -> ColumnLabel:
    """Return the clinical name and the unit of a column.

    Args:
        column: The column's name in the table.
        data: The name of its data set in the catalog; None, or a file's name, for a table of the user's own.

    Returns:
        The label. Units are never guessed from a name: a table of the user's own has none.
    """
    known = _LABELS.get(data or "", {})
    return known.get(column) or ColumnLabel(column.replace("_", " "))


def event_label(column: str, word: str, data: str | None = None) -> str:
    """Name the event of a label: "coronary disease" where the catalog knows the column, else "died = 1".

    Args:
        column: The label's name in the table.
        word: The class that is the event.
        data: The name of its data set in the catalog.
    """
    known = _LABELS.get(data or "", {}).get(column)
    return known.name if known is not None and word in ("1", "yes", "true") else f"{column} = {word}"
