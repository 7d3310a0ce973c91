"""The dossier of a run: papers for boards, journals and authorities, in which every sentence names its source.

Evidence (files of the run, ledger entries with inclusion proofs, outputs of commands) gives facts; facts and people's answers
give documents. Documents are a pure function of the evidence, so a dossier is verified by building it again.
"""
