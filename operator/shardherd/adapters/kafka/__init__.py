"""Kafka as a group's source and as the keeper of its durable positions; `connector` opens both."""
