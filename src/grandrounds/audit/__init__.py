"""The ledger of a run: every round's decision, hash-linked and signed, and its independent verification.

Needs `cryptography` and `rfc8785`, which a minimal machine may lack: nothing here is imported before it is used.
"""
