"""The operator's side of a deployed consortium: keys, certificates and folders, the gateway, and the server's processes."""
