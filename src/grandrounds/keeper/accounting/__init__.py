"""A site's own privacy account: what each Ask costs its patients, paid before it is answered."""
