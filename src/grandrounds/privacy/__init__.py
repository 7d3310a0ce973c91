"""Privacy of patients: secure aggregation, differential privacy with an accountant, site budgets, and attacks."""
