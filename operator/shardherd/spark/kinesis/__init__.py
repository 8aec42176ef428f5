"""A query that reads Kinesis, by itself or in a group: its options and offsets, what its micro-batches have, its readers."""
