"""A query that reads Kinesis by itself: its options and offsets, what its micro-batches have, and Spark's readers of it."""
