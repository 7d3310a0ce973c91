"""The web console: what clinicians, engineers and auditors look at. It reads run folders; it starts and stops nothing."""
