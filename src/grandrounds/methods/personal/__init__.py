"""Personal parts that hospitals train, and their differences from the common model.

`training.py` trains last layers and models of a hospital's own, for the guard to compare or to be deployed without one
(`methods/guard`). `differences.py` names the columns that a hospital's outcomes follow differently (`score_test.py`).
"""
