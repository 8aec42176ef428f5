"""Typed values: turns a column of raw Kafka values into typed Arrow columns, as Spark's `from_json` and `from_avro` would.

`value_format` is the way in. Schemas are given in Spark's types, so this is the one folder of the source that imports PySpark.
"""
