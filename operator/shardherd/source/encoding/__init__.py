"""From Arrow columns to Kafka's record batches, for the sink that writes Kafka. It sends nothing."""
