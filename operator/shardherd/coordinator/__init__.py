"""The coordinator: the protocol of the core over HTTP, with durable ownership and checkpoints behind it."""

from shardherd.coordinator.server import CoordinatorPorts, CoordinatorServer, Tls

__all__ = ["CoordinatorPorts", "CoordinatorServer", "Tls"]
