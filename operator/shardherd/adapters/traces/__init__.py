"""Spans of what the coordinator does for the requests of consumers. Imported only where traces are on. Decides nothing."""
