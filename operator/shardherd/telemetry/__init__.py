"""Metrics and logs: their names and shapes, and how they leave the process. Decides nothing."""
