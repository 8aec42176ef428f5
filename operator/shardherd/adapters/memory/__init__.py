"""In-memory twins of the ports, with faults that a test can inject. They pass the contract tests of the real adapters."""

from shardherd.adapters.memory.cluster import MemoryEvents, MemoryLeadership, MemoryTokens
from shardherd.adapters.memory.kafka import MemoryConnector, MemoryKafka
from shardherd.adapters.memory.ownership import MemoryOwnership

__all__ = [
    "MemoryConnector",
    "MemoryEvents",
    "MemoryKafka",
    "MemoryLeadership",
    "MemoryOwnership",
    "MemoryTokens",
]
