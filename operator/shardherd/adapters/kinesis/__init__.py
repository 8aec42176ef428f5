"""A group's stream in Kinesis, and its positions, which Kinesis does not keep: they are in a table beside the ownership."""
