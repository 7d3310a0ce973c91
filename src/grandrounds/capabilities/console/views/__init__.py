"""Values that pages and the API show, read from runs, without HTML."""
