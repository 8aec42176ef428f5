"""Records and the position of their shard in one transaction of Kafka: for Spark's Kafka sink and a worker's outputs."""
