"""Typed values: turns a column of raw Kafka values into typed Arrow columns, as Spark's `from_json` and `from_avro` would."""

from shardherd.spark.values.decoded import Decoded, MalformedValueError
from shardherd.spark.values.format import OPTIONS, ValueFormat, from_options
from shardherd.spark.values.schema import SchemaError

__all__ = ["OPTIONS", "Decoded", "MalformedValueError", "SchemaError", "ValueFormat", "from_options"]
