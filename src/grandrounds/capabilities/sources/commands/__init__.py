"""Commands: rounds cohort."""
