"""The Kubernetes side of a group: observe the cluster, let the core plan, apply what it planned."""
