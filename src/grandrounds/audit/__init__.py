"""The ledger of a run: what was decided in each round, hash-linked and signed, and how to check it without trust.

Needs `cryptography` and `rfc8785`, which a bare machine may lack: nothing here is imported before it is used.
"""
