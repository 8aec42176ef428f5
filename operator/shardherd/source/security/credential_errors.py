"""What is raised when credentials cannot be used. Decides nothing."""

from __future__ import annotations

from kafka.errors import KafkaConnectionError


class CredentialsError(KafkaConnectionError):  # type: ignore[misc]  # kafka-python has no types
    """Credentials that are not there or cannot be used now; they may be later. Names where they belong, never them."""
