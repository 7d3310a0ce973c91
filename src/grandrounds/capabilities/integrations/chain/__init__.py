"""Anchor a ledger's rounds on an EVM chain: without control of the chain, anchored rounds cannot be rewritten.

Needs `web3` (the extra `chain`), which is imported when a node is first used.
"""
