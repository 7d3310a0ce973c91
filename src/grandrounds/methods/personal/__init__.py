"""Personal parts of a model, and the guard: what each hospital adds to the common model, chosen and kept at the hospital.

`parts.py` lists the candidates and fits them, `site.py` answers the server's Asks, `guard.py` chooses between candidates and
tests for harm, `server.py` has the server's half. A personal model never leaves its hospital.
"""
