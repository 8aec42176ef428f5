"""The real and the in-memory adapters of the ports."""
