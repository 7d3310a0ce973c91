"""Commands and options of integrations: rounds on a chain, runs in MLflow."""
