"""The source against Spark's own Kafka source: see benchmarks/README.md."""
