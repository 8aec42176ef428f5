"""The sinks that are exactly once, against Spark's own writers of the same format without that."""
