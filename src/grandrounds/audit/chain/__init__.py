"""A ledger's rounds on an EVM chain: who cannot rewrite the chain cannot rewrite the rounds that are anchored there.

Needs `web3` (the extra `chain`), which is imported when a node is first asked.
"""
