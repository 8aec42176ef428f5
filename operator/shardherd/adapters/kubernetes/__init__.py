"""What the operator reads from and writes to the Kubernetes API server."""
