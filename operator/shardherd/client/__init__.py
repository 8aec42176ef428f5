"""The typed client of the coordinator. The agent uses it; it needs nothing of the operator's packages."""

from shardherd.client.aio import AsyncConsumerClient
from shardherd.client.sync import ConsumerClient

__all__ = ["AsyncConsumerClient", "ConsumerClient"]
