"""shardherd in a Spark application: `session()` starts the agent and registers `format("shardherd")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardherd.spark.session import session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    # Spark's workers import this package for the reader alone; they must not pay for the driver's side.
    if name == "session":
        from shardherd.spark.session import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
