"""The Sticky assignor against Kafka's: `python -m benchmarks.assignor`."""
