"""Why this case, why at this site: the reasons of a finished run, told to one person who asks."""
