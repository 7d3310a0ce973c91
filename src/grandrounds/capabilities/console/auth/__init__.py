"""Sign-in, sessions, users with their roles, access control, and checks of every request."""
