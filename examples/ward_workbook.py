"""Write an Excel workbook as a ward exports it: a title, a row of units, "<5", percent formats, dates and a hidden sheet.

    python examples/ward_workbook.py [FILE]
    rounds data check ward.xlsx --label died --site hospital

The patients are generated. Needs openpyxl (extra `excel`).
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import openpyxl

PATIENTS = 200


def write_workbook(path: Path) -> None:
    """Write the workbook."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Patients"
    sheet.append(["Cardiology, export of May 2024"])
    sheet.append(["hospital", "admitted", "age", "crp", "ejection fraction", "died"])
    sheet.append([None, None, "years", "mg/l", "%", None])
    for i in range(PATIENTS):
        admitted = datetime.date(2024, 5, 1 + i % 28)
        crp = "<5" if i % 4 == 0 else 5 + i % 60
        sheet.append([("north", "south")[i % 2], admitted, 40 + i % 50, crp, (30 + i % 40) / 100, i * i % 7 < 2])
        sheet.cell(sheet.max_row, 5).number_format = "0%"
    book.create_sheet("Old")["A1"] = "age"
    book["Old"].sheet_state = "hidden"
    book.save(path)


if __name__ == "__main__":
    write_workbook(Path(sys.argv[1] if len(sys.argv) > 1 else "ward.xlsx"))
