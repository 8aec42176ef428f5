"""The worker against other consumers for Python: `make bench-worker`."""
