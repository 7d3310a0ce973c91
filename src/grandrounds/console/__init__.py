"""The web console for clinicians, engineers and auditors. It reads run folders and changes nothing."""
