"""The coordinator: the protocol of the core over HTTP, with durable ownership and checkpoints behind it."""

from shardherd.coordinator.server import CoordinatorPorts, CoordinatorServer

__all__ = ["CoordinatorPorts", "CoordinatorServer"]
