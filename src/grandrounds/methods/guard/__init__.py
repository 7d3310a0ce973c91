"""The guard and personal models: each hospital fits candidates, deploys one of them, and tells whether it was harmed.

`candidates.py` lists the candidates and fits those that are not trained, `choice.py` chooses between candidates and tests for
harm, `site.py` answers the server's Asks, `server.py` has the server's half. A personal model never leaves its hospital.
"""
