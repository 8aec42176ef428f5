"""Reads Kinesis by botocore's client: streams and shards, one shard's records, aggregated records, the limits of shards."""
