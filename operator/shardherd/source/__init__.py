"""Reads records of Kafka into Arrow: connections, lookups, fetching, decoding, typed values.

Whoever calls it says which offsets to read and from where. It knows no group, no coordinator and no Spark, but for `values`,
which takes its schemas in Spark's types. Importing it imports nothing: planners must start fast.
"""
