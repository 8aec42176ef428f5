"""Kafka as a group's source and as the keeper of its durable positions."""

from shardherd.adapters.kafka.connector import KafkaConnector

__all__ = ["KafkaConnector"]
