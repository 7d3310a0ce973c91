"""Register of models: which model is a candidate, approved, in use at a hospital, or withdrawn.

Other parts read it by `read_register`, `models_in_use`, `state_of` and `banner`.
"""

from grandrounds.capabilities.dossier.register.status import (
    ModelStatus,
    RegisterView,
    banner,
    models_in_use,
    read_register,
    state_of,
)

__all__ = ["ModelStatus", "RegisterView", "banner", "models_in_use", "read_register", "state_of"]
