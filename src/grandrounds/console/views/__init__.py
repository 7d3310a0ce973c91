"""What pages and the API show, as plain values: read from runs, with no HTML in it."""
